//! What network plugins of versions 8 to 12 export: a table of functions, and what devices are like.
//!
//! ```text
//! 12  as 11, but a device may be made of 8 others, and has the numbers of its rail and plane
//! 11  init(context, communicator, config, logger, profiler), listen(context, ...), connect(context, ...); finalize, setNetAttr at the end
//! 10  init(logger, profiler); connect(device, config, ...)
//!  9  init(logger); connect(device, handle, ...); no handles of a profiler in isend and irecv
//!  8  sizes are ints; no makeVDevice at the end; devices tell less
//! ```

use std::ffi::{c_char, c_int, c_void};

use crate::plugins::logger::Logger;

/// A pointer that the plugin has given, or gets back.
pub(super) type Opaque = *mut c_void;
type Out = *mut Opaque;

pub(super) type Init11 = unsafe extern "C" fn(Out, u64, *mut Config, Logger, Opaque) -> c_int;
pub(super) type Init10 = unsafe extern "C" fn(Logger, Opaque) -> c_int;
pub(super) type Init9 = unsafe extern "C" fn(Logger) -> c_int;
pub(super) type Devices = unsafe extern "C" fn(*mut c_int) -> c_int;
pub(super) type GetProperties = unsafe extern "C" fn(c_int, Opaque) -> c_int;
pub(super) type Listen11 = unsafe extern "C" fn(Opaque, c_int, Opaque, Out) -> c_int;
pub(super) type Listen8 = unsafe extern "C" fn(c_int, Opaque, Out) -> c_int;
pub(super) type Connect11 = unsafe extern "C" fn(Opaque, c_int, Opaque, Out, Out) -> c_int;
pub(super) type Connect10 = unsafe extern "C" fn(c_int, *mut Config, Opaque, Out, Out) -> c_int;
pub(super) type Connect8 = unsafe extern "C" fn(c_int, Opaque, Out, Out) -> c_int;
pub(super) type Accept = unsafe extern "C" fn(Opaque, Out, Out) -> c_int;
pub(super) type Register = unsafe extern "C" fn(Opaque, Opaque, usize, c_int, Out) -> c_int;
pub(super) type OnComm = unsafe extern "C" fn(Opaque, Opaque) -> c_int;
pub(super) type Send10 = unsafe extern "C" fn(Opaque, Opaque, usize, c_int, Opaque, Opaque, Out) -> c_int;
pub(super) type Send9 = unsafe extern "C" fn(Opaque, Opaque, usize, c_int, Opaque, Out) -> c_int;
pub(super) type Send8 = unsafe extern "C" fn(Opaque, Opaque, c_int, c_int, Opaque, Out) -> c_int;
pub(super) type Receive10 =
    unsafe extern "C" fn(Opaque, c_int, Out, *mut usize, *mut c_int, Out, Out, Out) -> c_int;
pub(super) type Receive9 =
    unsafe extern "C" fn(Opaque, c_int, Out, *mut usize, *mut c_int, Out, Out) -> c_int;
pub(super) type Receive8 =
    unsafe extern "C" fn(Opaque, c_int, Out, *mut c_int, *mut c_int, Out, Out) -> c_int;
pub(super) type Flush = unsafe extern "C" fn(Opaque, c_int, Out, *mut c_int, Out, Out) -> c_int;
pub(super) type Test = unsafe extern "C" fn(Opaque, *mut c_int, *mut c_int) -> c_int;
pub(super) type Close = unsafe extern "C" fn(Opaque) -> c_int;

/// What all versions have, in this order; some functions are of other types in each. Those that are not used have no type.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Table<I, L, C, S, R> {
    pub(super) name: *const c_char,
    pub(super) init: Option<I>,
    pub(super) devices: Option<Devices>,
    pub(super) get_properties: Option<GetProperties>,
    pub(super) listen: Option<L>,
    pub(super) connect: Option<C>,
    pub(super) accept: Option<Accept>,
    pub(super) register: Option<Register>,
    _register_buffer: Opaque,
    pub(super) deregister: Option<OnComm>,
    pub(super) send: Option<S>,
    pub(super) receive: Option<R>,
    pub(super) flush: Option<Flush>,
    pub(super) test: Option<Test>,
    pub(super) close_send: Option<Close>,
    pub(super) close_receive: Option<Close>,
    pub(super) close_listen: Option<Close>,
    _get_device_registration: Opaque,
    _consumed: Opaque,
}

/// Versions 11 and 12, as far as they are used.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Table11 {
    pub(super) table: Table<Init11, Listen11, Connect11, Send10, Receive10>,
    _make_device: Opaque,
    pub(super) finalize: Option<Close>,
}

pub(super) type Table10 = Table<Init10, Listen8, Connect10, Send10, Receive10>;
pub(super) type Table9 = Table<Init9, Listen8, Connect8, Send9, Receive9>;
pub(super) type Table8 = Table<Init9, Listen8, Connect8, Send8, Receive8>;

/// How a communicator wants its connections.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Config {
    /// -1 leaves it to the plugin.
    pub(super) traffic_class: c_int,
}

/// What devices are like, in versions 9 to 12; these differ in `END`, and in how many devices one may be made of.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Properties<const PARTS: usize, END> {
    pub(super) name: *mut c_char,
    _pci_path: *mut c_char,
    _guid: u64,
    pub(super) pointer_support: c_int,
    _registration_is_global: c_int,
    pub(super) forces_flush: c_int,
    pub(super) speed: c_int,
    _port: c_int,
    _latency: f32,
    _most_comms: c_int,
    pub(super) most_receives: c_int,
    pub(super) device_type: c_int,
    _device_version: c_int,
    _parts: (c_int, [c_int; PARTS]),
    pub(super) most_bytes: usize,
    _most_collective_bytes: usize,
    _end: END,
}

pub(super) type Properties12 = Properties<8, (c_int, i16, i16)>;
pub(super) type Properties11 = Properties<4, c_int>;
pub(super) type Properties9 = Properties<4, ()>;

/// The same in version 8.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Properties8 {
    pub(super) name: *mut c_char,
    _pci_path: *mut c_char,
    _guid: u64,
    pub(super) pointer_support: c_int,
    _registration_is_global: c_int,
    pub(super) speed: c_int,
    _port: c_int,
    _latency: f32,
    _most_comms: c_int,
    pub(super) most_receives: c_int,
    pub(super) device_type: c_int,
    _device_version: c_int,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn tables_are_as_long_as_their_versions() {
        let word = size_of::<usize>();
        assert_eq!(size_of::<Table8>(), 19 * word);
        assert_eq!(size_of::<Table9>(), 19 * word);
        assert_eq!(size_of::<Table10>(), 19 * word);
        assert_eq!((size_of::<Table11>(), offset_of!(Table11, finalize)), (21 * word, 20 * word));
        assert_eq!(offset_of!(Table8, send), 10 * word);
        assert_eq!(offset_of!(Table8, close_listen), 16 * word);
    }

    /// The offsets of the C structs on machines of 64 bits.
    #[test]
    fn properties_lie_where_c_puts_them() {
        assert_eq!((size_of::<Properties8>(), offset_of!(Properties8, device_type)), (64, 52));
        assert_eq!(offset_of!(Properties9, forces_flush), 32);
        assert_eq!((size_of::<Properties9>(), offset_of!(Properties9, most_bytes)), (104, 88));
        assert_eq!((size_of::<Properties11>(), offset_of!(Properties11, most_bytes)), (112, 88));
        assert_eq!((size_of::<Properties12>(), offset_of!(Properties12, most_bytes)), (128, 104));
    }
}
