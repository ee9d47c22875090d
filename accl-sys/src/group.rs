//! Groups of calls.

use accl_core::comm::group;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::config;
use crate::plugins::profiler;

face! {
    /// Opens a group in this thread.
    fn start[ncclGroupStart, pncclGroupStart]() {
        group::start();
        Ok(())
    }

    /// Closes the group, and at the outermost end runs it.
    fn end[ncclGroupEnd, pncclGroupEnd]() {
        end_of_group()
    }

    /// Closes the group without running it, and says how long it would take, unless `simInfo` is NULL.
    fn simulate_end[ncclGroupSimulateEnd, pncclGroupSimulateEnd](simInfo: *mut ncclSimInfo_t) {
        if simInfo.is_null() {
            return end_of_group();
        }
        // SAFETY: the header asks for a valid pointer or NULL.
        check(unsafe { config::head(simInfo) }).map_err(drop_group)?;
        if let Some(ns) = profiler::around_end(group::simulate)? {
            // SAFETY: as long as its size says, which has just been checked.
            let estimate = unsafe { &raw mut (*simInfo).estimatedTime };
            // SAFETY: the same. Alignment is not asked for.
            unsafe { estimate.write_unaligned((ns / 1000.0) as f32) };
        }
        Ok(())
    }
}

/// Refuses a struct that was not initialized, or has no room for the answer.
fn check(head: config::Head) -> Result<()> {
    const NEEDED_BYTES: usize = std::mem::offset_of!(ncclSimInfo_t, estimatedTime) + size_of::<f32>();
    let config::Head { size, magic, .. } = head;
    if magic == NCCL_SIM_INFO_MAGIC && size >= NEEDED_BYTES {
        return Ok(());
    }
    Err(Error::argument(format!(
        "the ncclSimInfo_t was not initialized: magic {magic:#x} and size {size}, needed {NCCL_SIM_INFO_MAGIC:#x} and at least \
         {NEEDED_BYTES}; start from NCCL_SIM_INFO_INITIALIZER. The group was dropped"
    )))
}

/// Ends the group so that nothing of it runs, and returns what it failed with: the given error, unless there was no group.
fn drop_group(error: Error) -> Error {
    group::fail(&error);
    end_of_group().err().unwrap_or(error)
}

fn end_of_group() -> Result<()> {
    profiler::around_end(group::end)
}
