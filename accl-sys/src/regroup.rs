//! Communicators made of one that has lost ranks, or is to have more.

use std::ffi::c_int;

use accl_core::comm::Communicator;
use accl_core::types::Face;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle::{self, Out};
use crate::{config, management};

face! {
    /// The ranks that are not excluded become a communicator. Sorts the caller's list, as NCCL does.
    fn shrink[ncclCommShrink, pncclCommShrink](
        comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t, shrinkFlags: c_int,
    ) {
        // SAFETY: the header asks for valid pointers, newcomm until the parent is through.
        unsafe { shrink_from(Face::Nccl, comm, (excludeRanksList, excludeRanksCount), newcomm, config, shrinkFlags) }
    }

    /// The id by which new ranks join a communicator that grows.
    fn grow_id[ncclCommGetUniqueId, pncclCommGetUniqueId](comm: ncclComm_t, uniqueId: *mut ncclUniqueId) {
        let comm = handle::communicator(comm)?;
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(uniqueId, "uniqueId") }?;
        comm.check_process()?;
        comm.check_ready()?;
        out.set(ncclUniqueId { internal: comm.invite()?.0.map(u8::cast_signed) });
        Ok(())
    }

    /// The ranks, and new ones, become a communicator.
    fn grow[ncclCommGrow, pncclCommGrow](
        comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for an id or NULL.
        let id = unsafe { uniqueId.as_ref() }.map(management::id);
        if comm.is_null() {
            return handle::grouped(|| {
                // SAFETY: the header asks for a pointer that is valid until the communicator has been made.
                let out = unsafe { Out::new(newcomm, "newcomm") }?;
                out.set(std::ptr::null_mut());
                let id = id.ok_or_else(|| {
                    Error::argument("uniqueId is NULL; a new rank needs the id that a rank got by ncclCommGetUniqueId")
                })?;
                let (ranks, rank) = management::place(nRanks, rank)?;
                // SAFETY: the header asks for a valid pointer or NULL.
                let config = unsafe { config::for_init(Face::Nccl, config) }?;
                management::join(out, &[id], ranks, rank, config)
            });
        }
        let make = |parent: &Communicator, out| {
            let ranks = usize::try_from(nRanks).ok().filter(|ranks| *ranks > parent.ranks());
            let ranks = ranks.ok_or_else(|| {
                Error::argument(format!("nRanks is {nRanks} and there are {} already; pass more", parent.ranks()))
            })?;
            if rank != -1 {
                return Err(Error::argument(format!("rank is {rank}; ranks of the parent keep theirs and pass -1")));
            }
            // SAFETY: the header asks for a valid pointer or NULL.
            let config = unsafe { config::for_child(Face::Nccl, config) }?;
            parent.grow(ranks, id, config, management::publish(out)?)
        };
        // SAFETY: the header asks for a pointer that is valid until the parent is through.
        unsafe { management::derive(comm, newcomm, make) }
    }

    /// Ends what is under way, and refuses more.
    fn revoke[ncclCommRevoke, pncclCommRevoke](comm: ncclComm_t, revokeFlags: c_int) {
        if comm.is_null() {
            return Ok(());
        }
        let comm = handle::communicator(comm)?;
        if revokeFlags != NCCL_REVOKE_DEFAULT.cast_signed() {
            return Err(Error::argument(format!("revokeFlags is {revokeFlags}; pass NCCL_REVOKE_DEFAULT")));
        }
        comm.revoke()
    }
}

/// `excluded` is a list of ranks and how many there are.
///
/// # Safety
/// `excluded` is NULL or holds so many ranks, `newcomm` is NULL or writable until the parent is through; `config` as for
/// [`config::for_init`].
pub unsafe fn shrink_from(
    face: Face,
    comm: ncclComm_t,
    excluded: (*mut c_int, c_int),
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
    flags: c_int,
) -> Result<()> {
    let make = |parent: &Communicator, out| {
        // SAFETY: promised.
        let excluded = unsafe { excluded_ranks(parent, excluded.0, excluded.1) }?;
        let abort = match flags.cast_unsigned() {
            NCCL_SHRINK_DEFAULT => false,
            NCCL_SHRINK_ABORT => true,
            _ => {
                return Err(Error::argument(format!(
                    "shrinkFlags is {flags}; pass NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT"
                )));
            }
        };
        // SAFETY: promised.
        let config = unsafe { config::for_child(face, config) }?;
        parent.shrink(&excluded, abort, config, management::publish(out)?)
    };
    // SAFETY: promised.
    unsafe { management::derive(comm, newcomm, make) }
}

/// The excluded ranks, sorted, also where they came from.
///
/// # Safety
/// `list` is NULL or holds `count` ranks, for as long as this runs.
unsafe fn excluded_ranks(parent: &Communicator, list: *mut c_int, count: c_int) -> Result<Vec<usize>> {
    handle::required(list, "excludeRanksList")?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return Err(Error::argument(format!("excludeRanksCount is {count}; exclude at least one rank")));
    };
    // SAFETY: promised; ranks of a caller that aligns nothing are read one by one.
    let mut ranks: Vec<c_int> = (0..count).map(|index| unsafe { list.add(index).read_unaligned() }).collect();
    ranks.sort_unstable();
    for (index, rank) in ranks.iter().enumerate() {
        // SAFETY: promised.
        unsafe { list.add(index).write_unaligned(*rank) };
    }
    let own = management::number(parent.rank());
    if ranks.contains(&own) {
        return Err(Error::argument(format!(
            "the caller, rank {own}, is in excludeRanksList; excluded ranks must not call"
        )));
    }
    ranks.iter().map(|rank| handle::rank(parent, *rank, "a rank in excludeRanksList")).collect()
}
