//! Functions of the program that streams call. They must not call the API: on a device that hangs or fails, here it aborts.

use std::sync::Arc;

use crate::abi;
use crate::capture::{self, NodeKind};
use crate::error::Outcome;
use crate::stream::{Stream, Work};

/// A host function of the program.
pub(crate) type HostFunction = extern "C" fn(u64);
/// A callback of the program: stream, status, data.
pub(crate) type StreamCallback = extern "C" fn(u64, i32, u64);

/// What a stream or a graph does with a host function.
pub(crate) fn work(function: HostFunction, data: u64) -> Work {
    Arc::new(move || {
        abi::call_host_function(|| function(data));
        Ok(())
    })
}

pub(crate) fn launch(stream: &Arc<Stream>, function: HostFunction, data: u64) -> Outcome {
    stream.context.check()?;
    stream.submit(NodeKind::Host, work(function, data)).map(drop)
}

/// A callback is called even after a failure, and is told of it. It can not be captured.
pub(crate) fn add_callback(
    stream: &Arc<Stream>,
    handle: u64,
    callback: StreamCallback,
    data: u64,
) -> Outcome {
    stream.context.check()?;
    capture::forbid(stream)?;
    let context = Arc::clone(&stream.context);
    let work = move || {
        let status = context.failure().map_or(0, |code| code.0);
        abi::call_host_function(|| callback(handle, status, data));
        Ok(())
    };
    stream.queue_note(Vec::new(), Arc::new(work)).map(drop)
}
