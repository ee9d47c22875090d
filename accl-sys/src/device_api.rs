//! The host side of the device interface. There is no device code in host memory: what creates refuses, and teams,
//! which have no way to refuse, describe the communicator.

use std::ffi::{c_int, c_void};

use accl_core::{Error, Result};

use crate::abi::*;
use crate::{config, handle, management};

/// The team of a bad communicator.
const NOBODY: ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };

/// The caller alone: no other rank's memory can be loaded from.
const ALONE: ncclTeam_t = ncclTeam_t { nRanks: 1, rank: 0, stride: 1 };

face! {
    /// Would make the communicator's form that device code reads.
    fn create[ncclDevCommCreate, pncclDevCommCreate](
        comm: ncclComm_t, reqs: *const ncclDevCommRequirements_t, outDevComm: *mut ncclDevComm_t,
    ) {
        handle::communicator(comm)?.check_ready()?;
        handle::required(reqs, "reqs")?;
        handle::required(outDevComm, "outDevComm")?;
        // SAFETY: not NULL, and the header asks for a valid pointer.
        let magic = unsafe { config::head(reqs) }.magic;
        if magic != NCCL_API_MAGIC {
            return Err(Error::argument(format!(
                "the ncclDevCommRequirements_t was not initialized: magic {magic:#x}, needed {NCCL_API_MAGIC:#x}; start \
                 from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER"
            )));
        }
        Err(no_device_code("a device communicator"))
    }

    /// Would free it.
    fn destroy[ncclDevCommDestroy, pncclDevCommDestroy](comm: ncclComm_t, devComm: *const ncclDevComm_t) {
        handle::communicator(comm)?;
        handle::required(devComm, "devComm")?;
        Err(no_device_code("a device communicator"))
    }

    /// All ranks.
    fn world[ncclTeamWorld, pncclTeamWorld](comm: ncclComm_t) -> ncclTeam_t, or NOBODY; {
        everyone(comm)
    }

    /// The ranks whose memory can be loaded from.
    fn lsa[ncclTeamLsa, pncclTeamLsa](comm: ncclComm_t) -> ncclTeam_t, or NOBODY; {
        handle::communicator(comm).map(|_| ALONE)
    }

    /// The ranks on one's rail.
    fn rail[ncclTeamRail, pncclTeamRail](comm: ncclComm_t) -> ncclTeam_t, or NOBODY; {
        everyone(comm)
    }

    /// The ranks that counted transfers reach.
    fn cft[ncclTeamCft, pncclTeamCft](comm: ncclComm_t, _mode: ncclCftTeamMode_t) -> ncclTeam_t, or NOBODY; {
        handle::communicator(comm).map(|_| ALONE)
    }

    /// The ranks that counted transfers reach at once.
    fn cft_multimem[ncclTeamCftMultimem, pncclTeamCftMultimem](comm: ncclComm_t) -> ncclTeam_t, or NOBODY; {
        handle::communicator(comm).map(|_| ALONE)
    }

    /// A team's rank as a rank of the communicator; -1 for a bad communicator.
    fn to_world[ncclTeamRankToWorld, pncclTeamRankToWorld](
        comm: ncclComm_t, team: ncclTeam_t, rank: c_int,
    ) -> c_int, or -1; {
        Ok(across(everyone(comm)?.rank, team, rank))
    }

    /// A team's rank as a rank of those whose memory can be loaded from; -1 for a bad communicator.
    fn to_lsa[ncclTeamRankToLsa, pncclTeamRankToLsa](
        comm: ncclComm_t, team: ncclTeam_t, rank: c_int,
    ) -> c_int, or -1; {
        handle::communicator(comm).map(|_| across(ALONE.rank, team, rank))
    }

    /// Would ask for barriers among ranks whose memory can be loaded from.
    fn lsa_barrier[ncclLsaBarrierCreateRequirement, pncclLsaBarrierCreateRequirement](
        _team: ncclTeam_t, _nBarriers: c_int, outHandle: *mut ncclLsaBarrierHandle_t,
        outReq: *mut ncclDevResourceRequirements_t,
    ) {
        requirement(outHandle.cast(), outReq)
    }

    /// Would ask for barriers over the network.
    fn gin_barrier[ncclGinBarrierCreateRequirement, pncclGinBarrierCreateRequirement](
        comm: ncclComm_t, _team: ncclTeam_t, _nBarriers: c_int,
        outHandle: *mut ncclGinBarrierHandle_t, outReq: *mut ncclDevResourceRequirements_t,
    ) {
        handle::communicator(comm)?;
        requirement(outHandle.cast(), outReq)
    }

    /// Slots of an exchange of small messages: none can be had.
    fn exchange_slots[ncclLLA2ACalcSlots, pncclLLA2ACalcSlots](
        _maxElts: c_int, _maxEltSize: c_int,
    ) -> c_int, or 0; {
        Ok(0)
    }

    /// Would ask for such an exchange.
    fn exchange[ncclLLA2ACreateRequirement, pncclLLA2ACreateRequirement](
        _nBlocks: c_int, _nSlots: c_int, outHandle: *mut ncclLLA2AHandle_t,
        outReq: *mut ncclDevResourceRequirements_t,
    ) {
        requirement(outHandle.cast(), outReq)
    }

    /// Would ask for an outbox.
    fn outbox[ncclGinOutboxCreateRequirement, pncclGinOutboxCreateRequirement](
        _nBlocks: c_int, _sizeLog2: c_int, outHandle: *mut ncclGinOutboxHandle_t,
        outReq: *mut ncclDevResourceRequirements_t,
    ) {
        requirement(outHandle.cast(), outReq)
    }

    /// Would ask for an inbox.
    fn inbox[ncclGinInboxA2ACreateRequirement, pncclGinInboxA2ACreateRequirement](
        _peers: ncclTeam_t, _nBlocks: c_int, _sizeLog2: c_int,
        outHandle: *mut ncclGinInboxA2AHandle_t, outReq: *mut ncclDevResourceRequirements_t,
    ) {
        requirement(outHandle.cast(), outReq)
    }
}

fn everyone(comm: ncclComm_t) -> Result<ncclTeam_t> {
    let comm = handle::communicator(comm)?;
    Ok(ncclTeam_t {
        nRanks: management::number(comm.ranks()),
        rank: management::number(comm.rank()),
        stride: 1,
    })
}

/// From the caller's place `own` in another team, as many strides as the two ranks are apart in this one.
fn across(own: c_int, team: ncclTeam_t, rank: c_int) -> c_int {
    own.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride))
}

fn requirement(handle: *const c_void, requirements: *const ncclDevResourceRequirements_t) -> Result<()> {
    handle::required(handle, "outHandle")?;
    handle::required(requirements, "outReq")?;
    Err(no_device_code("a resource of device code"))
}

fn no_device_code(what: &str) -> Error {
    Error::usage(format!(
        "{what} needs device code, and this communicator is in host memory (deviceApiSupport of \
         ncclCommQueryProperties is false); use the calls of the host"
    ))
}
