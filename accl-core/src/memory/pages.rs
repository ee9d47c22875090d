//! Whole pages of memory, for devices.
//!
//! # Safety
//! [`Pages`] gives out addresses of a mapping of its own, which stays where it is until it is dropped; who uses one has asked for as much.
#![allow(unsafe_code)]

use super::UserPointer;
use crate::error::Result;
use crate::os::mapping::Mapping;

/// Memory that begins and ends with a page, so that what else lies in this process is not concerned by what a device, or the kernel
/// for its sake, does with its pages. None until it is needed.
#[derive(Debug, Default)]
pub struct Pages(Option<Mapping>);

impl Pages {
    /// `bytes` of memory, zero when it is made: at the first call, and never more than then.
    pub fn ensure(&mut self, bytes: usize) -> Result<UserPointer> {
        if self.0.is_none() {
            self.0 = Some(Mapping::anonymous(bytes)?);
        }
        Ok(self.start())
    }

    /// The first byte; null as long as there is none.
    pub fn start(&self) -> UserPointer {
        let Some(mapping) = &self.0 else { return UserPointer::null() };
        // SAFETY: the mapping is ours; who uses it has asked for as much.
        unsafe { UserPointer::new(mapping.start().cast_const().cast()) }
    }

    /// A copy of `bytes` from `offset` on, as far as there are so many.
    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let Some(mapping) = &self.0 else { return Vec::new() };
        let offset = offset.min(mapping.len_bytes());
        let bytes = bytes.min(mapping.len_bytes() - offset);
        // SAFETY: the range is within the mapping, whose bytes are all initialized.
        unsafe { std::slice::from_raw_parts(mapping.start().add(offset), bytes) }.to_vec()
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Mapping::len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_begin_at_pages_and_stay() {
        let mut pages = Pages::default();
        assert_eq!((pages.bytes(), pages.start().address(), pages.read(0, 9)), (0, 0, Vec::new()));
        let start = pages.ensure(10_000).unwrap();
        assert_eq!(start.address() % rustix::param::page_size(), 0);
        assert_eq!(pages.ensure(10_000).unwrap().address(), start.address());
        assert_eq!((pages.bytes(), pages.read(9_998, 7)), (10_000, vec![0; 2]));
    }
}
