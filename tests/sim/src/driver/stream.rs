//! Streams, host functions and stream memory operations.

use crate::abi::{In, Out, driver};
use crate::error::{Code, Outcome};
use crate::host::{self, HostFunction, StreamCallback};
use crate::memops::{self, Operation, Word};
use crate::{capture, device, stream};

use super::memory::stream_of;

fn create(out: Out<u64>, flags: u32, priority: i32) -> Outcome {
    let context = device::current()?;
    if flags > 1 || out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    out.set(stream::create(&context, flags == 1, priority.clamp(-5, 0)).handle)
}

fn destroy(handle: u64) -> Outcome {
    device::initialized()?;
    stream::destroy(handle)
}

fn write(handle: u64, address: u64, width: u64, value: u64, flags: u32) -> Outcome {
    let operation = Operation::write(Word { address, width, value }, flags)?;
    memops::submit(&stream_of(handle)?, vec![operation])
}

fn wait(handle: u64, address: u64, width: u64, value: u64, flags: u32) -> Outcome {
    let operation = Operation::wait(Word { address, width, value }, flags)?;
    memops::submit(&stream_of(handle)?, vec![operation])
}

/// One of a batch's operations, in 48 bytes: kind, address, value, flags.
fn operation(parameters: In<u64>, index: usize) -> Outcome<Operation> {
    let at = |word: usize| parameters.at(index * 6 + word);
    let (kind, address, value, flags) = (at(0)? as u32, at(1)?, at(2)?, at(3)? as u32);
    match kind {
        1 => Operation::wait(Word { address, width: 4, value: value & 0xFFFF_FFFF }, flags),
        2 => Operation::write(Word { address, width: 4, value: value & 0xFFFF_FFFF }, flags),
        4 => Operation::wait(Word { address, width: 8, value }, flags),
        5 => Operation::write(Word { address, width: 8, value }, flags),
        6 => Ok(Operation::Nothing),
        3 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn batch(handle: u64, count: u32, parameters: In<u64>, flags: u32) -> Outcome {
    if count > 256 || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let operations =
        (0..count as usize).map(|index| operation(parameters, index)).collect::<Outcome<Vec<_>>>()?;
    memops::submit(&stream_of(handle)?, operations)
}

driver! {
    fn StreamCreate(out: Out<u64>, flags: u32) {
        create(out, flags, 0)
    }

    fn StreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    fn StreamDestroy(handle: u64) {
        destroy(handle)
    }

    fn StreamDestroy_v2(handle: u64) {
        destroy(handle)
    }

    fn StreamQuery(handle: u64) {
        let stream = stream_of(handle)?;
        capture::forbid(&stream)?;
        stream.query()
    }

    fn StreamSynchronize(handle: u64) {
        let stream = stream_of(handle)?;
        capture::forbid(&stream)?;
        stream.synchronize()
    }

    fn StreamGetPriority(handle: u64, out: Out<i32>) {
        out.set(stream_of(handle)?.priority)
    }

    fn StreamGetFlags(handle: u64, out: Out<u32>) {
        out.set(stream_of(handle)?.nonblocking.into())
    }

    fn StreamGetId(handle: u64, out: Out<u64>) {
        let stream = stream_of(handle)?;
        out.set(if stream.is_legacy() { 1 } else { stream.handle / 64 })
    }

    fn StreamGetCtx(handle: u64, out: Out<u64>) {
        out.set(stream_of(handle)?.context.handle)
    }

    fn StreamGetCtx_v2(handle: u64, out: Out<u64>, green: Out<u64>) {
        green.set_if(0);
        out.set(stream_of(handle)?.context.handle)
    }

    fn StreamGetDevice(handle: u64, out: Out<i32>) {
        out.set(stream_of(handle)?.context.device as i32)
    }

    fn LaunchHostFunc(handle: u64, function: Option<HostFunction>, data: u64) {
        host::launch(&stream_of(handle)?, function.ok_or(Code::INVALID_VALUE)?, data)
    }

    fn StreamAddCallback(handle: u64, callback: Option<StreamCallback>, data: u64, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        host::add_callback(&stream_of(handle)?, handle, callback.ok_or(Code::INVALID_VALUE)?, data)
    }

    fn StreamWaitValue32(handle: u64, address: u64, value: u32, flags: u32) {
        wait(handle, address, 4, value.into(), flags)
    }

    fn StreamWaitValue32_v2(handle: u64, address: u64, value: u32, flags: u32) {
        wait(handle, address, 4, value.into(), flags)
    }

    fn StreamWaitValue64(handle: u64, address: u64, value: u64, flags: u32) {
        wait(handle, address, 8, value, flags)
    }

    fn StreamWaitValue64_v2(handle: u64, address: u64, value: u64, flags: u32) {
        wait(handle, address, 8, value, flags)
    }

    fn StreamWriteValue32(handle: u64, address: u64, value: u32, flags: u32) {
        write(handle, address, 4, value.into(), flags)
    }

    fn StreamWriteValue32_v2(handle: u64, address: u64, value: u32, flags: u32) {
        write(handle, address, 4, value.into(), flags)
    }

    fn StreamWriteValue64(handle: u64, address: u64, value: u64, flags: u32) {
        write(handle, address, 8, value, flags)
    }

    fn StreamWriteValue64_v2(handle: u64, address: u64, value: u64, flags: u32) {
        write(handle, address, 8, value, flags)
    }

    fn StreamBatchMemOp(handle: u64, count: u32, parameters: In<u64>, flags: u32) {
        batch(handle, count, parameters, flags)
    }

    fn StreamBatchMemOp_v2(handle: u64, count: u32, parameters: In<u64>, flags: u32) {
        batch(handle, count, parameters, flags)
    }
}
