//! Addresses that users vouch for.
//!
//! # Safety
//! [`UserPointer::new`] is where the promise is made; everything that moves bytes later relies on it.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// An address in memory that a caller of the library, or a transport, vouches for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserPointer(*mut u8);

// SAFETY: it is an address; who may access it when is the promise made to `new`.
unsafe impl Send for UserPointer {}
// SAFETY: as above.
unsafe impl Sync for UserPointer {}

impl UserPointer {
    /// Takes an address as it comes from a caller.
    ///
    /// # Safety
    /// The memory that the operation using it implies (by count and type) must be valid for the reads or writes
    /// that the operation's description implies, until the operation has completed.
    pub unsafe fn new(address: *const c_void) -> Self {
        Self(address.cast_mut().cast())
    }

    /// The null pointer: no memory at all.
    pub const fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// True for the null pointer.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The number of the first byte.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// The address as a pointer.
    pub fn as_ptr(self) -> *mut u8 {
        self.0
    }

    /// The address `bytes` further on. The promise to `new` covers the result only inside the same memory.
    #[must_use]
    pub fn byte_add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The address `bytes` before; the same holds.
    #[must_use]
    pub fn byte_sub(self, bytes: usize) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}
