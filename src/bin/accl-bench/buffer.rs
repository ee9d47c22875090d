//! Memory of a rank that the library reads and writes, with guard zones on both sides.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::failure::{Exit, Failure, Outcome};
use crate::library::Library;

/// Bytes before and after the data that nobody may write.
pub(crate) const GUARD_BYTES: usize = 4096;
const GUARD: u8 = 0x5a;

/// A buffer. It is freed with the process: the library may hold on to it as long as it likes.
#[derive(Debug)]
pub(crate) struct Buffer {
    base: NonNull<u8>,
    total_bytes: usize,
    /// Where the data starts, and how much of it there is.
    offset: usize,
    data_bytes: usize,
    /// How much of it the current call may use.
    used_bytes: usize,
}

impl Buffer {
    /// `data_bytes` that start `shift_bytes` after a page boundary. `library`: allocate with its ncclMemAlloc.
    pub(crate) fn new(data_bytes: usize, shift_bytes: usize, library: Option<&Library>) -> Outcome<Self> {
        let total_bytes = data_bytes + shift_bytes + 2 * GUARD_BYTES;
        let base = match library {
            Some(library) => from_library(library, total_bytes)?,
            None => from_system(total_bytes)?,
        };
        let mut buffer =
            Self { base, total_bytes, offset: GUARD_BYTES + shift_bytes, data_bytes, used_bytes: 0 };
        // Every page is written once, or the first operations would measure the kernel.
        buffer.everything().fill(GUARD);
        buffer.data(0, data_bytes).fill(0);
        Ok(buffer)
    }

    fn everything(&mut self) -> &mut [u8] {
        // SAFETY: The memory is ours, this long, initialized by the kernel, and borrowed as this value is. The
        // library touches it only during its calls, when no borrow is held.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.total_bytes) }
    }

    /// Part of the data.
    pub(crate) fn data(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        let begin = self.offset + start;
        debug_assert!(start + bytes <= self.data_bytes);
        &mut self.everything()[begin..begin + bytes]
    }

    /// The address of a byte of the data, for the library.
    pub(crate) fn address(&self, at: usize) -> *mut c_void {
        debug_assert!(at <= self.data_bytes);
        self.base.as_ptr().wrapping_add(self.offset + at).cast()
    }

    pub(crate) fn whole(&self) -> (*mut c_void, usize) {
        (self.base.as_ptr().cast(), self.total_bytes)
    }

    /// Says how much of the data the next call may use, and sets the guard zone right behind that.
    pub(crate) fn arm(&mut self, used_bytes: usize) {
        self.used_bytes = used_bytes.min(self.data_bytes);
        let (begin, end) = self.zones();
        let everything = self.everything();
        everything[..begin].fill(GUARD);
        everything[end..end + GUARD_BYTES].fill(GUARD);
    }

    /// How many guard bytes were written since [`Self::arm`].
    pub(crate) fn damage(&mut self) -> usize {
        let (begin, end) = self.zones();
        let everything = self.everything();
        let zones = [&everything[..begin], &everything[end..end + GUARD_BYTES]];
        zones.iter().flat_map(|zone| zone.iter()).filter(|&&byte| byte != GUARD).count()
    }

    /// Where the used data begins and ends.
    fn zones(&self) -> (usize, usize) {
        (self.offset, self.offset + self.used_bytes)
    }
}

fn from_system(bytes: usize) -> Outcome<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: A new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    let refused = || {
        let text =
            format!("cannot allocate {}: {}", crate::sizes::human(bytes), std::io::Error::last_os_error());
        Failure::usage(text)
    };
    if address == libc::MAP_FAILED {
        return Err(refused());
    }
    NonNull::new(address.cast()).ok_or_else(refused)
}

fn from_library(library: &Library, bytes: usize) -> Outcome<NonNull<u8>> {
    let allocate = library.functions.mem_alloc.need()?;
    let mut address = std::ptr::null_mut();
    // SAFETY: Writes one pointer.
    library.check("ncclMemAlloc", unsafe { allocate(&mut address, bytes) })?;
    NonNull::new(address.cast())
        .ok_or_else(|| Failure::new(Exit::Call, "ncclMemAlloc succeeded without memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_beside_the_used_data_are_seen() {
        let mut buffer = Buffer::new(10_000, 4, None).unwrap();
        assert_eq!(buffer.address(0) as usize % 4096, 4);
        for used in [100, 10_000] {
            buffer.arm(used);
            buffer.data(0, used).fill(9);
            assert_eq!(buffer.damage(), 0);
            let begin = buffer.offset;
            buffer.everything()[begin - 1] = 0;
            buffer.everything()[begin + used] = 0;
            buffer.everything()[begin + used + 1] = 0;
            assert_eq!(buffer.damage(), 3);
        }
    }
}
