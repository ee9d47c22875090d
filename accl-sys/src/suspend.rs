//! Giving memory back for a while.

use std::ffi::c_int;

use accl_core::Error;

use crate::abi::*;
use crate::handle;

face! {
    /// Gives memory back in which data goes from rank to rank. All ranks call.
    fn suspend[ncclCommSuspend, pncclCommSuspend](comm: ncclComm_t, flags: c_int) {
        let comm = handle::communicator(comm)?;
        comm.check_ready()?;
        if flags != NCCL_SUSPEND_MEM.cast_signed() {
            return Err(Error::argument(format!("flags is {flags}; pass NCCL_SUSPEND_MEM")));
        }
        comm.suspend()
    }

    /// Takes it again. All ranks call.
    fn resume[ncclCommResume, pncclCommResume](comm: ncclComm_t) {
        handle::communicator(comm)?.resume()
    }
}
