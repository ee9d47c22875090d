//! Host memory.
//!
//! # Safety
//! Every address that arrives here is a [`UserPointer`], whose maker promised that it is valid for what the
//! running operation does with it.
#![allow(unsafe_code)]

use super::{Device, Operand, UserPointer};
use crate::encryption::Socket;
use crate::reduce::{self, Form, Reduction, Source};
use std::io;

/// The memory of this process, moved by its processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// Copies of so many bytes use the processor's string instruction where it is fast: it writes whole lines without asking
/// for what is in them, which pays where a peer has read them last. The C library does the same for longer copies.
const STRING_BYTES: std::ops::Range<usize> = 1500..2200;

/// True where short string instructions are fast (FSRM).
fn strings_are_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static FAST: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *FAST.get_or_init(|| {
            let most = std::arch::x86_64::__cpuid(0).eax;
            most >= 7 && std::arch::x86_64::__cpuid_count(7, 0).edx & (1 << 4) != 0
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn apart(a: UserPointer, b: UserPointer, bytes: usize) -> bool {
    a.address().abs_diff(b.address()) >= bytes
}

/// # Safety
/// Both must be valid for `bytes`, and must not overlap.
unsafe fn copy_string(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: promised. The direction flag is clear, as the calling convention has it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
    // SAFETY: promised.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, bytes);
    }
}

/// Operands that are handed on without a heap allocation.
const FEW: usize = 16;

impl Device for Host {
    fn copy(&self, destination: UserPointer, source: UserPointer, bytes: usize) {
        if destination == source || bytes == 0 {
            return;
        }
        // SAFETY: both are valid for `bytes` by their makers' promise, and do not overlap, or `ptr::copy` allows it.
        unsafe {
            if STRING_BYTES.contains(&bytes) && strings_are_fast() && apart(destination, source, bytes) {
                copy_string(destination.as_ptr(), source.as_ptr().cast_const(), bytes);
            } else {
                std::ptr::copy(source.as_ptr().cast_const(), destination.as_ptr(), bytes);
            }
        }
    }

    fn reduce(
        &self,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        form: Form,
        count_elems: usize,
    ) {
        with_sources(operands, |sources| {
            // SAFETY: all addresses are valid for `count_elems` by their makers' promise.
            unsafe { reduction.reduce(sources, destination.as_ptr(), form, count_elems) };
        });
    }

    fn copy_streaming(&self, destination: UserPointer, source: UserPointer, bytes: usize) {
        if destination == source {
            return;
        }
        // SAFETY: both are valid for `bytes` by their makers' promise, and apart unless equal.
        unsafe { reduce::copy_streaming(destination.as_ptr(), source.as_ptr(), bytes) };
    }

    fn reduce_streaming(
        &self,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        form: Form,
        count_elems: usize,
    ) {
        with_sources(operands, |sources| {
            // SAFETY: as in `reduce`.
            unsafe { reduction.reduce_streaming(sources, destination.as_ptr(), form, count_elems) };
        });
    }

    fn send(
        &self,
        socket: &Socket,
        head: &[u8],
        source: UserPointer,
        bytes: usize,
    ) -> io::Result<Option<usize>> {
        // A slice of nothing needs an address that is not null.
        let body: &[u8] = if bytes == 0 {
            &[]
        } else {
            // SAFETY: the maker of `source` promised that it may be read.
            unsafe { std::slice::from_raw_parts(source.as_ptr(), bytes) }
        };
        socket.write_some(head, body)
    }

    fn receive(
        &self,
        socket: &Socket,
        destination: UserPointer,
        bytes: usize,
        tail: &mut [u8],
    ) -> io::Result<Option<usize>> {
        // SAFETY: the maker of `destination` promised that it may be written, and the operation's peers do not look at it;
        // the kernel stores bytes, which may be anything. Zero bytes are never asked for.
        let room = unsafe { std::slice::from_raw_parts_mut(destination.as_ptr(), bytes) };
        socket.read_some_into(room, tail)
    }
}

/// Hands `operands` on as what a [`Reduction`] takes.
fn with_sources(operands: &[Operand], act: impl FnOnce(&[Source])) {
    let source = |operand: &Operand| Source {
        start: operand.start.as_ptr(),
        form: operand.form,
        scale: operand.scale,
    };
    if operands.len() <= FEW {
        let mut few = [Source { start: std::ptr::null(), form: Form::Element, scale: None }; FEW];
        for (place, operand) in few.iter_mut().zip(operands) {
            *place = source(operand);
        }
        act(&few[..operands.len()]);
    } else {
        act(&operands.iter().map(source).collect::<Vec<_>>());
    }
}
