//! Send and receive.

use std::ffi::{c_int, c_void};

use accl_core::Result;
use accl_core::comm::{Arguments, Communicator, Selection, Stream};
use accl_core::telemetry::log;
use accl_core::types::DataType;

use crate::abi::*;
use crate::handle;
use crate::plugins::{self, profiler};

face! {
    /// Sends `count` elements to `peer`.
    fn send[ncclSend, pncclSend](
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let buffer = handle::buffer(sendbuff);
        let call = Call { name: "Send", buffer: sendbuff, count, datatype, peer, comm, stream };
        call.run(|comm, peer, data_type, stream| comm.send(buffer, count, data_type, peer, stream))
    }

    /// Receives `count` elements from `peer`.
    fn recv[ncclRecv, pncclRecv](
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let buffer = handle::buffer(recvbuff);
        let call = Call { name: "Recv", buffer: recvbuff, count, datatype, peer, comm, stream };
        call.run(|comm, peer, data_type, stream| comm.recv(buffer, count, data_type, peer, stream))
    }
}

/// A call as it came in.
struct Call {
    name: &'static str,
    buffer: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
}

impl Call {
    /// The checks of §5.1 in order, then `start`. A count of 0 is no way out here: it matches its partner.
    #[inline]
    fn run(
        &self,
        start: impl FnOnce(&Communicator, usize, DataType, Stream<'_>) -> Result<()>,
    ) -> Result<()> {
        let comm = handle::communicator(self.comm)?;
        handle::recorded(&comm, || {
            comm.check_usable()?;
            let peer = handle::rank(&comm, self.peer, "peer")?;
            let data_type = handle::data_type(self.datatype)?;
            let stream = handle::stream(&comm, self.stream)?;
            if log::follows_calls() {
                self.say(&comm);
            }
            if plugins::is_on() {
                let told = self.told(data_type);
                return profiler::around(&comm, &told, || start(&comm, peer, data_type, stream.get()));
            }
            start(&comm, peer, data_type, stream.get())
        })
    }

    /// The same for a profiler.
    #[cold]
    fn told(&self, data_type: DataType) -> profiler::Call {
        profiler::Call {
            name: self.name,
            kind: None,
            send: self.buffer,
            recv: self.buffer.cast_mut(),
            count: self.count,
            data_type,
            root: self.peer,
            stream: self.stream.cast(),
            selection: Selection::default(),
        }
    }

    #[cold]
    fn say(&self, comm: &Communicator) {
        comm.say_call(&Arguments {
            name: self.name,
            send: 0,
            recv: self.buffer as usize,
            count: self.count,
            dtype: self.datatype.cast_signed(),
            op: 0,
            root: self.peer,
            stream: self.stream as usize,
        });
    }
}
