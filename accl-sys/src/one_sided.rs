//! One-sided calls, on communicators of host memory.

use std::ffi::{c_int, c_uint, c_void};

use accl_core::comm::{Arguments, Communicator};
use accl_core::telemetry::log;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::{handle, windows};

face! {
    /// Writes into a peer's window and signals it.
    fn put_signal[ncclPutSignal, pncclPutSignal](
        localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        peerWin: ncclWindow_t, peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let said = Said { name: "PutSignal", send: localbuff, count, datatype, peer, stream };
        checked(comm, |comm| {
            let peer = handle::rank(comm, peer, "peer")?;
            let data_type = handle::data_type(datatype)?;
            check_support(comm)?;
            check_zero(&[("sigIdx", sigIdx.into()), ("ctx", ctx.into()), ("flags", flags.into())])?;
            handle::required(peerWin, "peerWin")?;
            handle::required(localbuff, "localbuff")?;
            let window = windows::entered(peerWin)?;
            let bytes = count.checked_mul(data_type.size_bytes()).ok_or_else(|| {
                Error::argument(format!("{count} elements of {data_type} are more bytes than the address space has; pass a smaller count"))
            })?;
            let stream = handle::stream(comm, stream)?;
            said.say(comm);
            comm.put_signal((handle::buffer(localbuff), bytes), peer, &window, peerWinOffset, stream.get())
        })
    }

    /// Signals a peer.
    fn signal[ncclSignal, pncclSignal](
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        let said = Said { name: "Signal", send: std::ptr::null(), count: 0, datatype: 0, peer, stream };
        checked(comm, |comm| {
            let peer = handle::rank(comm, peer, "peer")?;
            check_support(comm)?;
            check_zero(&[("sigIdx", sigIdx.into()), ("ctx", ctx.into()), ("flags", flags.into())])?;
            let stream = handle::stream(comm, stream)?;
            said.say(comm);
            comm.signal(peer, stream.get())
        })
    }

    /// Waits for signals, and takes them.
    fn wait_signal[ncclWaitSignal, pncclWaitSignal](
        nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        let said = Said { name: "WaitSignal", send: std::ptr::null(), count: 0, datatype: 0, peer: -1, stream };
        checked(comm, |comm| {
            check_support(comm)?;
            handle::required(signalDescs, "signalDescs")?;
            let count = usize::try_from(nDesc).ok().filter(|count| *count > 0).ok_or_else(|| {
                Error::argument(format!("nDesc is {nDesc}; pass how many descriptors there are, at least 1"))
            })?;
            // SAFETY: the header asks for that many.
            let signals = (0..count).map(|index| wanted(comm, unsafe { signalDescs.add(index).read_unaligned() }));
            let signals: Vec<_> = signals.collect::<Result<_>>()?;
            let stream = handle::stream(comm, stream)?;
            said.say(comm);
            comm.wait_signals(&signals, stream.get())
        })
    }
}

fn checked(comm: ncclComm_t, body: impl FnOnce(&Communicator) -> Result<()>) -> Result<()> {
    let comm = handle::communicator(comm)?;
    handle::recorded(&comm, || {
        comm.check_usable()?;
        body(&comm)
    })
}

fn check_support(comm: &Communicator) -> Result<()> {
    if comm.has_device() {
        return Err(Error::argument(
            "one-sided calls are of host memory, and the communicator is of a device (hostRmaSupport of ncclCommQueryProperties is \
             false); use ncclSend and ncclRecv",
        ));
    }
    Ok(())
}

/// What there is one of only.
fn check_zero(arguments: &[(&str, i64)]) -> Result<()> {
    match arguments.iter().find(|(_, value)| *value != 0) {
        Some((what, value)) => Err(Error::argument(format!("{what} is {value}; pass 0"))),
        None => Ok(()),
    }
}

/// Whose signals a descriptor wants, and how many.
fn wanted(comm: &Communicator, descriptor: ncclWaitSignalDesc_t) -> Result<(usize, u64)> {
    let peer = handle::rank(comm, descriptor.peer, "peer of a descriptor")?;
    check_zero(&[
        ("sigIdx of a descriptor", descriptor.sigIdx.into()),
        ("ctx of a descriptor", descriptor.ctx.into()),
    ])?;
    match u64::try_from(descriptor.opCnt) {
        Ok(count) if count > 0 => Ok((peer, count)),
        _ => Err(Error::argument(format!("opCnt of a descriptor is {}; pass at least 1", descriptor.opCnt))),
    }
}

/// A call for the log.
struct Said {
    name: &'static str,
    send: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    stream: cudaStream_t,
}

impl Said {
    fn say(&self, comm: &Communicator) {
        if !log::follows_calls() {
            return;
        }
        comm.say_call(&Arguments {
            name: self.name,
            send: self.send as usize,
            recv: 0,
            count: self.count,
            dtype: self.datatype.cast_signed(),
            op: 0,
            root: self.peer,
            stream: self.stream as usize,
        });
    }
}
