//! The functions of libibverbs, found by name when the program runs.
//!
//! # Safety
//! Types of functions are those of the header `infiniband/verbs.h`.
#![allow(unsafe_code)]

use super::Absent;
use super::abi::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr,
};
use crate::error::{Error, ErrorKind, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};

const NAME: &str = "libibverbs.so.1";

macro_rules! table {
    ($( $field:ident: $name:literal ($($argument:ty),*) $(-> $result:ty)?; )*) => {
        /// The functions.
        #[derive(Debug)]
        pub(super) struct Table {
            $( pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*
            /// As `ibv_reg_mr`, with flags that may be dropped; libraries before 2020 have none.
            pub(super) register_optional:
                Option<unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr>,
            /// Has forked children get none of the memory that devices use; and whether that is so (rdma-core 35).
            pub(super) fork_init: Option<unsafe extern "C" fn() -> c_int>,
            pub(super) fork_state: Option<unsafe extern "C" fn() -> c_int>,
            /// Kept open as long as the process lives.
            _library: Library,
        }

        impl Table {
            fn of(library: Library) -> Result<Self> {
                // SAFETY: the types are those of the functions of these names, and `library` is kept.
                unsafe {
                    Ok(Self {
                        $( $field: *library.get(concat!($name, "\0").as_bytes()).map_err(|_| missing($name))?, )*
                        register_optional: library.get(b"ibv_reg_mr_iova2\0").ok().map(|symbol| *symbol),
                        fork_init: library.get(b"ibv_fork_init\0").ok().map(|symbol| *symbol),
                        fork_state: library.get(b"ibv_is_fork_initialized\0").ok().map(|symbol| *symbol),
                        _library: library,
                    })
                }
            }
        }
    };
}

table! {
    device_list: "ibv_get_device_list" (*mut c_int) -> *mut *mut Device;
    free_device_list: "ibv_free_device_list" (*mut *mut Device);
    device_name: "ibv_get_device_name" (*mut Device) -> *const c_char;
    open_device: "ibv_open_device" (*mut Device) -> *mut Context;
    close_device: "ibv_close_device" (*mut Context) -> c_int;
    query_device: "ibv_query_device" (*mut Context, *mut DeviceAttr) -> c_int;
    query_port: "ibv_query_port" (*mut Context, u8, *mut PortAttr) -> c_int;
    query_gids: "_ibv_query_gid_table" (*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    alloc_pd: "ibv_alloc_pd" (*mut Context) -> *mut Pd;
    register: "ibv_reg_mr" (*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    deregister: "ibv_dereg_mr" (*mut Mr) -> c_int;
    create_channel: "ibv_create_comp_channel" (*mut Context) -> *mut CompChannel;
    destroy_channel: "ibv_destroy_comp_channel" (*mut CompChannel) -> c_int;
    create_cq: "ibv_create_cq" (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: "ibv_destroy_cq" (*mut Cq) -> c_int;
    get_event: "ibv_get_cq_event" (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_events: "ibv_ack_cq_events" (*mut Cq, u32);
    async_event: "ibv_get_async_event" (*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: "ibv_ack_async_event" (*mut AsyncEvent);
    event_text: "ibv_event_type_str" (u32) -> *const c_char;
    create_qp: "ibv_create_qp" (*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: "ibv_modify_qp" (*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: "ibv_destroy_qp" (*mut Qp) -> c_int;
}

fn missing(name: &str) -> Error {
    Error::new(
        ErrorKind::System,
        format!(
            "{NAME} has no function {name}; need rdma-core 32 or later, or NCCL_IB_DISABLE=1 to do without"
        ),
    )
}

impl Table {
    pub(super) fn open() -> Result<std::result::Result<Self, Absent>> {
        // SAFETY: the library may run its initialisation, which is what loading it is for.
        match unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => Self::of(library).map(Ok),
            Err(error) => Ok(Err(Absent::NoLibrary(error.to_string()))),
        }
    }
}
