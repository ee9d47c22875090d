//! Events.

use crate::abi::{Out, driver};
use crate::error::{Code, Outcome};
use crate::{device, event};

use super::memory::stream_of;

fn destroy(handle: u64) -> Outcome {
    device::initialized()?;
    event::destroy(handle)
}

fn record(handle: u64, in_stream: u64, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    event::find(handle)?.record(&stream_of(in_stream)?, flags == 1)
}

fn elapsed(out: Out<f32>, start: u64, end: u64) -> Outcome {
    out.set(event::find(start)?.elapsed_ms(&*event::find(end)?)?)
}

driver! {
    fn EventCreate(out: Out<u64>, flags: u32) {
        let context = device::current()?;
        if out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        out.set(event::create(&context, flags, None)?.handle)
    }

    fn EventDestroy(handle: u64) {
        destroy(handle)
    }

    fn EventDestroy_v2(handle: u64) {
        destroy(handle)
    }

    fn EventRecord(handle: u64, in_stream: u64) {
        record(handle, in_stream, 0)
    }

    fn EventRecordWithFlags(handle: u64, in_stream: u64, flags: u32) {
        record(handle, in_stream, flags)
    }

    fn EventQuery(handle: u64) {
        let event = event::find(handle)?;
        event.forbid_unsafe()?;
        event.query()
    }

    fn EventSynchronize(handle: u64) {
        let event = event::find(handle)?;
        event.forbid_unsafe()?;
        event.synchronize()
    }

    fn EventElapsedTime(out: Out<f32>, start: u64, end: u64) {
        elapsed(out, start, end)
    }

    fn EventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) {
        elapsed(out, start, end)
    }

    fn StreamWaitEvent(handle: u64, event: u64, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        event::find(event)?.wait_in(&stream_of(handle)?, flags == 1)
    }
}
