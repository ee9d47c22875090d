//! Variables of device code, by the address of their shadow in the host program; and memory in rows.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use crate::abi::{Out, runtime};
use crate::copy::{Copy, Side};
use crate::error::{Code, Outcome};
use crate::memory::{self, Kind};
use crate::{capture, device, registered, stream};

/// Where a part of a variable lies.
fn part(host: u64, bytes: usize, offset: usize) -> Outcome<u64> {
    let (address, size) = registered::variable(host, &device::runtime_context()?)?;
    let end = bytes.checked_add(offset).ok_or(Code::INVALID_VALUE)?;
    if end as u64 > size { Err(Code::INVALID_VALUE) } else { Ok(address + offset as u64) }
}

/// A copy to a variable from the host (kind 1) or a device (3).
fn to_symbol(host: u64, from: u64, bytes: usize, offset: usize, kind: i32) -> Outcome<Copy> {
    let side = match kind {
        1 => Side::Host,
        3 => Side::Device,
        4 => Side::Any,
        _ => return Err(Code::INVALID_DIRECTION),
    };
    Ok(Copy::flat(part(host, bytes, offset)?, from, bytes as u64, Side::Device, side))
}

/// A copy from a variable to the host (kind 2) or a device (3).
fn from_symbol(to: u64, host: u64, bytes: usize, offset: usize, kind: i32) -> Outcome<Copy> {
    let side = match kind {
        2 => Side::Host,
        3 => Side::Device,
        4 => Side::Any,
        _ => return Err(Code::INVALID_DIRECTION),
    };
    Ok(Copy::flat(to, part(host, bytes, offset)?, bytes as u64, side, Side::Device))
}

runtime! {
    fn cudaGetSymbolAddress(out: Out<u64>, host: u64) {
        out.set(part(host, 0, 0)?)
    }

    fn cudaGetSymbolSize(out: Out<usize>, host: u64) {
        out.set(registered::variable(host, &device::runtime_context()?)?.1 as usize)
    }

    fn cudaMemcpyToSymbol(host: u64, from: u64, bytes: usize, offset: usize, kind: i32) {
        to_symbol(host, from, bytes, offset, kind)?.synchronous(&device::runtime_context()?)
    }

    fn cudaMemcpyToSymbolAsync(host: u64, from: u64, bytes: usize, offset: usize, kind: i32, handle: u64) {
        let stream = stream::find(handle, &device::runtime_context()?)?;
        to_symbol(host, from, bytes, offset, kind)?.submit(&stream)
    }

    fn cudaMemcpyFromSymbol(to: u64, host: u64, bytes: usize, offset: usize, kind: i32) {
        from_symbol(to, host, bytes, offset, kind)?.synchronous(&device::runtime_context()?)
    }

    fn cudaMemcpyFromSymbolAsync(to: u64, host: u64, bytes: usize, offset: usize, kind: i32, handle: u64) {
        let stream = stream::find(handle, &device::runtime_context()?)?;
        from_symbol(to, host, bytes, offset, kind)?.submit(&stream)
    }

    fn cudaMallocPitch(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        let context = device::runtime_context()?;
        capture::forbid_unsafe()?;
        let step = width.next_multiple_of(512);
        let bytes = step.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        pitch.set(step)?;
        out.set(memory::allocate(context.device, context.handle, bytes as u64, Kind::Device)?.base)
    }
}
