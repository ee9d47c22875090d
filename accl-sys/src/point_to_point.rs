//! Send and receive.

use std::ffi::{c_int, c_void};

use accl_core::Result;
use accl_core::comm::Communicator;
use accl_core::engine::HostStream;
use accl_core::types::DataType;

use crate::abi::*;
use crate::handle;

face! {
    /// Sends `count` elements to `peer`.
    fn send[ncclSend, pncclSend](
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let buffer = handle::buffer(sendbuff);
        with_peer(comm, peer, datatype, stream, |comm, peer, data_type, stream| {
            comm.send(buffer, count, data_type, peer, stream)
        })
    }

    /// Receives `count` elements from `peer`.
    fn recv[ncclRecv, pncclRecv](
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let buffer = handle::buffer(recvbuff);
        with_peer(comm, peer, datatype, stream, |comm, peer, data_type, stream| {
            comm.recv(buffer, count, data_type, peer, stream)
        })
    }
}

/// The checks of §5.1 in order. A count of 0 is no way out here: it matches its partner.
#[inline]
fn with_peer(
    comm: ncclComm_t,
    peer: c_int,
    datatype: ncclDataType_t,
    stream: cudaStream_t,
    start: impl FnOnce(&Communicator, usize, DataType, Option<&HostStream>) -> Result<()>,
) -> Result<()> {
    let comm = handle::communicator(comm)?;
    handle::recorded(&comm, || {
        comm.check_usable()?;
        let peer = handle::rank(&comm, peer, "peer")?;
        let data_type = handle::data_type(datatype)?;
        let stream = handle::stream(stream)?;
        start(&comm, peer, data_type, stream.as_deref())
    })
}
