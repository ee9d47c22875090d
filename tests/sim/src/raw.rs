//! Addresses become memory here, and nowhere else but in the faces' arguments.
//!
//! # Safety
//!
//! These functions are safe to call in the sense in which a copy engine is: who calls them has checked addresses against the
//! table of allocations, or believes the program that its own memory is valid (the contract of CUDA's functions). A wrong address ends
//! the process by a signal, which is what a test wants to see.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies; ranges may overlap.
pub(crate) fn copy(to: u64, from: u64, bytes: u64) {
    // SAFETY: both ranges were checked or are the program's (see the head of the file).
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) }
}

/// Fills with copies of the `width` lowest bytes of `value`.
pub(crate) fn fill(to: u64, value: u32, width: u64, count: u64) {
    if width == 1 {
        // SAFETY: the range was checked (see the head of the file).
        unsafe { std::ptr::write_bytes(to as *mut u8, value as u8, count as usize) }
        return;
    }
    let pattern = value.to_ne_bytes();
    for index in 0..count {
        copy(to + index * width, pattern.as_ptr() as u64, width);
    }
}

/// A copy of bytes of the program.
pub(crate) fn bytes(from: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    copy(bytes.as_mut_ptr() as u64, from, count as u64);
    bytes
}

/// A `width`-byte load that other threads and processes may race with; the address is aligned.
pub(crate) fn load(address: u64, width: u64) -> u64 {
    match width {
        // SAFETY: checked and aligned (see the head of the file); atomics allow for races.
        1 => u64::from(unsafe { AtomicU8::from_ptr(address as *mut u8) }.load(Ordering::Acquire)),
        // SAFETY: as above.
        2 => u64::from(unsafe { AtomicU16::from_ptr(address as *mut u16) }.load(Ordering::Acquire)),
        // SAFETY: as above.
        4 => u64::from(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire)),
        // SAFETY: as above.
        _ => unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire),
    }
}

/// A `width`-byte store that others may race with; the address is aligned.
pub(crate) fn store(address: u64, width: u64, value: u64) {
    match width {
        // SAFETY: checked and aligned (see the head of the file); atomics allow for races.
        1 => unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(value as u8, Ordering::Release),
        // SAFETY: as above.
        2 => unsafe { AtomicU16::from_ptr(address as *mut u16) }.store(value as u16, Ordering::Release),
        // SAFETY: as above.
        4 => unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value as u32, Ordering::Release),
        // SAFETY: as above.
        _ => unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release),
    }
}

/// Changes memory atomically (2, 4 or 8 bytes, aligned), and returns what was there.
pub(crate) fn update(address: u64, width: u64, change: impl Fn(u64) -> u64) -> u64 {
    match width {
        2 => {
            // SAFETY: checked and aligned (see the head of the file).
            let cell = unsafe { AtomicU16::from_ptr(address as *mut u16) };
            let old = cell
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(u64::from(old)) as u16));
            u64::from(old.unwrap_or_default())
        }
        4 => {
            // SAFETY: as above.
            let cell = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            let old = cell
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(u64::from(old)) as u32));
            u64::from(old.unwrap_or_default())
        }
        _ => {
            // SAFETY: as above.
            let cell = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old)))
                .unwrap_or_default()
        }
    }
}
