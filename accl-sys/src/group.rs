//! Groups of calls.

use accl_core::comm::group;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::config;

face! {
    /// Opens a group in this thread.
    fn start[ncclGroupStart, pncclGroupStart]() {
        group::start();
        Ok(())
    }

    /// Closes the group, and at the outermost end runs it.
    fn end[ncclGroupEnd, pncclGroupEnd]() {
        group::end()
    }

    /// Closes the group without running it, unless `simInfo` is NULL.
    fn simulate_end[ncclGroupSimulateEnd, pncclGroupSimulateEnd](simInfo: *mut ncclSimInfo_t) {
        if simInfo.is_null() {
            return group::end();
        }
        // SAFETY: the header asks for a valid pointer or NULL.
        let magic = unsafe { config::head(simInfo) }.magic;
        drop_group(if magic == NCCL_SIM_INFO_MAGIC {
            Error::usage("the time of a group cannot be estimated yet, and the group was dropped; end it with ncclGroupEnd")
        } else {
            Error::argument(format!(
                "the ncclSimInfo_t was not initialized: magic {magic:#x}, needed {NCCL_SIM_INFO_MAGIC:#x}; start from \
                 NCCL_SIM_INFO_INITIALIZER. The group was dropped"
            ))
        })
    }
}

/// Ends the group so that nothing of it runs.
fn drop_group(error: Error) -> Result<()> {
    group::fail(&error);
    // Only a group that was never started can have another error than ours.
    group::end()?;
    Err(error)
}
