//! Scratch memory of an operation, kept for the next one.
//!
//! # Safety
//! A [`Scratch`] gives out addresses of its own allocation, which moves only in [`Scratch::ensure`].
#![allow(unsafe_code)]

use super::UserPointer;
use crate::device::Device;
use crate::types::Scalar;

/// One cache line: the unit of alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that grows when needed and stays.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// At least `bytes`, aligned to a cache line. Addresses from earlier calls are void.
    pub fn ensure(&mut self, bytes: usize) -> UserPointer {
        let lines = bytes.div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        // SAFETY: the allocation is ours and holds at least `bytes`.
        unsafe { UserPointer::new(self.0.as_mut_ptr().cast_const().cast()) }
    }

    /// Copies `bytes` to the beginning and returns where that is.
    pub fn fill(&mut self, bytes: &[u8]) -> UserPointer {
        let start = self.ensure(bytes.len());
        // SAFETY: `ensure` has made room for all of them, and the slice is not part of our memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        start
    }

    /// The first `bytes`, as they are now.
    pub fn read(&self, bytes: usize) -> Vec<u8> {
        let all = self.0.as_ptr().cast::<u8>();
        // SAFETY: the allocation holds that many bytes, all of them initialized.
        unsafe { std::slice::from_raw_parts(all, bytes.min(self.0.len() * 64)) }.to_vec()
    }

    /// Copies the first `bytes` of `source`, or as many as both hold, in whole lines and with stores that go around
    /// the caches.
    pub fn copy_streaming(&mut self, source: &Self, bytes: usize) {
        for (place, line) in self.0.iter_mut().zip(&source.0).take(bytes / 64) {
            streaming::copy(place, line);
        }
        streaming::finish();
    }

    /// Adds the first `bytes` of two rows of float into this one, in the same manner.
    pub fn add_streaming(&mut self, left: &Self, right: &Self, bytes: usize) {
        for (place, (left, right)) in self.0.iter_mut().zip(left.0.iter().zip(&right.0)).take(bytes / 64) {
            streaming::add(place, left, right);
        }
        streaming::finish();
    }

    /// Gives the memory back if it is more than `bytes`.
    pub fn trim(&mut self, bytes: usize) {
        if self.0.len() * 64 > bytes {
            self.0 = Vec::new();
        }
    }
}

/// Lines stored around the caches.
#[cfg(target_arch = "x86_64")]
mod streaming {
    use super::Line;
    use std::arch::x86_64::{_mm_add_ps, _mm_load_ps, _mm_sfence, _mm_stream_ps};

    pub(super) fn copy(place: &mut Line, line: &Line) {
        let (to, from) = (place.0.as_mut_ptr().cast::<f32>(), line.0.as_ptr().cast::<f32>());
        for at in [0, 4, 8, 12] {
            // SAFETY: lines are 16 floats, aligned to as many bytes; every x86-64 has SSE.
            unsafe { _mm_stream_ps(to.add(at), _mm_load_ps(from.add(at))) };
        }
    }

    pub(super) fn add(place: &mut Line, left: &Line, right: &Line) {
        let to = place.0.as_mut_ptr().cast::<f32>();
        let (left, right) = (left.0.as_ptr().cast::<f32>(), right.0.as_ptr().cast::<f32>());
        for at in [0, 4, 8, 12] {
            // SAFETY: as above.
            unsafe {
                let sum = _mm_add_ps(_mm_load_ps(left.add(at)), _mm_load_ps(right.add(at)));
                _mm_stream_ps(to.add(at), sum);
            }
        }
    }

    /// Orders what was stored before whatever tells others of it.
    pub(super) fn finish() {
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() };
    }
}

/// Plain stores, where others are not known.
#[cfg(not(target_arch = "x86_64"))]
mod streaming {
    use super::Line;

    pub(super) fn copy(place: &mut Line, line: &Line) {
        *place = *line;
    }

    pub(super) fn add(place: &mut Line, left: &Line, right: &Line) {
        let both = left.0.chunks_exact(4).zip(right.0.chunks_exact(4));
        let float = |bytes: &[u8]| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        for (place, (left, right)) in place.0.chunks_exact_mut(4).zip(both) {
            place.copy_from_slice(&(float(left) + float(right)).to_ne_bytes());
        }
    }

    pub(super) fn finish() {}
}

/// Reads one scalar of `bytes` (at most 8) from user memory.
pub fn read_scalar(device: &dyn Device, from: UserPointer, bytes: usize) -> Scalar {
    let mut scalar = Scalar::default();
    // SAFETY: `scalar` is 8 bytes of our own, and outlives the copy.
    let to = unsafe { UserPointer::new(scalar.0.as_mut_ptr().cast_const().cast()) };
    device.copy(to, from, bytes.min(scalar.0.len()));
    scalar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_floats(values: &[f32]) -> Scratch {
        let mut scratch = Scratch::default();
        scratch.fill(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>());
        scratch
    }

    #[test]
    fn streaming_stores_store_what_plain_ones_do() {
        let (left, right) = (of_floats(&[1.5; 64]), of_floats(&[2.25; 64]));
        let mut result = of_floats(&[0.0; 48]);
        result.copy_streaming(&left, 64);
        assert_eq!(result.read(128), of_floats(&[[1.5; 16], [0.0; 16]].concat()).read(128));
        // As many lines as all of them hold.
        result.add_streaming(&left, &right, usize::MAX);
        assert_eq!(result.read(192), of_floats(&[3.75; 48]).read(192));
    }
}
