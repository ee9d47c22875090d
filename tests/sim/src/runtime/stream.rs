//! Streams and host functions.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::sync::Arc;

use crate::abi::{Out, runtime};
use crate::capture;
use crate::device;
use crate::error::{Code, Outcome};
use crate::host::{self, HostFunction, StreamCallback};
use crate::stream::{self, Stream};

pub(super) fn find(handle: u64) -> Outcome<Arc<Stream>> {
    stream::find(handle, &device::runtime_context()?)
}

fn create(out: Out<u64>, flags: u32, priority: i32) -> Outcome {
    let context = device::runtime_context()?;
    if flags > 1 || out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    out.set(stream::create(&context, flags == 1, priority.clamp(-5, 0)).handle)
}

runtime! {
    fn cudaStreamCreate(out: Out<u64>) {
        create(out, 0, 0)
    }

    fn cudaStreamCreateWithFlags(out: Out<u64>, flags: u32) {
        create(out, flags, 0)
    }

    fn cudaStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    fn cudaStreamDestroy(handle: u64) {
        device::runtime_context()?;
        stream::destroy(handle)
    }

    fn cudaStreamQuery(handle: u64) {
        let stream = find(handle)?;
        capture::forbid(&stream)?;
        stream.query()
    }

    fn cudaStreamSynchronize(handle: u64) {
        let stream = find(handle)?;
        capture::forbid(&stream)?;
        stream.synchronize()
    }

    fn cudaStreamGetPriority(handle: u64, priority: Out<i32>) {
        priority.set(find(handle)?.priority)
    }

    fn cudaStreamGetFlags(handle: u64, flags: Out<u32>) {
        flags.set(find(handle)?.nonblocking.into())
    }

    fn cudaStreamGetDevice(handle: u64, number: Out<i32>) {
        number.set(find(handle)?.context.device as i32)
    }

    fn cudaStreamGetId(handle: u64, id: Out<u64>) {
        let stream = find(handle)?;
        id.set(if stream.is_legacy() { 1 } else { stream.handle / 64 })
    }

    fn cudaLaunchHostFunc(handle: u64, function: Option<HostFunction>, data: u64) {
        host::launch(&find(handle)?, function.ok_or(Code::INVALID_VALUE)?, data)
    }

    fn cudaStreamAddCallback(handle: u64, callback: Option<StreamCallback>, data: u64, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        host::add_callback(&find(handle)?, handle, callback.ok_or(Code::INVALID_VALUE)?, data)
    }
}
