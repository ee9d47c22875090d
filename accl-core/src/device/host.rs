//! Host memory.
//!
//! # Safety
//! Every address that arrives here is a [`UserPointer`], whose maker promised that it is valid for what the
//! running operation does with it.
#![allow(unsafe_code)]

use super::{Device, Operand, UserPointer};
use crate::reduce::{self, Form, Reduction, Source};

/// The memory of this process, moved by its processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// Operands that are handed on without a heap allocation.
const FEW: usize = 16;

impl Device for Host {
    fn copy(&self, destination: UserPointer, source: UserPointer, bytes: usize) {
        if destination == source || bytes == 0 {
            return;
        }
        // SAFETY: both are valid for `bytes` by their makers' promise; `ptr::copy` allows overlap.
        unsafe { std::ptr::copy(source.as_ptr().cast_const(), destination.as_ptr(), bytes) };
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
