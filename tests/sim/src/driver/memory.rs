//! Memory, copies, fills and what pointers are.

use std::sync::Arc;

use crate::abi::{In, Out, driver};
use crate::copy::{Copy, Fill, Side};
use crate::device::{self, Context};
use crate::error::{Code, Outcome};
use crate::memory::{self, Kind, Range};
use crate::stream::{self, Stream};
use crate::{capture, raw};

pub(super) fn stream_of(handle: u64) -> Outcome<Arc<Stream>> {
    stream::find(handle, &device::current()?)
}

fn allocate(out: Out<u64>, bytes: usize, kind: Kind) -> Outcome {
    let context = device::current()?;
    capture::forbid_unsafe()?;
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    out.set(memory::allocate(context.device, context.handle, bytes as u64, kind)?.base)
}

/// Waits for the context that the memory is of, then frees.
fn free(address: u64, kinds: &[Kind]) -> Outcome {
    let context = device::current()?;
    capture::forbid_unsafe()?;
    let range = memory::find(address).filter(|range| range.base == address).ok_or(Code::INVALID_VALUE)?;
    let owner: Arc<Context> = device::find(range.context).unwrap_or(context);
    owner.drain()?;
    memory::release(address, kinds)
}

fn copy_now(to: u64, from: u64, bytes: usize, to_side: Side, from_side: Side) -> Outcome {
    Copy::flat(to, from, bytes as u64, to_side, from_side).synchronous(&device::current()?)
}

fn copy_later(to: u64, from: u64, bytes: usize, sides: (Side, Side), handle: u64) -> Outcome {
    Copy::flat(to, from, bytes as u64, sides.0, sides.1).submit(&stream_of(handle)?)
}

fn fill_now(to: u64, value: u32, width: u64, count: usize) -> Outcome {
    let context = device::current()?;
    capture::forbid_unsafe()?;
    Fill::flat(to, value, width, count as u64).submit(&context.legacy())
}

fn fill_later(to: u64, value: u32, width: u64, count: usize, handle: u64) -> Outcome {
    Fill::flat(to, value, width, count as u64).submit(&stream_of(handle)?)
}

fn register(address: u64, bytes: usize, flags: u32) -> Outcome {
    let context = device::current()?;
    capture::forbid_unsafe()?;
    if flags > 15 {
        return Err(Code::INVALID_VALUE);
    }
    memory::register(address, bytes as u64, context.device, context.handle)
}

/// An attribute of a pointer as the bytes of its type.
fn attribute(number: i32, address: u64, range: &Range) -> Outcome<Vec<u8>> {
    let int = |value: u32| value.to_ne_bytes().to_vec();
    let long = |value: u64| value.to_ne_bytes().to_vec();
    let flag = |value: bool| vec![u8::from(value), 0, 0, 0];
    Ok(match number {
        1 => long(range.context),
        2 => int(if range.on_device() { 2 } else { 1 }),
        3 => long(address),
        4 if range.kind == Kind::Device || range.kind == Kind::Imported || range.kind == Kind::Mapped => {
            return Err(Code::INVALID_VALUE);
        }
        4 => long(address),
        6 => flag(false),
        7 => long(range.id),
        8 => flag(range.kind == Kind::Managed),
        9 => int(range.device as u32),
        10 => flag(range.kind == Kind::Device),
        11 => long(range.base),
        12 => long(range.bytes),
        13 => flag(true),
        14 => long(u64::from(range.kind == Kind::Mapped)),
        15 => flag(false),
        16 => int(3),
        17 => long(0),
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn put(out: u64, bytes: &[u8]) -> Outcome {
    if out == 0 {
        return Err(Code::INVALID_VALUE);
    }
    raw::copy(out, bytes.as_ptr() as u64, bytes.len() as u64);
    Ok(())
}

/// The attribute of a pointer that means nothing here.
fn unknown_attribute(number: i32) -> Vec<u8> {
    match number {
        9 => (-2i32).to_ne_bytes().to_vec(),
        2 => vec![0; 4],
        6 | 8 | 10 | 13 | 15 => vec![0; 1],
        _ => vec![0; 8],
    }
}

driver! {
    fn MemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (left, all) = memory::info(device::current()?.device);
        free.set(left as usize)?;
        total.set(all as usize)
    }

    fn MemAlloc_v2(out: Out<u64>, bytes: usize) {
        allocate(out, bytes, Kind::Device)
    }

    fn MemAllocManaged(out: Out<u64>, bytes: usize, _flags: u32) {
        allocate(out, bytes, Kind::Managed)
    }

    fn MemFree_v2(address: u64) {
        if address == 0 {
            return device::current().map(drop);
        }
        free(address, &[Kind::Device, Kind::Managed])
    }

    fn MemAllocAsync(out: Out<u64>, bytes: usize, handle: u64) {
        let stream = stream_of(handle)?;
        capture::forbid(&stream)?;
        let context = device::current()?;
        out.set(memory::allocate(context.device, context.handle, bytes as u64, Kind::Device)?.base)
    }

    fn MemFreeAsync(address: u64, handle: u64) {
        let stream = stream_of(handle)?;
        capture::forbid(&stream)?;
        let live = memory::find(address).is_some_and(|range| range.base == address && range.kind == Kind::Device);
        if !live {
            return Err(Code::INVALID_VALUE);
        }
        stream.queue_after(Vec::new(), Arc::new(move || memory::release(address, &[Kind::Device]))).map(drop)
    }

    fn MemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        device::current()?;
        let range = memory::find(address).filter(|range| range.on_device()).ok_or(Code::NOT_FOUND)?;
        base.set_if(range.base);
        bytes.set_if(range.bytes as usize);
        Ok(())
    }

    fn MemAllocHost_v2(out: Out<u64>, bytes: usize) {
        allocate(out, bytes, Kind::Host)
    }

    fn MemHostAlloc(out: Out<u64>, bytes: usize, flags: u32) {
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        allocate(out, bytes, Kind::Host)
    }

    fn MemFreeHost(address: u64) {
        free(address, &[Kind::Host])
    }

    fn MemHostGetDevicePointer_v2(out: Out<u64>, address: u64, flags: u32) {
        device::current()?;
        let pinned = memory::find(address).filter(|range| !range.on_device());
        if pinned.is_none() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(address)
    }

    fn MemHostGetFlags(out: Out<u32>, address: u64) {
        memory::find(address).filter(|range| !range.on_device()).ok_or(Code::INVALID_VALUE)?;
        out.set(2)
    }

    fn MemHostRegister(address: u64, bytes: usize, flags: u32) {
        register(address, bytes, flags)
    }

    fn MemHostRegister_v2(address: u64, bytes: usize, flags: u32) {
        register(address, bytes, flags)
    }

    fn MemHostUnregister(address: u64) {
        device::current()?.drain()?;
        memory::release(address, &[Kind::Registered]).map_err(|_| Code::HOST_NOT_REGISTERED)
    }

    fn Memcpy(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Side::Any, Side::Any)
    }

    fn MemcpyAsync(to: u64, from: u64, bytes: usize, handle: u64) {
        copy_later(to, from, bytes, (Side::Any, Side::Any), handle)
    }

    fn MemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Side::Device, Side::Host)
    }

    fn MemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Side::Host, Side::Device)
    }

    fn MemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to, from, bytes, Side::Device, Side::Device)
    }

    fn MemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, handle: u64) {
        copy_later(to, from, bytes, (Side::Device, Side::Host), handle)
    }

    fn MemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, handle: u64) {
        copy_later(to, from, bytes, (Side::Host, Side::Device), handle)
    }

    fn MemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, handle: u64) {
        copy_later(to, from, bytes, (Side::Device, Side::Device), handle)
    }

    fn MemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) {
        device::find(to_context)?;
        device::find(from_context)?;
        copy_now(to, from, bytes, Side::Device, Side::Device)
    }

    fn MemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, handle: u64) {
        device::find(to_context)?;
        device::find(from_context)?;
        copy_later(to, from, bytes, (Side::Device, Side::Device), handle)
    }

    fn MemsetD8_v2(to: u64, value: u8, count: usize) {
        fill_now(to, value.into(), 1, count)
    }

    fn MemsetD16_v2(to: u64, value: u16, count: usize) {
        fill_now(to, value.into(), 2, count)
    }

    fn MemsetD32_v2(to: u64, value: u32, count: usize) {
        fill_now(to, value, 4, count)
    }

    fn MemsetD8Async(to: u64, value: u8, count: usize, handle: u64) {
        fill_later(to, value.into(), 1, count, handle)
    }

    fn MemsetD16Async(to: u64, value: u16, count: usize, handle: u64) {
        fill_later(to, value.into(), 2, count, handle)
    }

    fn MemsetD32Async(to: u64, value: u32, count: usize, handle: u64) {
        fill_later(to, value, 4, count, handle)
    }

    fn PointerGetAttribute(out: u64, number: i32, address: u64) {
        device::initialized()?;
        let range = memory::find(address).ok_or(Code::INVALID_VALUE)?;
        let bytes = attribute(number, address, &range)?;
        let is_flag = matches!(number, 6 | 8 | 10 | 13 | 15);
        put(out, if is_flag { &bytes[..1] } else { &bytes })
    }

    /// Pointers that mean nothing here are no error: their attributes say so.
    fn PointerGetAttributes(count: u32, numbers: In<i32>, outs: In<u64>, address: u64) {
        device::initialized()?;
        let range = memory::find(address);
        for index in 0..count as usize {
            let number = numbers.at(index)?;
            let known = range.as_ref().and_then(|range| attribute(number, address, range).ok());
            let bytes = known.unwrap_or_else(|| unknown_attribute(number));
            let is_flag = matches!(number, 6 | 8 | 10 | 13 | 15);
            put(outs.at(index)?, if is_flag { &bytes[..1] } else { &bytes })?;
        }
        Ok(())
    }

    fn PointerSetAttribute(_value: u64, number: i32, address: u64) {
        device::initialized()?;
        memory::find(address).ok_or(Code::INVALID_VALUE)?;
        // Only SYNC_MEMOPS can be set; copies here are as ordered as it asks for.
        if number == 6 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}
