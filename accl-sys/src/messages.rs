//! Messages with tags: the extension of `accl.h`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use accl_core::comm::{Communicator, PostedMessage};
use accl_core::{Error, ErrorKind, Result};

use crate::abi::*;
use crate::handle::{self, Out};
use crate::slab::State;

/// `ACCL_ANY_RANK`
const ANY_RANK: c_int = -1;

face! {
    /// Begins to send `bytes` to `peer`.
    fn isend[acclIsend](
        buffer: *const c_void, bytes: usize, peer: c_int, tag: c_int, comm: ncclComm_t, limit_ms: i64,
        request: *mut acclRequest_t,
    ) {
        begin(comm, tag, limit_ms, request, |comm, tag, limit| {
            let peer = handle::rank(comm, peer, "peer")?;
            comm.send_tagged(handle::buffer(buffer), bytes, peer, tag, limit)
        })
    }

    /// Begins to receive `bytes` from `peer`, or from any rank.
    fn irecv[acclIrecv](
        buffer: *mut c_void, bytes: usize, peer: c_int, tag: c_int, comm: ncclComm_t, limit_ms: i64,
        request: *mut acclRequest_t,
    ) {
        begin(comm, tag, limit_ms, request, |comm, tag, limit| {
            let peer = if peer == ANY_RANK { None } else { Some(handle::rank(comm, peer, "peer")?) };
            comm.receive_tagged(handle::buffer(buffer), bytes, peer, tag, limit)
        })
    }

    /// Whether a request is over.
    fn test[acclRequestTest](request: acclRequest_t) {
        over(entered(request)?.test()?)
    }

    /// Waits for a request.
    fn wait[acclRequestWait](request: acclRequest_t, limit_ms: i64) {
        over(entered(request)?.wait(handle::limit(limit_ms)?)?)
    }

    /// Who has sent what was received.
    fn source[acclRequestSource](request: acclRequest_t, source: *mut c_int) {
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(source, "source") }?;
        let request = entered(request)?;
        over(request.test()?)?;
        out.set(c_int::try_from(request.source()).unwrap_or(ANY_RANK));
        Ok(())
    }

    /// Forgets a request.
    fn free[acclRequestFree](request: acclRequest_t) {
        if !request.is_null() {
            drop(entered(request)?.close(State::Destroyed));
        }
        Ok(())
    }
}

fn begin(
    comm: ncclComm_t,
    tag: c_int,
    limit_ms: i64,
    request: *mut acclRequest_t,
    start: impl FnOnce(&Communicator, u32, Option<Duration>) -> Result<PostedMessage>,
) -> Result<()> {
    let comm = handle::communicator(comm)?;
    // SAFETY: the header asks for a valid pointer.
    let out = unsafe { Out::new(request, "request") }?;
    comm.check_usable()?;
    let tag = u32::try_from(tag).map_err(|_| {
        Error::argument(format!("the tag {tag} is negative; pass one from 0 to {}", c_int::MAX))
    })?;
    let limit = handle::limit(limit_ms)?;
    // A handle first: what has begun can not be taken back.
    let slot = handle::requests()?.reserve()?;
    out.set(slot.publish(start(&comm, tag, limit)?).cast());
    Ok(())
}

fn entered(request: acclRequest_t) -> Result<crate::slab::Entered<'static, PostedMessage>> {
    handle::requests()?.enter(request.cast_const().cast())
}

fn over(over: bool) -> Result<()> {
    if over { Ok(()) } else { Err(Error::new(ErrorKind::InProgress, "the message is under way")) }
}
