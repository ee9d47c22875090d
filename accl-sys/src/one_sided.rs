//! One-sided calls. Their windows are not supported in host memory yet, which NCCL answers with "invalid argument".

use std::ffi::{c_int, c_uint, c_void};

use accl_core::comm::Communicator;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle;

face! {
    /// Would write into a peer's window and signal it.
    fn put_signal[ncclPutSignal, pncclPutSignal](
        _localbuff: *const c_void, _count: usize, datatype: ncclDataType_t, peer: c_int,
        _peerWin: ncclWindow_t, _peerWinOffset: usize, _sigIdx: c_int, _ctx: c_int, _flags: c_uint,
        comm: ncclComm_t, _stream: cudaStream_t,
    ) {
        refuse(comm, |comm| {
            handle::rank(comm, peer, "peer")?;
            handle::data_type(datatype).map(drop)
        })
    }

    /// Would signal a peer.
    fn signal[ncclSignal, pncclSignal](
        peer: c_int, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, comm: ncclComm_t,
        _stream: cudaStream_t,
    ) {
        refuse(comm, |comm| handle::rank(comm, peer, "peer").map(drop))
    }

    /// Would wait for signals.
    fn wait_signal[ncclWaitSignal, pncclWaitSignal](
        _nDesc: c_int, _signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t,
        _stream: cudaStream_t,
    ) {
        refuse(comm, |_| Ok(()))
    }
}

fn refuse(comm: ncclComm_t, parse: impl FnOnce(&Communicator) -> Result<()>) -> Result<()> {
    let comm = handle::communicator(comm)?;
    handle::recorded(&comm, || {
        comm.check_usable()?;
        parse(&comm)?;
        Err(Error::argument(
            "one-sided calls are not supported in host memory yet (hostRmaSupport of ncclCommQueryProperties is \
             false); use ncclSend and ncclRecv",
        ))
    })
}
