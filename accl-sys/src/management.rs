//! The life of communicators, and what they say about themselves.

use std::ffi::c_int;

use accl_core::bootstrap::UniqueId;
use accl_core::comm::{ChildDone, CommConfig, Communicator};
use accl_core::telemetry::log;
use accl_core::types::Face;
use accl_core::{Error, ErrorKind, Result};

use crate::abi::*;
use crate::handle::Out;
use crate::plugins;
use crate::slab::{Slot, State};
use crate::{config, error, handle};

face! {
    /// The level of NCCL whose surface is complete here.
    fn version[ncclGetVersion, pncclGetVersion](version: *mut c_int) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { tell_version(Face::Nccl, version) }
    }

    /// Makes the name of a new communicator.
    fn unique_id[ncclGetUniqueId, pncclGetUniqueId](uniqueId: *mut ncclUniqueId) {
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(uniqueId, "uniqueId") }?;
        out.set(ncclUniqueId { internal: UniqueId::create()?.0.map(u8::cast_signed) });
        Ok(())
    }

    /// Joins a communicator.
    fn init_rank[ncclCommInitRank, pncclCommInitRank](
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
    ) {
        // SAFETY: the header asks for a valid pointer; no configuration is given.
        unsafe { init(Face::Nccl, comm, nranks, &[id(&commId)], rank, std::ptr::null(), Ok) }
    }

    /// Joins a communicator, with a configuration.
    fn init_rank_config[ncclCommInitRankConfig, pncclCommInitRankConfig](
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
        config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for valid pointers.
        unsafe { init(Face::Nccl, comm, nranks, &[id(&commId)], rank, config, Ok) }
    }

    /// Joins a communicator of host memory.
    fn init_rank_host[acclCommInitRankHost](
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
        config: *mut ncclConfig_t, limit_ms: i64,
    ) {
        let init_limit = handle::limit(limit_ms);
        // SAFETY: the header asks for valid pointers.
        unsafe {
            init(Face::Nccl, comm, nranks, &[id(&commId)], rank, config, |config| {
                Ok(CommConfig { in_host_memory: true, init_limit: init_limit?, ..config })
            })
        }
    }

    /// Joins a communicator that has several names.
    fn init_rank_scalable[ncclCommInitRankScalable, pncclCommInitRankScalable](
        newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int,
        commIds: *mut ncclUniqueId, config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for valid pointers, and for nId ids.
        unsafe { init_scalable(Face::Nccl, newcomm, nranks, myrank, nId, commIds, config) }
    }

    /// Makes all ranks of a communicator in this process.
    fn init_all[ncclCommInitAll, pncclCommInitAll](
        comms: *mut ncclComm_t, ndev: c_int, devlist: *const c_int,
    ) {
        // SAFETY: the header asks for ndev handles and, if any, ndev numbers.
        unsafe { init_all_of(Face::Nccl, comms, ndev, devlist) }
    }

    /// Groups of ranks become communicators of their own.
    fn split[ncclCommSplit, pncclCommSplit](
        comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) {
        // SAFETY: the header asks for valid pointers, newcomm until the parent is through.
        unsafe { split_from(Face::Nccl, comm, color, key, newcomm, config) }
    }

    /// Completes what was started.
    fn finalize[ncclCommFinalize, pncclCommFinalize](comm: ncclComm_t) {
        if comm.is_null() { Ok(()) } else { handle::communicator(comm)?.finalize() }
    }

    /// Completes what was started, and frees.
    fn destroy[ncclCommDestroy, pncclCommDestroy](comm: ncclComm_t) {
        if comm.is_null() {
            return Ok(());
        }
        let entered = handle::communicator(comm)?;
        entered.check_process()?;
        // The handle is freed whatever comes out: programs destroy once. What could not be completed is aborted,
        // so that no other call stays inside for ever.
        let result = entered.destroy();
        if result.as_ref().is_err_and(|error| error.kind() != ErrorKind::InProgress) {
            drop(entered.abort());
        }
        plugins::forget(&entered);
        drop(entered.close(State::Destroyed));
        result
    }

    /// Wakes whoever waits on the communicator, and frees it.
    fn abort[ncclCommAbort, pncclCommAbort](comm: ncclComm_t) {
        if comm.is_null() {
            return Ok(());
        }
        let entered = handle::communicator(comm)?;
        entered.check_process()?;
        let result = entered.abort();
        plugins::forget(&entered);
        drop(entered.close(State::Aborted));
        result
    }

    /// What has become of the communicator.
    fn async_error[ncclCommGetAsyncError, pncclCommGetAsyncError](
        comm: ncclComm_t, asyncError: *mut ncclResult_t,
    ) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { tell_async_error("ncclCommGetAsyncError", comm, asyncError) }
    }

    /// Bytes of memory in use, and whether it is suspended.
    fn memory_statistics[ncclCommMemStats, pncclCommMemStats](
        comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64,
    ) {
        let comm = handle::communicator(comm)?;
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(value, "value") }?;
        out.set(match stat {
            ncclStatGpuMemSuspend => comm.memory_use()?.idle_bytes,
            ncclStatGpuMemSuspended => comm.is_suspended().into(),
            ncclStatGpuMemPersist => {
                let used = comm.memory_use()?;
                used.total_bytes - used.idle_bytes
            }
            ncclStatGpuMemTotal => comm.memory_use()?.total_bytes,
            _ => {
                return Err(Error::argument(format!(
                    "stat {} is unknown; pass one of ncclCommMemStat_t, 0 to 3",
                    stat.cast_signed()
                )));
            }
        });
        Ok(())
    }

    /// Number of ranks.
    fn count[ncclCommCount, pncclCommCount](comm: ncclComm_t, count: *mut c_int) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { tell(comm, count, "count", |comm| Ok(number(comm.ranks()))) }
    }

    /// Number of the device, -1 in host memory.
    fn device[ncclCommCuDevice, pncclCommCuDevice](comm: ncclComm_t, device: *mut c_int) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { tell(comm, device, "device", |comm| Ok(comm.device())) }
    }

    /// The caller's rank.
    fn user_rank[ncclCommUserRank, pncclCommUserRank](comm: ncclComm_t, rank: *mut c_int) {
        // SAFETY: the header asks for a valid pointer.
        unsafe { tell(comm, rank, "rank", |comm| Ok(number(comm.rank()))) }
    }

    /// Has the settings of the log read anew.
    fn reset_debug[ncclResetDebugInit, pncclResetDebugInit]() -> (), or (); {
        log::reset();
        Ok(())
    }
}

/// # Safety
/// `version` is NULL or writable.
pub unsafe fn tell_version(face: Face, version: *mut c_int) -> Result<()> {
    // The text stands in the file only as long as something uses it.
    std::hint::black_box(face.version_text().as_ptr());
    // SAFETY: promised.
    unsafe { Out::new(version, "version") }?.set(face.version_code());
    Ok(())
}

/// `function` is what the program has called.
///
/// # Safety
/// `out` is NULL or writable.
pub unsafe fn tell_async_error(function: &str, comm: ncclComm_t, out: *mut ncclResult_t) -> Result<()> {
    let comm = handle::communicator(comm)?;
    // SAFETY: promised.
    let out = unsafe { Out::new(out, "asyncError") }?;
    // The text goes where a program that sees a failure looks for it.
    let state = comm.async_state();
    out.set(state.map_or_else(|error| error::note(function, &error), |()| ncclSuccess));
    Ok(())
}

/// # Safety
/// As for [`init`]; `ids` is NULL or holds `count` ids.
pub unsafe fn init_scalable(
    face: Face,
    newcomm: *mut ncclComm_t,
    ranks: c_int,
    rank: c_int,
    count: c_int,
    ids: *const ncclUniqueId,
    config: *const ncclConfig_t,
) -> Result<()> {
    handle::grouped(|| {
        // SAFETY: promised.
        unsafe { Out::new(newcomm, "newcomm") }?.set(std::ptr::null_mut());
        handle::required(ids, "commIds")?;
        if count < 1 || count > ranks {
            return Err(Error::argument(format!(
                "nId is {count} with {ranks} ranks; pass 1 to the number of ranks"
            )));
        }
        Ok(())
    })?;
    // SAFETY: promised, and not NULL. Their alignment is 1.
    let ids = unsafe { std::slice::from_raw_parts(ids, count.cast_unsigned() as usize) };
    let ids: Vec<_> = ids.iter().map(id).collect();
    // SAFETY: promised.
    unsafe { init(face, newcomm, ranks, &ids, rank, config, Ok) }
}

/// # Safety
/// `newcomm` is NULL or writable until the parent is through; `config` as for [`config::for_init`].
pub unsafe fn split_from(
    face: Face,
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
) -> Result<()> {
    let make = |parent: &Communicator, out| {
        // SAFETY: promised.
        let config = unsafe { config::for_child(face, config) }?;
        // -1 alone means "no communicator"; other negative colors are colors, as in NCCL.
        let color = (color != NCCL_SPLIT_NOCOLOR).then_some(color.cast_unsigned());
        parent.split(color, key, config, publish(out)?)
    };
    // SAFETY: promised.
    unsafe { derive(comm, newcomm, make) }
}

/// A call that makes a communicator out of `comm`, and puts it at `newcomm`, which is NULL until then.
///
/// # Safety
/// `newcomm` is NULL or writable until the parent is through.
pub(crate) unsafe fn derive(
    comm: ncclComm_t,
    newcomm: *mut ncclComm_t,
    make: impl FnOnce(&Communicator, Out<ncclComm_t>) -> Result<()>,
) -> Result<()> {
    let parent = handle::communicator(comm)?;
    handle::recorded(&parent, || {
        // SAFETY: promised.
        let out = unsafe { Out::new(newcomm, "newcomm") }?;
        out.set(std::ptr::null_mut());
        parent.check_process()?;
        parent.check_ready()?;
        make(&parent, out)
    })
}

/// Ranks came in as C integers, so they fit one.
pub(crate) fn number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

pub fn id(id: &ncclUniqueId) -> UniqueId {
    UniqueId(id.internal.map(i8::cast_unsigned))
}

/// # Safety
/// `out` is NULL or writable.
unsafe fn tell(
    comm: ncclComm_t,
    out: *mut c_int,
    what: &str,
    value: impl FnOnce(&Communicator) -> Result<c_int>,
) -> Result<()> {
    let comm = handle::communicator(comm)?;
    // SAFETY: promised.
    let out = unsafe { Out::new(out, what) }?;
    comm.check_ready()?;
    out.set(value(&comm)?);
    Ok(())
}

/// # Safety
/// `out` is NULL or writable until the communicator has been made; `config` as for [`config::for_init`].
pub unsafe fn init(
    face: Face,
    out: *mut ncclComm_t,
    ranks: c_int,
    ids: &[UniqueId],
    rank: c_int,
    config: *const ncclConfig_t,
    adapt: impl FnOnce(CommConfig) -> Result<CommConfig>,
) -> Result<()> {
    handle::grouped(|| {
        // SAFETY: promised.
        let out = unsafe { Out::new(out, "comm") }?;
        out.set(std::ptr::null_mut());
        let (ranks, rank) = place(ranks, rank)?;
        // SAFETY: promised.
        let config = unsafe { config::for_init(face, config) }?;
        join(out, ids, ranks, rank, adapt(config)?)
    })
}

pub(crate) fn place(ranks: c_int, rank: c_int) -> Result<(usize, usize)> {
    match (usize::try_from(ranks), usize::try_from(rank)) {
        (Ok(ranks), Ok(rank)) if rank < ranks => Ok((ranks, rank)),
        _ => Err(Error::argument(format!(
            "rank {rank} of {ranks} ranks; the number of ranks must be at least 1, and a rank below it and not negative"
        ))),
    }
}

pub(crate) fn join(
    out: Out<ncclComm_t>,
    ids: &[UniqueId],
    ranks: usize,
    rank: usize,
    config: CommConfig,
) -> Result<()> {
    let blocking = config.blocking;
    let slot = handle::communicators()?.reserve()?;
    let promised = slot.handle().addr();
    // Joining inside a group fails at the group's end, after the handle has been given out.
    let failed = Box::new(move || {
        out.set(std::ptr::null_mut());
        discard(std::ptr::without_provenance_mut(promised));
    });
    let comm = Communicator::init(ids, ranks, rank, config, Some(failed))?;
    let state = if blocking { Ok(()) } else { comm.async_state() };
    out.set(slot.publish(comm).cast());
    match state {
        Err(error) if error.kind() == ErrorKind::InProgress => Err(error),
        // A failure in the background is for ncclCommGetAsyncError to tell: the handle is valid.
        _ => Ok(()),
    }
}

/// Gives a new communicator's handle out when it has been made of another one.
pub(crate) fn publish(out: Out<ncclComm_t>) -> Result<ChildDone> {
    let slot = handle::communicators()?.reserve()?;
    Ok(Box::new(move |child| {
        if let Some(child) = child {
            out.set(slot.publish(child).cast());
        }
    }))
}

/// Frees a handle whose communicator never came to be.
fn discard(comm: ncclComm_t) {
    if let Ok(entered) = handle::communicator(comm) {
        drop(entered.close(State::Destroyed));
    }
}

/// # Safety
/// `comms` is NULL or `ndev` writable handles, `devlist` NULL or `ndev` readable numbers.
pub unsafe fn init_all_of(
    face: Face,
    comms: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> Result<()> {
    handle::grouped(|| {
        // SAFETY: promised.
        unsafe { join_all(face, comms, ndev, devlist) }
    })
}

/// # Safety
/// As for [`init_all_of`].
unsafe fn join_all(face: Face, comms: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> Result<()> {
    handle::required(comms, "comms")?;
    let Ok(ranks) = usize::try_from(ndev) else {
        return Err(Error::argument(format!("ndev is {ndev}; pass the number of ranks")));
    };
    if ranks == 0 {
        return Ok(());
    }
    // SAFETY: promised.
    let read = |rank| unsafe { devlist.add(rank).read_unaligned() };
    let listed: Option<Vec<c_int>> = (!devlist.is_null()).then(|| (0..ranks).map(read).collect());
    if let Some(mut devices) = listed.clone() {
        devices.sort_unstable();
        if let Some(negative) = devices.first().filter(|device| **device < 0) {
            return Err(Error::argument(format!(
                "devlist holds {negative}; device numbers start at 0; pass those, or NULL"
            )));
        }
        if let Some(pair) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            let text = format!("devlist holds {} twice; one rank per device is allowed", pair[0]);
            return Err(Error::usage(text));
        }
    }
    let slab = handle::communicators()?;
    let slots: Vec<Slot<'_, _>> = (0..ranks).map(|_| slab.reserve()).collect::<Result<_>>()?;
    crate::plugins::offer_networks();
    let joined =
        Communicator::init_all(ranks, listed.as_deref(), &CommConfig { face, ..CommConfig::default() })?;
    for (rank, (slot, comm)) in slots.into_iter().zip(joined).enumerate() {
        // SAFETY: promised.
        unsafe { comms.add(rank).write_unaligned(slot.publish(comm).cast()) };
    }
    Ok(())
}
