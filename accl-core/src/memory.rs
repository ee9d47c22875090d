//! Stub, to be replaced at the merge.
#![allow(unsafe_code)]
use crate::{Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

/// An address of the user.
#[derive(Clone, Copy, Debug)]
pub struct UserPointer(usize);

impl UserPointer {
    /// # Safety
    /// The memory must stay valid as long as operations use it.
    pub unsafe fn new(ptr: *const c_void) -> Self {
        Self(ptr as usize)
    }
    /// NULL?
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
    /// The address.
    pub fn address(self) -> usize {
        self.0
    }
}

fn known() -> &'static Mutex<HashMap<usize, Box<[u8]>>> {
    static KNOWN: OnceLock<Mutex<HashMap<usize, Box<[u8]>>>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

/// Memory that peers can map.
pub fn allocate(bytes: usize) -> Result<*mut u8> {
    let mut memory = vec![0u8; bytes].into_boxed_slice();
    let ptr = memory.as_mut_ptr();
    known().lock().map_err(|_| Error::internal("poisoned"))?.insert(ptr as usize, memory);
    Ok(ptr)
}

/// Gives it back.
pub fn free(ptr: *mut u8) -> Result<()> {
    let freed = known().lock().map_err(|_| Error::internal("poisoned"))?.remove(&(ptr as usize));
    freed.map(drop).ok_or_else(|| Error::argument("this memory was not allocated here"))
}
