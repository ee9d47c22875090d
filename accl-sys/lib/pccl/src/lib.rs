//! The shared library `libpccl.so.2`: what accl_sys exports, and the functions of `include/pccl.h`.
//!
//! They have the bodies of their namesakes; those that begin a communicator, or tell a code, also say by whose names
//! the program calls. Types are those of `accl_sys::abi`, of which `tests/c/pccl.c` holds the header's to be copies.

// Names are those of the C interface, and so is the number of their arguments.
#![allow(non_snake_case, non_upper_case_globals, clippy::too_many_arguments)]

pub mod variables;

use std::ffi::{CStr, c_char, c_int, c_void};

use accl_core::Result;
use accl_core::types::Face;
use accl_sys::abi::*;
use accl_sys::{
    collectives, error, face, group, management, memory, point_to_point, reduce_op, regroup, windows,
};

/// Functions that do what a body of accl_sys does, with the same arguments.
macro_rules! same {
    ($(fn $name:ident[$export:ident] = $body:path, ($($arg:ident: $kind:ty),* $(,)?);)*) => { $(
        face! {
            /// As its namesake of the other face.
            fn $name[$export]($($arg: $kind),*) {
                // SAFETY: both headers ask for the same.
                unsafe { $body($($arg),*) }
            }
        }
    )* };
}

same! {
    fn unique_id[pcclGetUniqueId] = management::unique_id, (uniqueId: *mut ncclUniqueId);
    fn finalize[pcclCommFinalize] = management::finalize, (comm: ncclComm_t);
    fn destroy[pcclCommDestroy] = management::destroy, (comm: ncclComm_t);
    fn abort[pcclCommAbort] = management::abort, (comm: ncclComm_t);
    fn count[pcclCommCount] = management::count, (comm: ncclComm_t, count: *mut c_int);
    fn device[pcclCommCuDevice] = management::device, (comm: ncclComm_t, device: *mut c_int);
    fn user_rank[pcclCommUserRank] = management::user_rank, (comm: ncclComm_t, rank: *mut c_int);

    fn allocate[pcclMemAlloc] = memory::allocate, (ptr: *mut *mut c_void, size: usize);
    fn free[pcclMemFree] = memory::free, (ptr: *mut c_void);
    fn register[pcclCommRegister] = memory::register, (
        comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void,
    );
    fn deregister[pcclCommDeregister] = memory::deregister, (comm: ncclComm_t, handle: *mut c_void);
    fn window_register[pcclCommWindowRegister] = windows::window_register, (
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int,
    );
    fn window_deregister[pcclCommWindowDeregister] = windows::window_deregister, (
        comm: ncclComm_t, win: ncclWindow_t,
    );

    fn all_reduce[pcclAllReduce] = collectives::all_reduce, (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t,
    );
    fn reduce[pcclReduce] = collectives::reduce, (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    );
    fn broadcast[pcclBroadcast] = collectives::broadcast, (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    );
    fn bcast[pcclBcast] = collectives::bcast, (
        buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    );
    fn all_gather[pcclAllGather] = collectives::all_gather, (
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t,
    );
    fn reduce_scatter[pcclReduceScatter] = collectives::reduce_scatter, (
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t,
    );
    fn all_to_all[pcclAlltoAll] = collectives::all_to_all, (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t,
    );
    fn gather[pcclGather] = collectives::gather, (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    );
    fn scatter[pcclScatter] = collectives::scatter, (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    );
    fn send[pcclSend] = point_to_point::send, (
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    );
    fn recv[pcclRecv] = point_to_point::recv, (
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    );

    fn group_start[pcclGroupStart] = group::start, ();
    fn group_end[pcclGroupEnd] = group::end, ();
    fn create_pre_mul_sum[pcclRedOpCreatePreMulSum] = reduce_op::create_pre_mul_sum, (
        op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t,
        residence: ncclScalarResidence_t, comm: ncclComm_t,
    );
    fn destroy_operator[pcclRedOpDestroy] = reduce_op::destroy_operator, (op: ncclRedOp_t, comm: ncclComm_t);
}

face! {
    /// The level of PCCL whose functions are here.
    fn version[pcclGetVersion](version: *mut c_int) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { management::tell_version(Face::Pccl, version) }
    }

    /// Joins a communicator.
    fn init_rank[pcclCommInitRank](
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
    ) {
        // SAFETY: the header asks for a valid pointer; no configuration is given.
        unsafe { init(comm, nranks, &commId, rank, std::ptr::null()) }
    }

    /// Joins a communicator, with a configuration.
    fn init_rank_config[pcclCommInitRankConfig](
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for valid pointers.
        unsafe { init(comm, nranks, &commId, rank, config) }
    }

    /// Joins a communicator that has several names.
    fn init_rank_scalable[pcclCommInitRankScalable](
        newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for valid pointers, and for nId ids.
        unsafe { management::init_scalable(Face::Pccl, newcomm, nranks, myrank, nId, commIds, config) }
    }

    /// Makes all ranks of a communicator in this process.
    fn init_all[pcclCommInitAll](comms: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) {
        // SAFETY: the header asks for ndev handles and, if any, ndev numbers.
        unsafe { management::init_all_of(Face::Pccl, comms, ndev, devlist) }
    }

    /// Groups of ranks become communicators of their own.
    fn split[pcclCommSplit](
        comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for valid pointers, newcomm until the parent is through.
        unsafe { management::split_from(Face::Pccl, comm, color, key, newcomm, config) }
    }

    /// The ranks that are not excluded become a communicator.
    fn shrink[pcclCommShrink](
        comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t, shrinkFlags: c_int,
    ) {
        let excluded = (excludeRanksList, excludeRanksCount);
        // SAFETY: the header asks for valid pointers, newcomm until the parent is through.
        unsafe { regroup::shrink_from(Face::Pccl, comm, excluded, newcomm, config, shrinkFlags) }
    }

    /// What has become of the communicator.
    fn async_error[pcclCommGetAsyncError](comm: ncclComm_t, asyncError: *mut ncclResult_t) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { management::tell_async_error("pcclCommGetAsyncError", comm, asyncError) }
    }

    /// A short fixed text for a code.
    fn error_string[pcclGetErrorString](result: ncclResult_t) -> *const c_char, or UNKNOWN.as_ptr(); {
        Ok(text_of(result).as_ptr())
    }

    /// The sentence of the last failure in this process; valid until this thread asks again.
    fn last_error[pcclGetLastError](comm: ncclComm_t) -> *const c_char, or c"".as_ptr(); {
        // SAFETY: any handle will do.
        unsafe { error::last_error(comm) }
    }
}

/// # Safety
/// As for [`management::init`].
unsafe fn init(
    comm: *mut ncclComm_t,
    ranks: c_int,
    id: &ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result<()> {
    // SAFETY: promised.
    unsafe { management::init(Face::Pccl, comm, ranks, &[management::id(id)], rank, config, Ok) }
}

const UNKNOWN: &CStr = c"unknown result code";

/// NCCL's texts by PCCL's names; its own are not public.
fn text_of(result: ncclResult_t) -> &'static CStr {
    match result {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => c"unhandled hggc error (run with PCCL_DEBUG=INFO for details)",
        ncclSystemError => c"unhandled system error (run with PCCL_DEBUG=INFO for details)",
        ncclInternalError => c"internal error",
        ncclInvalidArgument => c"invalid argument (run with PCCL_DEBUG=WARN for details)",
        ncclInvalidUsage => c"invalid usage (run with PCCL_DEBUG=WARN for details)",
        ncclRemoteError => c"remote process exited or there was a network error",
        ncclInProgress => c"PCCL operation in progress",
        _ => UNKNOWN,
    }
}
