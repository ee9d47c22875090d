//! Host memory.
//!
//! # Safety
//! Every address that arrives here is a [`UserPointer`], whose maker promised that it is valid for what the
//! running operation does with it.
#![allow(unsafe_code)]

use super::{Device, Operand, UserPointer};
use crate::reduce::{Form, Reduction, Source};

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
        if count_elems == 0 {
            return;
        }
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
            // SAFETY: all addresses are valid for `count_elems` by their makers' promise.
            unsafe { reduction.reduce(&few[..operands.len()], destination.as_ptr(), form, count_elems) };
        } else {
            let many: Vec<Source> = operands.iter().map(source).collect();
            // SAFETY: as above.
            unsafe { reduction.reduce(&many, destination.as_ptr(), form, count_elems) };
        }
    }
}
