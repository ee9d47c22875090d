//! The collectives: plain calls, and those with a configuration of the call.

use std::ffi::{c_int, c_void};

use accl_core::Result;
use accl_core::comm::{Arguments, CallOptions, Communicator, Selection, Wish};
use accl_core::telemetry::log;
use accl_core::types::Collective;

use crate::abi::*;
use crate::plugins::{self, profiler, tuner};
use crate::{call_config, handle};

/// A call as it came in.
#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    /// 0 where there is none.
    op: ncclRedOp_t,
    /// 0 where there is none.
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    /// NULL for the plain calls.
    config: *const ncclCollConfig_t,
}

impl Call {
    /// Runs a call in the order of §5.1: communicator (1 to 4), `parse` (5 to 7), the stream if there is anything to
    /// do (9), and `start` for the rest.
    ///
    /// # Safety
    /// `config` is NULL or points to as many bytes as its `size` says, and its strings end with NUL.
    #[inline]
    unsafe fn run<T>(
        &self,
        kind: Collective,
        parse: impl FnOnce(&Communicator) -> Result<T>,
        start: impl FnOnce(&Communicator, T, CallOptions<'_>) -> Result<()>,
    ) -> Result<()> {
        let comm = handle::communicator(self.comm)?;
        handle::recorded(&comm, || {
            comm.check_usable()?;
            let parsed = parse(&comm)?;
            let config = if self.config.is_null() {
                None
            } else {
                // SAFETY: promised.
                Some(unsafe { call_config::read(self.config) }?)
            };
            let stream = handle::collective_stream(&comm, self.stream, self.count)?;
            if let Some(limits) = config.as_ref().and_then(|config| config.limits) {
                comm.set_time_limits(limits)?;
            }
            if let Some(event) = config.as_ref().and_then(|config| config.launched) {
                comm.record(event, stream.get())?;
            }
            let is_plugged = plugins::is_on();
            let selection = if config.is_some() || is_plugged {
                // A copy: the call itself need not be in memory.
                let call = *self;
                call.choose(kind, &comm, config.map(|config| config.wish))?
            } else {
                Selection::default()
            };
            let options = CallOptions { stream: stream.get(), selection };
            if log::follows_calls() {
                // As above.
                let call = *self;
                call.say(&comm);
            }
            if is_plugged {
                let told = self.told(kind, selection)?;
                return profiler::around(&comm, &told, || start(&comm, parsed, options));
            }
            start(&comm, parsed, options)
        })
    }

    /// The algorithm, where the call or a tuner may ask for one.
    #[cold]
    fn choose(&self, kind: Collective, comm: &Communicator, wish: Option<Wish>) -> Result<Selection> {
        let (data_type, wish) = (handle::data_type(self.datatype)?, wish.unwrap_or_default());
        tuner::choose(comm, kind, (self.count, data_type), &wish)
    }

    /// The same for a profiler.
    #[cold]
    fn told(&self, kind: Collective, selection: Selection) -> Result<profiler::Call> {
        Ok(profiler::Call {
            name: self.name,
            kind: Some(kind),
            send: self.send,
            recv: self.recv,
            count: self.count,
            data_type: handle::data_type(self.datatype)?,
            root: self.root,
            stream: self.stream.cast(),
            selection,
        })
    }

    #[cold]
    fn say(&self, comm: &Communicator) {
        comm.say_call(&Arguments {
            name: self.name,
            send: self.send as usize,
            recv: self.recv as usize,
            count: self.count,
            dtype: self.datatype.cast_signed(),
            op: self.op.cast_signed(),
            root: self.root,
            stream: self.stream as usize,
        });
    }
}

face! {
    /// Everyone gets the reduction of all inputs.
    fn all_reduce[ncclAllReduce, pncclAllReduce](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "AllReduce", send: sendbuff, recv: recvbuff, count, datatype, op, root: 0, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { all_reduce_call(call) }
    }

    /// Everyone gets the reduction of all inputs; with a configuration of the call.
    fn all_reduce_config[ncclAllReduceConfig, pncclAllReduceConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "AllReduce", send: sendbuff, recv: recvbuff, count, datatype, op, root: 0, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { all_reduce_call(call) }
    }

    /// The root gets the reduction of all inputs.
    fn reduce[ncclReduce, pncclReduce](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "Reduce", send: sendbuff, recv: recvbuff, count, datatype, op, root, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { reduce_call(call) }
    }

    /// The root gets the reduction of all inputs; with a configuration of the call.
    fn reduce_config[ncclReduceConfig, pncclReduceConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "Reduce", send: sendbuff, recv: recvbuff, count, datatype, op, root, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { reduce_call(call) }
    }

    /// Everyone gets the root's input.
    fn broadcast[ncclBroadcast, pncclBroadcast](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "Broadcast", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { broadcast_call(call) }
    }

    /// Everyone gets the root's input; with a configuration of the call.
    fn broadcast_config[ncclBroadcastConfig, pncclBroadcastConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "Broadcast", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { broadcast_call(call) }
    }

    /// Everyone gets all inputs, by rank.
    fn all_gather[ncclAllGather, pncclAllGather](
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "AllGather", send: sendbuff, recv: recvbuff, count: sendcount, datatype, op: 0, root: 0, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { all_gather_call(call) }
    }

    /// Everyone gets all inputs, by rank; with a configuration of the call.
    fn all_gather_config[ncclAllGatherConfig, pncclAllGatherConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "AllGather", send: sendbuff, recv: recvbuff, count: sendcount, datatype, op: 0, root: 0, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { all_gather_call(call) }
    }

    /// Rank r gets part r of the reduction.
    fn reduce_scatter[ncclReduceScatter, pncclReduceScatter](
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "ReduceScatter", send: sendbuff, recv: recvbuff, count: recvcount, datatype, op, root: 0, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { reduce_scatter_call(call) }
    }

    /// Rank r gets part r of the reduction; with a configuration of the call.
    fn reduce_scatter_config[ncclReduceScatterConfig, pncclReduceScatterConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "ReduceScatter", send: sendbuff, recv: recvbuff, count: recvcount, datatype, op, root: 0, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { reduce_scatter_call(call) }
    }

    /// Rank r gets part r of everyone's input.
    fn all_to_all[ncclAlltoAll, pncclAlltoAll](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "AlltoAll", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root: 0, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { all_to_all_call(call) }
    }

    /// Rank r gets part r of everyone's input; with a configuration of the call.
    fn all_to_all_config[ncclAlltoAllConfig, pncclAlltoAllConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "AlltoAll", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root: 0, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { all_to_all_call(call) }
    }

    /// The root gets all inputs, by rank.
    fn gather[ncclGather, pncclGather](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "Gather", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { gather_call(call) }
    }

    /// The root gets all inputs, by rank; with a configuration of the call.
    fn gather_config[ncclGatherConfig, pncclGatherConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "Gather", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { gather_call(call) }
    }

    /// Rank r gets part r of the root's input.
    fn scatter[ncclScatter, pncclScatter](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let call = Call { name: "Scatter", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { scatter_call(call) }
    }

    /// Rank r gets part r of the root's input; with a configuration of the call.
    fn scatter_config[ncclScatterConfig, pncclScatterConfig](
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t,
    ) {
        let call = Call { name: "Scatter", send: sendbuff, recv: recvbuff, count, datatype, op: 0, root, comm, stream, config };
        // SAFETY: the header asks for a valid configuration or NULL.
        unsafe { scatter_call(call) }
    }

    /// The broadcast in place.
    fn bcast[ncclBcast, pncclBcast](
        buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        let call = Call { name: "Broadcast", send: buff, recv: buff, count, datatype, op: 0, root, comm, stream, config: std::ptr::null() };
        // SAFETY: no configuration is given.
        unsafe { broadcast_call(call) }
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn all_reduce_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    let parse =
        |comm: &Communicator| Ok((handle::data_type(call.datatype)?, comm.operator(call.op.cast_signed())?));
    // SAFETY: promised.
    unsafe {
        call.run(Collective::AllReduce, parse, |comm, (data_type, op), options| {
            comm.all_reduce(send, recv, count_elems, data_type, op, options)
        })
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn reduce_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    let parse = |comm: &Communicator| {
        Ok((
            handle::rank(comm, call.root, "root")?,
            handle::data_type(call.datatype)?,
            comm.operator(call.op.cast_signed())?,
        ))
    };
    // SAFETY: promised.
    unsafe {
        call.run(Collective::Reduce, parse, |comm, (root, data_type, op), options| {
            comm.reduce(send, recv, count_elems, data_type, op, root, options)
        })
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn broadcast_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    let parse =
        |comm: &Communicator| Ok((handle::rank(comm, call.root, "root")?, handle::data_type(call.datatype)?));
    // SAFETY: promised.
    unsafe {
        call.run(Collective::Broadcast, parse, |comm, (root, data_type), options| {
            comm.broadcast(send, recv, count_elems, data_type, root, options)
        })
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn all_gather_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    // SAFETY: promised.
    unsafe {
        call.run(
            Collective::AllGather,
            |_| handle::data_type(call.datatype),
            |comm, data_type, options| comm.all_gather(send, recv, count_elems, data_type, options),
        )
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn reduce_scatter_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    let parse =
        |comm: &Communicator| Ok((handle::data_type(call.datatype)?, comm.operator(call.op.cast_signed())?));
    // SAFETY: promised.
    unsafe {
        call.run(Collective::ReduceScatter, parse, |comm, (data_type, op), options| {
            comm.reduce_scatter(send, recv, count_elems, data_type, op, options)
        })
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn all_to_all_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    // SAFETY: promised.
    unsafe {
        call.run(
            Collective::AllToAll,
            |_| handle::data_type(call.datatype),
            |comm, data_type, options| comm.all_to_all(send, recv, count_elems, data_type, options),
        )
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn gather_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    let parse =
        |comm: &Communicator| Ok((handle::rank(comm, call.root, "root")?, handle::data_type(call.datatype)?));
    // SAFETY: promised.
    unsafe {
        call.run(Collective::Gather, parse, |comm, (root, data_type), options| {
            comm.gather(send, recv, count_elems, data_type, root, options)
        })
    }
}

/// # Safety
/// As for [`Call::run`].
#[inline]
unsafe fn scatter_call(call: Call) -> Result<()> {
    let (send, recv, count_elems) = (handle::buffer(call.send), handle::buffer(call.recv), call.count);
    let parse =
        |comm: &Communicator| Ok((handle::rank(comm, call.root, "root")?, handle::data_type(call.datatype)?));
    // SAFETY: promised.
    unsafe {
        call.run(Collective::Scatter, parse, |comm, (root, data_type), options| {
            comm.scatter(send, recv, count_elems, data_type, root, options)
        })
    }
}
