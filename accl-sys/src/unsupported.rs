//! Management calls that are not there yet. Each checks its arguments as it will when it is, then refuses.

use std::ffi::c_int;

use accl_core::Error;

use crate::abi::*;
use crate::handle;

face! {
    /// Would give device memory back for a while.
    fn suspend[ncclCommSuspend, pncclCommSuspend](comm: ncclComm_t, flags: c_int) {
        let comm = handle::communicator(comm)?;
        comm.check_ready()?;
        if flags != NCCL_SUSPEND_MEM.cast_signed() {
            return Err(Error::argument(format!("flags is {flags}; pass NCCL_SUSPEND_MEM")));
        }
        Err(not_yet("ncclCommSuspend", "in host memory there is no device memory to give back"))
    }

    /// Would take it again.
    fn resume[ncclCommResume, pncclCommResume](comm: ncclComm_t) {
        handle::communicator(comm)?.check_ready()?;
        Err(not_yet("ncclCommResume", "no communicator is suspended"))
    }
}

/// The answer of what is not there yet. `instead` says what to do.
pub(crate) fn not_yet(function: &str, instead: &str) -> Error {
    Error::usage(format!("{function} is not supported yet; {instead}"))
}
