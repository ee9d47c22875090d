//! Scratch memory of an operation, kept for the next one.
//!
//! # Safety
//! A [`Scratch`] gives out addresses of its own allocation, which moves only in [`Scratch::ensure`].
#![allow(unsafe_code)]

use super::UserPointer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::types::Scalar;
use rustix::io::Errno;

/// One cache line: the unit of alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that grows when needed and stays.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// At least `bytes`, aligned to a cache line. Addresses from earlier calls are void. An error (System) if there is not so much: how
    /// much is needed depends on the call, so that it may be more than there is, and an allocator that gives up ends the program.
    pub fn ensure(&mut self, bytes: usize) -> Result<UserPointer> {
        let lines = bytes.div_ceil(64);
        if let Some(more) = lines.checked_sub(self.0.len()).filter(|more| *more > 0) {
            self.0.try_reserve_exact(more).map_err(|_| {
                Error::system(format_args!("cannot get {bytes} bytes of memory to work in"), Errno::NOMEM)
            })?;
            self.0.resize(lines, Line([0; 64]));
        }
        Ok(self.start())
    }

    /// The first byte, until there is to be more.
    pub fn start(&mut self) -> UserPointer {
        // SAFETY: the allocation is ours; who uses it has asked for as much.
        unsafe { UserPointer::new(self.0.as_mut_ptr().cast_const().cast()) }
    }

    /// Copies `bytes` to the beginning and returns where that is.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<UserPointer> {
        let start = self.ensure(bytes.len())?;
        // SAFETY: `ensure` has made room for all of them, and the slice is not part of our memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        Ok(start)
    }

    /// The first `bytes`, for reading and writing; they must have been made room for.
    pub fn as_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.0.len() * 64);
        // SAFETY: the allocation holds that many bytes, all of them initialized, and is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) }
    }

    /// The first `bytes`, as they are now.
    pub fn read(&self, bytes: usize) -> Vec<u8> {
        let all = self.0.as_ptr().cast::<u8>();
        // SAFETY: the allocation holds that many bytes, all of them initialized.
        unsafe { std::slice::from_raw_parts(all, bytes.min(self.0.len() * 64)) }.to_vec()
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Line>()
    }

    /// Gives the memory back if it is more than `bytes`.
    pub fn trim(&mut self, bytes: usize) {
        if self.0.len() * 64 > bytes {
            self.0 = Vec::new();
        }
    }
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
    use crate::ErrorKind;

    #[test]
    fn more_than_there_is_is_an_error_and_what_was_there_stays() {
        let mut scratch = Scratch::default();
        scratch.fill(b"here").unwrap();
        let error = scratch.ensure(1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(
            error.text().contains("1152921504606846976 bytes") && error.text().contains("ulimit -v"),
            "{error}"
        );
        assert_eq!((scratch.read(4), scratch.bytes()), (b"here".to_vec(), 64));
    }
}
