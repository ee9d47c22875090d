//! Descriptors that forked children do not keep.
//!
//! A connection ends when the last descriptor of it is closed: a child that outlives its parent, a data loader, say, would hide the
//! parent's death from the other end. So children get nothing in their place, by the same number, which they may close as they like.
//! That goes for the connections of communicators; those by which ranks join end with their own time limits.
//!
//! # Safety
//! What runs in the child before it is the program's again is as careful as a signal handler: it reads atomics, opens a file, and
//! replaces descriptors of connections that are the parent's.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Higher numbers are kept by children.
const MOST: usize = 1 << 16;

/// A bit for each descriptor that is withheld.
static WITHHELD: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// As long as it lives, forked children do not get a descriptor. To be dropped before that is closed.
#[derive(Debug)]
pub struct Withheld(usize);

impl Withheld {
    /// Withholds `descriptor`. An error (System) if the C library has no memory for its list of handlers.
    pub fn new(descriptor: BorrowedFd<'_>) -> Result<Self> {
        static INSTALLED: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler is a function without arguments; libraries of ours stay loaded (`-z nodelete`).
        let errno = *INSTALLED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        if errno != 0 {
            return Err(Error::system(
                "cannot have forked children let go of connections",
                std::io::Error::from_raw_os_error(errno),
            ));
        }
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(MOST);
        if let Some(word) = WITHHELD.get(number / 64) {
            word.fetch_or(1 << (number % 64), Ordering::Relaxed);
        }
        Ok(Self(number))
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        if let Some(word) = WITHHELD.get(self.0 / 64) {
            word.fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
        }
    }
}

extern "C" fn in_child() {
    // SAFETY: a constant path; `open` may be called here.
    let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for (place, word) in WITHHELD.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let number = (place * 64) as i32 + bits.trailing_zeros().cast_signed();
            bits &= bits - 1;
            // Without a file in its place the number might be given to another one, which would be worse than a death that is
            // noticed late.
            if nothing >= 0 {
                // SAFETY: the descriptor is the parent's: nothing of this process uses it but to close it.
                unsafe { libc::dup3(nothing, number, libc::O_CLOEXEC) };
            }
        }
    }
    if nothing >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(nothing) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn a_child_that_lives_on_keeps_no_connection() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let withheld = Withheld::new(there.as_fd()).unwrap();
        // SAFETY: the child only sleeps and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::sleep(60);
                libc::_exit(0);
            }
        }
        drop(withheld);
        drop(there);
        here.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The end of the stream comes although the child lives.
        assert_eq!(here.read(&mut [0; 8]).unwrap(), 0);
        // SAFETY: our child.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }
}
