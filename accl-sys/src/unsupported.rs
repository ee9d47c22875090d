//! Management calls that are not there yet. Each checks its arguments as it will when it is, then refuses.

use std::ffi::c_int;

use accl_core::Error;

use crate::abi::*;
use crate::handle::{self, Out};
use crate::{config, management};

face! {
    /// Would make a communicator without some ranks.
    fn shrink[ncclCommShrink, pncclCommShrink](
        comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t, _shrinkFlags: c_int,
    ) {
        let parent = handle::communicator(comm)?;
        handle::recorded(&parent, || {
            // SAFETY: the header asks for a valid pointer.
            unsafe { Out::new(newcomm, "newcomm") }?.set(std::ptr::null_mut());
            parent.check_ready()?;
            handle::required(excludeRanksList, "excludeRanksList")?;
            let Some(excluded) = usize::try_from(excludeRanksCount).ok().filter(|count| *count > 0) else {
                return Err(Error::argument(format!("excludeRanksCount is {excludeRanksCount}; exclude at least one rank")));
            };
            let own = management::number(parent.rank());
            for index in 0..excluded {
                // SAFETY: the header asks for that many ranks.
                let rank = unsafe { excludeRanksList.add(index).read_unaligned() };
                handle::rank(&parent, rank, "a rank in excludeRanksList")?;
                if rank == own {
                    return Err(Error::argument(format!(
                        "the caller, rank {own}, is in excludeRanksList; excluded ranks must not call"
                    )));
                }
            }
            // SAFETY: the header asks for a valid pointer or NULL.
            unsafe { config::for_child(config) }?;
            Err(not_yet("ncclCommShrink", "make a new communicator with the ranks that remain"))
        })
    }

    /// Would make the name that new ranks join with.
    fn grow_id[ncclCommGetUniqueId, pncclCommGetUniqueId](comm: ncclComm_t, uniqueId: *mut ncclUniqueId) {
        let comm = handle::communicator(comm)?;
        handle::required(uniqueId, "uniqueId")?;
        comm.check_ready()?;
        Err(not_yet("ncclCommGetUniqueId", "make a new communicator with all ranks"))
    }

    /// Would make a communicator with more ranks.
    fn grow[ncclCommGrow, pncclCommGrow](
        comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
    ) {
        handle::grouped(|| {
            // SAFETY: the header asks for a valid pointer.
            unsafe { Out::new(newcomm, "newcomm") }?.set(std::ptr::null_mut());
            if nRanks <= 0 {
                return Err(Error::argument(format!("nRanks is {nRanks}; pass the number of ranks after growing")));
            }
            if comm.is_null() {
                handle::required(uniqueId, "uniqueId")?;
                if !(0..nRanks).contains(&rank) {
                    return Err(Error::argument(format!("new rank {rank} of {nRanks}; pass one of the new numbers")));
                }
            } else {
                let parent = handle::communicator(comm)?;
                parent.check_ready()?;
                let ranks = management::number(parent.ranks());
                if nRanks <= ranks {
                    return Err(Error::argument(format!("nRanks is {nRanks} and there are {ranks} already; pass more")));
                }
                if rank != -1 {
                    return Err(Error::argument(format!("rank is {rank}; ranks of the parent keep theirs and pass -1")));
                }
            }
            // SAFETY: the header asks for a valid pointer or NULL.
            unsafe { config::for_child(config) }?;
            Err(not_yet("ncclCommGrow", "make a new communicator with all ranks"))
        })
    }

    /// Would stop what runs on the communicator and refuse more.
    fn revoke[ncclCommRevoke, pncclCommRevoke](comm: ncclComm_t, revokeFlags: c_int) {
        if comm.is_null() {
            return Ok(());
        }
        handle::communicator(comm)?;
        if revokeFlags != NCCL_REVOKE_DEFAULT.cast_signed() {
            return Err(Error::argument(format!("revokeFlags is {revokeFlags}; pass NCCL_REVOKE_DEFAULT")));
        }
        Err(not_yet("ncclCommRevoke", "use ncclCommAbort"))
    }

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

    /// Would tell the bytes of device memory in use.
    fn memory_statistics[ncclCommMemStats, pncclCommMemStats](
        comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64,
    ) {
        handle::communicator(comm)?.check_ready()?;
        handle::required(value, "value")?;
        if stat > ncclStatGpuMemTotal {
            return Err(Error::argument(format!(
                "stat {} is unknown; pass one of ncclCommMemStat_t, 0 to 3",
                stat.cast_signed()
            )));
        }
        Err(not_yet("ncclCommMemStats", "in host memory there is no device memory to count"))
    }

    /// Would encrypt the library's connections.
    fn encryption[ncclSetEncryption, pncclSetEncryption](config: *const ncclEncryptionConfig_t) {
        handle::required(config, "config")?;
        // SAFETY: not NULL, and the header asks for a valid pointer.
        let magic = unsafe { config::head(config) }.magic;
        if magic != NCCL_API_MAGIC {
            return Err(Error::argument(format!(
                "the ncclEncryptionConfig_t was not initialized: magic {magic:#x}, needed {NCCL_API_MAGIC:#x}"
            )));
        }
        Err(not_yet("ncclSetEncryption", "connections are authenticated, but not encrypted; use a private network"))
    }
}

/// The answer of what is not there yet. `instead` says what to do.
pub(crate) fn not_yet(function: &str, instead: &str) -> Error {
    Error::usage(format!("{function} is not supported yet; {instead}"))
}
