//! Memory, copies and fills.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::sync::Arc;

use crate::abi::{Out, runtime};
use crate::copy::{Copy, Fill, Side};
use crate::device::{self, Context};
use crate::error::{Code, Outcome};
use crate::memory::{self, Kind};
use crate::{capture, stream};

/// The sides of a `cudaMemcpyKind`.
fn sides(kind: i32) -> Outcome<(Side, Side)> {
    match kind {
        0 => Ok((Side::Host, Side::Host)),
        1 => Ok((Side::Device, Side::Host)),
        2 => Ok((Side::Host, Side::Device)),
        3 => Ok((Side::Device, Side::Device)),
        4 => Ok((Side::Any, Side::Any)),
        _ => Err(Code::INVALID_DIRECTION),
    }
}

fn allocate(out: Out<u64>, bytes: usize, kind: Kind) -> Outcome {
    let context = device::runtime_context()?;
    capture::forbid_unsafe()?;
    if bytes == 0 {
        return out.set(0);
    }
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    out.set(memory::allocate(context.device, context.handle, bytes as u64, kind)?.base)
}

/// Waits for the device that the memory is of, then frees.
fn free(address: u64, kinds: &[Kind]) -> Outcome {
    let context = device::runtime_context()?;
    capture::forbid_unsafe()?;
    if address == 0 {
        return Ok(());
    }
    let range = memory::find(address).filter(|range| range.base == address).ok_or(Code::INVALID_VALUE)?;
    let owner = device::find(range.context).unwrap_or(context);
    owner.drain()?;
    memory::release(address, kinds)
}

fn flat(to: u64, from: u64, bytes: usize, kind: i32) -> Outcome<Copy> {
    let (to_side, from_side) = sides(kind)?;
    Ok(Copy::flat(to, from, bytes as u64, to_side, from_side))
}

fn rows(to: (u64, usize), from: (u64, usize), width: usize, rows: usize, kind: i32) -> Outcome<Copy> {
    let (to_side, from_side) = sides(kind)?;
    Ok(Copy {
        to: to.0,
        from: from.0,
        width: width as u64,
        rows: rows as u64,
        to_pitch: to.1 as u64,
        from_pitch: from.1 as u64,
        to_side,
        from_side,
    })
}

fn stream_of(handle: u64) -> Outcome<(Arc<Context>, Arc<stream::Stream>)> {
    let context = device::runtime_context()?;
    let stream = stream::find(handle, &context)?;
    Ok((context, stream))
}

runtime! {
    fn cudaMalloc(out: Out<u64>, bytes: usize) {
        allocate(out, bytes, Kind::Device)
    }

    fn cudaMallocManaged(out: Out<u64>, bytes: usize, _flags: u32) {
        allocate(out, bytes, Kind::Managed)
    }

    fn cudaMallocHost(out: Out<u64>, bytes: usize) {
        allocate(out, bytes, Kind::Host)
    }

    fn cudaHostAlloc(out: Out<u64>, bytes: usize, flags: u32) {
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        allocate(out, bytes, Kind::Host)
    }

    fn cudaFree(address: u64) {
        free(address, &[Kind::Device, Kind::Managed])
    }

    fn cudaFreeHost(address: u64) {
        free(address, &[Kind::Host])
    }

    fn cudaMallocAsync(out: Out<u64>, bytes: usize, handle: u64) {
        let (context, stream) = stream_of(handle)?;
        capture::forbid(&stream)?;
        out.set(memory::allocate(context.device, context.handle, bytes.max(1) as u64, Kind::Device)?.base)
    }

    fn cudaFreeAsync(address: u64, handle: u64) {
        let (_, stream) = stream_of(handle)?;
        capture::forbid(&stream)?;
        let live = memory::find(address).is_some_and(|range| range.base == address && range.kind == Kind::Device);
        if !live {
            return Err(Code::INVALID_VALUE);
        }
        stream.queue_after(Vec::new(), Arc::new(move || memory::release(address, &[Kind::Device]))).map(drop)
    }

    fn cudaHostRegister(address: u64, bytes: usize, _flags: u32) {
        let context = device::runtime_context()?;
        capture::forbid_unsafe()?;
        memory::register(address, bytes as u64, context.device, context.handle)
    }

    fn cudaHostUnregister(address: u64) {
        let context = device::runtime_context()?;
        context.drain()?;
        memory::release(address, &[Kind::Registered]).map_err(|_| Code::HOST_NOT_REGISTERED)
    }

    fn cudaHostGetDevicePointer(out: Out<u64>, address: u64, flags: u32) {
        let pinned = memory::find(address).filter(|range| !range.on_device());
        if pinned.is_none() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(address)
    }

    fn cudaHostGetFlags(out: Out<u32>, address: u64) {
        memory::find(address).filter(|range| !range.on_device()).ok_or(Code::INVALID_VALUE)?;
        out.set(2)
    }

    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        let (left, all) = memory::info(device::runtime_context()?.device);
        free.set(left as usize)?;
        total.set(all as usize)
    }

    fn cudaPointerGetAttributes(out: Out<i32>, address: u64) {
        device::runtime_context()?;
        let range = memory::find(address);
        let kind = range.as_ref().map_or(0, |range| match range.kind {
            Kind::Managed => 3,
            _ if range.on_device() => 2,
            _ => 1,
        });
        out.set(kind)?;
        out.set_at(1, range.as_ref().map_or(-2, |range| range.device as i32))?;
        let pointers = out.cast::<u64>();
        pointers.set_at(1, if kind == 0 { 0 } else { address })?;
        pointers.set_at(2, if kind == 2 { 0 } else { address })
    }

    fn cudaMemcpy(to: u64, from: u64, bytes: usize, kind: i32) {
        let context = device::runtime_context()?;
        flat(to, from, bytes, kind)?.synchronous(&context)
    }

    fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: i32, handle: u64) {
        let (_, stream) = stream_of(handle)?;
        flat(to, from, bytes, kind)?.submit(&stream)
    }

    fn cudaMemcpyPeer(to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize) {
        device::check(to_device)?;
        device::check(from_device)?;
        flat(to, from, bytes, 3)?.synchronous(&device::runtime_context()?)
    }

    fn cudaMemcpyPeerAsync(to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize, handle: u64) {
        device::check(to_device)?;
        device::check(from_device)?;
        let (_, stream) = stream_of(handle)?;
        flat(to, from, bytes, 3)?.submit(&stream)
    }

    fn cudaMemcpy2D(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: i32) {
        let context = device::runtime_context()?;
        rows((to, to_pitch), (from, from_pitch), width, height, kind)?.synchronous(&context)
    }

    fn cudaMemcpy2DAsync(
        to: u64,
        to_pitch: usize,
        from: u64,
        from_pitch: usize,
        width: usize,
        height: usize,
        kind: i32,
        handle: u64,
    ) {
        let (_, stream) = stream_of(handle)?;
        rows((to, to_pitch), (from, from_pitch), width, height, kind)?.submit(&stream)
    }

    fn cudaMemset(to: u64, value: i32, bytes: usize) {
        capture::forbid_unsafe()?;
        let context = device::runtime_context()?;
        Fill::flat(to, value as u32, 1, bytes as u64).submit(&context.legacy())
    }

    fn cudaMemsetAsync(to: u64, value: i32, bytes: usize, handle: u64) {
        let (_, stream) = stream_of(handle)?;
        Fill::flat(to, value as u32, 1, bytes as u64).submit(&stream)
    }

    fn cudaMemset2DAsync(to: u64, pitch: usize, value: i32, width: usize, height: usize, handle: u64) {
        let (_, stream) = stream_of(handle)?;
        let fill = Fill::flat(to, value as u32, 1, width as u64);
        Fill { rows: height as u64, pitch: pitch as u64, ..fill }.submit(&stream)
    }
}
