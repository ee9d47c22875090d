//! Sleeping on a word of memory, within a process or across processes.
//!
//! # Safety
//! The kernel only reads the words that it is given, and the references passed here keep them mapped for the
//! duration of each call.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The most words that one sleep can watch (the kernel's FUTEX_WAITV_MAX).
pub const MAX_WORDS: usize = 128;

/// One entry of the kernel's `struct futex_waitv`:
/// value u64 | address u64 | flags u32 | reserved u32.
#[repr(C)]
struct WaitEntry {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const FUTEX2_SIZE_U32: u32 = 2;

/// Sleeps until `word` no longer holds `expected`, somebody wakes it, or `timeout` passes. May return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let limit = timespec(timeout);
    // SAFETY: `word` and `limit` outlive the call; FUTEX_WAIT reads the word and nothing else of ours.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit);
    }
}

/// Sleeps until one of the words no longer holds its expected value; otherwise as [`wait`].
/// Where there is no `futex_waitv` (kernels before 5.16, or a sandbox that forbids it), this is a sleep of at most a
/// millisecond on the first word.
pub fn wait_any(words: &[(&AtomicU32, u32)], timeout: Duration) {
    match words {
        [] => super::clock::sleep(timeout),
        [(word, expected)] => wait(word, *expected, timeout),
        many => {
            if many.len() > MAX_WORDS || !wait_vector(many, timeout) {
                wait(many[0].0, many[0].1, timeout.min(Duration::from_millis(1)));
            }
        }
    }
}

/// Wakes everybody who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: `word` outlives the call; FUTEX_WAKE does not touch its memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

fn wait_vector(words: &[(&AtomicU32, u32)], timeout: Duration) -> bool {
    let mut entries = [const { WaitEntry { value: 0, address: 0, flags: 0, reserved: 0 } }; MAX_WORDS];
    for (entry, (word, expected)) in entries.iter_mut().zip(words) {
        *entry = WaitEntry {
            value: u64::from(*expected),
            address: word.as_ptr() as u64,
            flags: FUTEX2_SIZE_U32,
            reserved: 0,
        };
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let limit = timespec(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32) + timeout);
    // SAFETY: the first `words.len()` entries are filled with words that outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            entries.as_ptr(),
            words.len(),
            0,
            &raw const limit,
            libc::CLOCK_MONOTONIC,
        )
    };
    // Anything else than these three did not sleep, and whoever called would spin.
    result >= 0 || matches!(last_errno(), libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
