//! How a receiver gets at memory that its peer has lent.
//!
//! # Safety
//! A lent range is valid for reads until the message is finished or the sender closes the ring; the ring's
//! lease (`sync/lease.rs`) keeps threads of one process from reading it after that. Across
//! processes the kernel does the reading and reports addresses that are gone.
#![allow(unsafe_code)]

use crate::device::UserPointer;
use crate::error::{Error, Result};
use crate::os::process;

/// Whether and how a peer's memory can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The peer is a thread of this process.
    SameProcess,
    /// The kernel reads the memory of the process of this number for us.
    CrossProcess(u32),
    /// It cannot: everything goes through the ring.
    None,
}

/// Copies `bytes` of the peer's memory at `address` to `destination`.
pub fn copy(reach: Reach, address: u64, destination: UserPointer, bytes: usize) -> Result<()> {
    match reach {
        Reach::SameProcess => {
            // SAFETY: the sender lends `address` for reads, the caller vouches for `destination`.
            unsafe { std::ptr::copy(address as *const u8, destination.as_ptr(), bytes) };
            Ok(())
        }
        Reach::CrossProcess(pid) => copy_across(pid, address, destination, bytes),
        Reach::None => {
            Err(Error::internal("a message was lent over a link that cannot reach the lender's memory"))
        }
    }
}

fn copy_across(pid: u32, address: u64, destination: UserPointer, bytes: usize) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        // SAFETY: the caller vouches for `destination` and `bytes`.
        let read = unsafe {
            process::read_memory(pid, address + done as u64, destination.as_ptr().add(done), bytes - done)
        };
        match read {
            Ok(0) => return Err(unreadable(pid, address, bytes, libc::EFAULT)),
            Ok(count) => done += count,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(unreadable(pid, address, bytes, errno)),
        }
    }
    Ok(())
}

fn unreadable(pid: u32, address: u64, bytes: usize, errno: i32) -> Error {
    let reason = std::io::Error::from_raw_os_error(errno);
    if errno == libc::ESRCH {
        return Error::remote(format!(
            "process {pid} ended while its data was being read; see its own output, then shrink or abort this \
             communicator"
        ));
    }
    Error::remote(format!(
        "cannot read {bytes} bytes at {address:#x} of process {pid}: {reason}; the buffer passed by that rank is not \
         valid for its count, or the process has become another program (exec), or the kernel forbids it (set ACCL_CROSS_MEMORY=0)"
    ))
}

/// True if the kernel lets us read `expected` at `address` of process `pid`.
pub fn can_read(pid: u32, address: u64, expected: u64) -> bool {
    let mut word = [0u8; 8];
    // SAFETY: `word` is 8 bytes of our own.
    let read = unsafe { process::read_memory(pid, address, word.as_mut_ptr(), word.len()) };
    read == Ok(8) && u64::from_ne_bytes(word) == expected
}
