//! Windows. In host memory there are none yet: registering one succeeds with NULL, the way in which NCCL says so,
//! and every other handle to a window is unknown.

use std::ffi::{c_int, c_void};

use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle::{self, Out};

face! {
    /// Would make a buffer a window.
    fn window_register[ncclCommWindowRegister, pncclCommWindowRegister](
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, _winFlags: c_int,
    ) {
        let comm = handle::communicator(comm)?;
        handle::grouped(|| {
            comm.check_usable()?;
            // SAFETY: the header asks for a valid pointer.
            let out = unsafe { Out::new(win, "win") }?;
            handle::required(buff, "buff")?;
            if size == 0 {
                return Err(Error::argument("the window's size is 0; pass the bytes of the buffer"));
            }
            out.set(std::ptr::null_mut());
            Ok(())
        })
    }

    /// NULL, the only window that was ever given out, needs nothing done.
    fn window_deregister[ncclCommWindowDeregister, pncclCommWindowDeregister](
        comm: ncclComm_t, win: ncclWindow_t,
    ) {
        if win.is_null() {
            return Ok(());
        }
        handle::communicator(comm)?;
        Err(Error::usage(format!("window {win:p} is unknown; pass what ncclCommWindowRegister returned")))
    }

    /// The buffer of a window: NULL, for windows are not supported.
    fn window_pointer[ncclWinGetUserPtr, pncclWinGetUserPtr](
        comm: ncclComm_t, _win: ncclWindow_t, outUserPtr: *mut *mut c_void,
    ) {
        handle::communicator(comm)?;
        // SAFETY: the header asks for a valid pointer.
        unsafe { Out::new(outUserPtr, "outUserPtr") }?.set(std::ptr::null_mut());
        Ok(())
    }

    /// The address of a rank's part among those that can be loaded from.
    fn lsa_pointer[ncclGetLsaDevicePointer, pncclGetLsaDevicePointer](
        window: ncclWindow_t, _offset: usize, _lsaRank: c_int, outPtr: *mut *mut c_void,
    ) {
        unknown(window, &[("outPtr", outPtr.cast())])
    }

    /// The address of a peer's part.
    fn peer_pointer[ncclGetPeerDevicePointer, pncclGetPeerDevicePointer](
        window: ncclWindow_t, _offset: usize, _peer: c_int, outPtr: *mut *mut c_void,
    ) {
        unknown(window, &[("outPtr", outPtr.cast())])
    }

    /// The address that reaches all parts at once.
    fn lsa_multimem_pointer[ncclGetLsaMultimemDevicePointer, pncclGetLsaMultimemDevicePointer](
        window: ncclWindow_t, _offset: usize, outPtr: *mut *mut c_void,
    ) {
        unknown(window, &[("outPtr", outPtr.cast())])
    }

    /// The same, of a team's handle.
    fn multimem_pointer[ncclGetMultimemDevicePointer, pncclGetMultimemDevicePointer](
        window: ncclWindow_t, _offset: usize, multimem: ncclMultimemHandle_t,
        outPtr: *mut *mut c_void,
    ) {
        unknown(window, &[("multimem", multimem.mcBasePtr), ("outPtr", outPtr.cast())])
    }

    /// Logical endpoint of all parts.
    fn multimem_endpoint[ncclGetMultimemDeviceLeInfo, pncclGetMultimemDeviceLeInfo](
        window: ncclWindow_t, _offset: usize, leId: *mut ncclCftLeId, leOffset: *mut usize,
    ) {
        unknown(window, &[("leId", leId.cast()), ("leOffset", leOffset.cast())])
    }

    /// Logical endpoint of a peer's part.
    fn peer_endpoint[ncclGetPeerDeviceLeInfo, pncclGetPeerDeviceLeInfo](
        window: ncclWindow_t, _offset: usize, _worldPeer: c_int, leId: *mut ncclCftLeId,
        leOffset: *mut usize,
    ) {
        unknown(window, &[("leId", leId.cast()), ("leOffset", leOffset.cast())])
    }

    /// Logical endpoint of a team member's part.
    fn cft_endpoint[ncclGetCftDeviceLeInfo, pncclGetCftDeviceLeInfo](
        window: ncclWindow_t, _offset: usize, _cftPeer: c_int, _team: ncclTeam_t,
        leId: *mut ncclCftLeId, leOffset: *mut usize,
    ) {
        unknown(window, &[("leId", leId.cast()), ("leOffset", leOffset.cast())])
    }
}

/// Refuses a window: none is known. `pointers` are the arguments that must not be NULL.
fn unknown(window: ncclWindow_t, pointers: &[(&str, *const c_void)]) -> Result<()> {
    handle::required(window, "window")?;
    for (what, pointer) in pointers {
        handle::required(*pointer, what)?;
    }
    Err(Error::argument(format!("window {window:p} is unknown; pass what ncclCommWindowRegister returned")))
}
