//! Events.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use crate::abi::{Out, runtime};
use crate::error::{Code, Outcome};
use crate::{device, event};

use super::stream;

fn create(out: Out<u64>, flags: u32) -> Outcome {
    let context = device::runtime_context()?;
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    out.set(event::create(&context, flags, None)?.handle)
}

fn record(handle: u64, in_stream: u64, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let stream = stream::find(in_stream)?;
    event::find(handle)?.record(&stream, flags == 1)
}

fn elapsed(out: Out<f32>, start: u64, end: u64) -> Outcome {
    out.set(event::find(start)?.elapsed_ms(&*event::find(end)?)?)
}

runtime! {
    fn cudaEventCreate(out: Out<u64>) {
        create(out, 0)
    }

    fn cudaEventCreateWithFlags(out: Out<u64>, flags: u32) {
        create(out, flags)
    }

    fn cudaEventDestroy(handle: u64) {
        event::destroy(handle)
    }

    fn cudaEventRecord(handle: u64, in_stream: u64) {
        record(handle, in_stream, 0)
    }

    fn cudaEventRecordWithFlags(handle: u64, in_stream: u64, flags: u32) {
        record(handle, in_stream, flags)
    }

    fn cudaEventQuery(handle: u64) {
        let event = event::find(handle)?;
        event.forbid_unsafe()?;
        event.query()
    }

    fn cudaEventSynchronize(handle: u64) {
        let event = event::find(handle)?;
        event.forbid_unsafe()?;
        event.synchronize()
    }

    fn cudaEventElapsedTime(out: Out<f32>, start: u64, end: u64) {
        elapsed(out, start, end)
    }

    fn cudaEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) {
        elapsed(out, start, end)
    }

    fn cudaStreamWaitEvent(handle: u64, event: u64, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::find(handle)?;
        event::find(event)?.wait_in(&stream, flags == 1)
    }
}
