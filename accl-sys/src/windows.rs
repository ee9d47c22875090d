//! Windows: of communicators of host memory. For devices there are none: a window would be what code on the device reads. Registering
//! one succeeds with NULL there, the way in which NCCL says so.

use std::ffi::{c_int, c_void};

use accl_core::comm::Window;
use accl_core::memory::UserPointer;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle::{self, Out};
use crate::slab::{Entered, State};

face! {
    /// Makes a buffer a window.
    fn window_register[ncclCommWindowRegister, pncclCommWindowRegister](
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int,
    ) {
        let comm = handle::communicator(comm)?;
        handle::recorded(&comm, || {
            comm.check_usable()?;
            // SAFETY: the header asks for a valid pointer.
            let out = unsafe { Out::new(win, "win") }?;
            handle::required(buff, "buff")?;
            if size == 0 {
                return Err(Error::argument("the window's size is 0; pass the bytes of the buffer"));
            }
            out.set(std::ptr::null_mut());
            if comm.has_device() {
                return Ok(());
            }
            let symmetric = winFlags & NCCL_WIN_COLL_SYMMETRIC.cast_signed() != 0;
            // A handle first: what all ranks have made cannot be taken back by one.
            let slot = handle::windows()?.reserve()?;
            let done = Box::new(move |window| out.set(slot.publish(window).cast()));
            comm.register_window(handle::buffer(buff), size, symmetric, done)
        })
    }

    /// Takes a window back.
    fn window_deregister[ncclCommWindowDeregister, pncclCommWindowDeregister](
        comm: ncclComm_t, win: ncclWindow_t,
    ) {
        if win.is_null() {
            return Ok(());
        }
        let comm = handle::communicator(comm)?;
        let window = handle::windows()?.enter(win.cast_const().cast()).map_err(|error| Error::usage(error.text().to_string()))?;
        comm.deregister_window(&window)?;
        drop(window.close(State::Destroyed));
        Ok(())
    }

    /// The buffer of a window; NULL where there are no windows.
    fn window_pointer[ncclWinGetUserPtr, pncclWinGetUserPtr](
        comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void,
    ) {
        let comm = handle::communicator(comm)?;
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(outUserPtr, "outUserPtr") }?;
        out.set(std::ptr::null_mut());
        if !comm.has_device() {
            out.set(entered(win)?.start()?.as_ptr().cast());
        }
        Ok(())
    }

    /// The address of what one of the ranks of this host has registered: the `lsaRank`th of them, by rank.
    fn lsa_pointer[ncclGetLsaDevicePointer, pncclGetLsaDevicePointer](
        window: ncclWindow_t, offset: usize, lsaRank: c_int, outPtr: *mut *mut c_void,
    ) {
        let window = known(window, &[("outPtr", outPtr.cast())])?;
        let index = usize::try_from(lsaRank).map_err(|_| Error::argument(format!("lsaRank is {lsaRank}; pass 0 or more")))?;
        let rank = window.local_rank(index)?;
        // SAFETY: the header asks for a valid pointer.
        unsafe { Out::new(outPtr, "outPtr") }?.set(address(window.place(rank, offset)?));
        Ok(())
    }

    /// The address of what a rank has registered; NULL where that cannot be reached.
    fn peer_pointer[ncclGetPeerDevicePointer, pncclGetPeerDevicePointer](
        window: ncclWindow_t, offset: usize, peer: c_int, outPtr: *mut *mut c_void,
    ) {
        let window = known(window, &[("outPtr", outPtr.cast())])?;
        let ranks = window.ranks();
        let peer = usize::try_from(peer).ok().filter(|peer| *peer < ranks).ok_or_else(|| {
            Error::argument(format!("peer {peer} is not a rank of a communicator of {ranks}; pass 0 to {}", ranks - 1))
        })?;
        // SAFETY: the header asks for a valid pointer.
        unsafe { Out::new(outPtr, "outPtr") }?.set(address(window.place(peer, offset)?));
        Ok(())
    }

    /// The address that reaches all parts at once: NULL, for nothing in a host can do that.
    fn lsa_multimem_pointer[ncclGetLsaMultimemDevicePointer, pncclGetLsaMultimemDevicePointer](
        window: ncclWindow_t, _offset: usize, outPtr: *mut *mut c_void,
    ) {
        known(window, &[("outPtr", outPtr.cast())])?;
        // SAFETY: the header asks for a valid pointer.
        unsafe { Out::new(outPtr, "outPtr") }?.set(std::ptr::null_mut());
        Ok(())
    }

    /// The same, of a team's handle.
    fn multimem_pointer[ncclGetMultimemDevicePointer, pncclGetMultimemDevicePointer](
        window: ncclWindow_t, _offset: usize, multimem: ncclMultimemHandle_t,
        outPtr: *mut *mut c_void,
    ) {
        known(window, &[("multimem", multimem.mcBasePtr), ("outPtr", outPtr.cast())])?;
        // SAFETY: the header asks for a valid pointer.
        unsafe { Out::new(outPtr, "outPtr") }?.set(std::ptr::null_mut());
        Ok(())
    }

    /// Logical endpoint of all parts.
    fn multimem_endpoint[ncclGetMultimemDeviceLeInfo, pncclGetMultimemDeviceLeInfo](
        window: ncclWindow_t, _offset: usize, leId: *mut ncclCftLeId, leOffset: *mut usize,
    ) {
        no_endpoint(window, leId, leOffset)
    }

    /// Logical endpoint of a peer's part.
    fn peer_endpoint[ncclGetPeerDeviceLeInfo, pncclGetPeerDeviceLeInfo](
        window: ncclWindow_t, _offset: usize, _worldPeer: c_int, leId: *mut ncclCftLeId,
        leOffset: *mut usize,
    ) {
        no_endpoint(window, leId, leOffset)
    }

    /// Logical endpoint of a team member's part.
    fn cft_endpoint[ncclGetCftDeviceLeInfo, pncclGetCftDeviceLeInfo](
        window: ncclWindow_t, _offset: usize, _cftPeer: c_int, _team: ncclTeam_t,
        leId: *mut ncclCftLeId, leOffset: *mut usize,
    ) {
        no_endpoint(window, leId, leOffset)
    }
}

/// The window of a handle.
pub(crate) fn entered(window: ncclWindow_t) -> Result<Entered<'static, Window>> {
    handle::windows()?.enter(window.cast_const().cast())
}

/// The same for a call with other `pointers` that must not be NULL.
fn known(window: ncclWindow_t, pointers: &[(&str, *const c_void)]) -> Result<Entered<'static, Window>> {
    handle::required(window, "window")?;
    for (what, pointer) in pointers {
        handle::required(*pointer, what)?;
    }
    entered(window)
}

fn no_endpoint(window: ncclWindow_t, id: *mut ncclCftLeId, offset: *mut usize) -> Result<()> {
    known(window, &[("leId", id.cast()), ("leOffset", offset.cast())])?;
    Err(Error::usage(
        "windows of host memory have no logical endpoints, which code on devices uses (cftSupport of ncclCommQueryProperties is \
         false); use ncclGetPeerDevicePointer",
    ))
}

fn address(place: Option<UserPointer>) -> *mut c_void {
    place.map_or(std::ptr::null_mut(), |place| place.as_ptr().cast())
}
