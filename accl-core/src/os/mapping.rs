//! Memory that can be shared: anonymous mappings and nameless files.
//!
//! # Safety
//! A [`Mapping`] owns its address range until it is dropped; what lies in it is shared memory, so it is handed
//! out as a raw pointer and never as a reference to plain data.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// An address range that this process has mapped, readable and writable.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Others may map the same memory.
    shared: bool,
}

// SAFETY: the range belongs to the process, not to a thread; all access goes through raw pointers or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out nothing but the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` of zeroed memory of this process alone; pages come into being when they are touched.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        Self::from_result(start, bytes, false)
    }

    /// Has the kernel fill the range with zeros in every forked child; false where it cannot (before Linux 4.14).
    pub fn zero_in_children(&self) -> bool {
        // SAFETY: the range is ours, and its content in this process stays what it is.
        unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, rustix::mm::Advice::LinuxWipeOnFork)
        }
        .is_ok()
    }

    /// Maps the first `bytes` of a nameless file, shared with everyone who maps it.
    pub fn of_file(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )
        };
        Self::from_result(start, bytes, true)
    }

    /// Maps `bytes` of a file from byte `offset` on, shared, to be read only, or to be written, too.
    pub fn of_foreign_file(file: BorrowedFd<'_>, offset: u64, bytes: usize, written: bool) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let protection = if written { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap(null_mut(), bytes, protection, flags, file, offset) };
        Self::from_result(start, bytes, true)
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes of those pages of the range that anybody has touched, as far as they are in memory now. Asks the kernel for each page: not
    /// for the path of an operation.
    pub fn used_bytes(&self) -> Result<usize> {
        self.used_bytes_of(0..self.bytes)
    }

    /// The same of the whole pages in a range of offsets.
    pub fn used_bytes_of(&self, range: Range<usize>) -> Result<usize> {
        const PAGES: usize = 4096;
        let page_bytes = rustix::param::page_size();
        let range = self.whole_pages(range);
        let mut used = [0u8; PAGES];
        let mut pages = 0;
        for offset in range.clone().step_by(PAGES * page_bytes) {
            let bytes = (range.end - offset).min(PAGES * page_bytes);
            let start = self.start.as_ptr().wrapping_add(offset);
            // SAFETY: the range is ours, and there is a byte for each of its pages.
            if unsafe { libc::mincore(start.cast(), bytes, used.as_mut_ptr()) } != 0 {
                let why = std::io::Error::last_os_error();
                return Err(Error::system("cannot ask which pages of a mapping are in use", why));
            }
            pages += used[..bytes.div_ceil(page_bytes)].iter().filter(|page| **page & 1 != 0).count();
        }
        Ok(pages * page_bytes)
    }

    /// Gives the memory of the whole pages in a range of offsets back to the system, for all who map it: they are zeros then, and take
    /// memory again once they are touched. Nobody may use them meanwhile.
    pub fn give_back(&self, range: Range<usize>) -> Result<()> {
        let range = self.whole_pages(range);
        if range.is_empty() {
            return Ok(());
        }
        // What is private has no file that a hole could be made in.
        let advice = if self.shared { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        let start = self.start.as_ptr().wrapping_add(range.start);
        // SAFETY: the range is ours, and whoever calls says that its content may go.
        if unsafe { libc::madvise(start.cast(), range.len(), advice) } != 0 {
            let why = std::io::Error::last_os_error();
            return Err(Error::system("cannot give memory back", why));
        }
        Ok(())
    }

    /// Those of a range; a mapping begins with a page, and its end is that of its last one.
    fn whole_pages(&self, range: Range<usize>) -> Range<usize> {
        let page_bytes = rustix::param::page_size();
        let end = if range.end >= self.bytes { self.bytes } else { range.end / page_bytes * page_bytes };
        let start = range.start.next_multiple_of(page_bytes);
        start..end.max(start)
    }

    /// Length of the range.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn from_result(
        start: rustix::io::Result<*mut core::ffi::c_void>,
        bytes: usize,
        shared: bool,
    ) -> Result<Self> {
        let start = start.map_err(|errno| {
            let what = format!("cannot map {bytes} bytes of memory");
            Error::system(what, errno)
        })?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::internal("a mapping at address 0"))?;
        Ok(Self { start, bytes, shared })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us, and the owner of the Mapping says that nobody uses it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory of `N` words, each of which anybody may read and write at any time.
#[derive(Debug)]
pub struct Words<const N: usize>(Mapping);

impl<const N: usize> Words<N> {
    /// All words zero, for this process alone.
    pub fn anonymous() -> Result<Self> {
        Mapping::anonymous(N * size_of::<u64>()).map(Self)
    }

    /// The beginning of a file, which must stay as long as it is.
    pub fn of_file(file: BorrowedFd<'_>) -> Result<Self> {
        let bytes = N * size_of::<u64>();
        if file_bytes(file)? < bytes {
            return Err(Error::internal(format!("a file of less than {bytes} bytes, to be mapped")));
        }
        Mapping::of_file(file, bytes).map(Self)
    }

    /// As [`Mapping::used_bytes`].
    pub fn used_bytes(&self) -> Result<usize> {
        self.0.used_bytes()
    }

    /// The words.
    #[inline]
    pub fn get(&self) -> &[AtomicU64; N] {
        // SAFETY: the mapping has N words, begins at a page, lives as long as `self`, and is only handed out as atomics.
        unsafe { &*self.0.start().cast::<[AtomicU64; N]>() }
    }
}

/// True if no process has a file open for writing, or mapped from such a descriptor: so says the kernel, which then grants a
/// lease (given back at once). `file` must be open for reading only, and belong to this user.
pub fn is_written_by_nobody(file: BorrowedFd<'_>) -> bool {
    let lease = |kind: i32| {
        // SAFETY: takes three numbers.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
    };
    lease(libc::F_RDLCK) && lease(libc::F_UNLCK)
}

/// Makes a nameless file of `bytes`: it needs no file system and is gone with its last user.
pub fn nameless_file(name: &str, bytes: usize) -> Result<OwnedFd> {
    let file =
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(|errno| {
            Error::system(
                "cannot make a memory file (memfd_create; a container's seccomp profile must permit it)",
                errno,
            )
        })?;
    rustix::fs::ftruncate(file.as_fd(), bytes as u64)
        .map_err(|errno| Error::system(format!("cannot extend a memory file to {bytes} bytes (see the container's memory limit, and ulimit -f)"), errno))?;
    rustix::fs::fcntl_add_seals(file.as_fd(), SealFlags::SHRINK)
        .map_err(|errno| Error::system("cannot seal a memory file", errno))?;
    Ok(file)
}

/// True if a file can never become shorter than it is: whoever has mapped it does not lose pages.
pub fn keeps_its_length(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// The number of a file in its file system.
pub fn file_inode(file: &OwnedFd) -> Result<u64> {
    let status =
        rustix::fs::fstat(file).map_err(|errno| Error::system("cannot look at a memory file", errno))?;
    Ok(status.st_ino)
}

/// The file behind the shared mapping that holds `bytes` from `address` on, and where in the file that is; none if
/// they are in no such mapping, or the process has not got the file open any more. Looks into `/proc`: not for the
/// path of an operation.
pub fn shared_file_at(address: usize, bytes: usize) -> Option<(OwnedFd, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (start, offset, inode) = maps.lines().find_map(|line| {
        // "7f00-7f10 rw-s 00001000 00:01 1234 /memfd:name (deleted)"
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let shared = words.next()?.ends_with('s');
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let inode: u64 = words.nth(1)?.parse().ok()?;
        let inside = start <= address && address.checked_add(bytes)? <= end;
        (shared && inside && inode != 0).then_some((start, offset, inode))
    })?;
    for entry in std::fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // SAFETY: the descriptor is only looked at and copied; if it was closed meanwhile, that fails.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let same = rustix::fs::fstat(file).is_ok_and(|status| status.st_ino == inode);
        if same && let Ok(own) = rustix::io::fcntl_dupfd_cloexec(file, 0) {
            return Some((own, offset + (address - start) as u64));
        }
    }
    None
}

/// The length of a file that somebody else made.
pub fn file_bytes(file: BorrowedFd<'_>) -> Result<usize> {
    let status =
        rustix::fs::fstat(file).map_err(|errno| Error::system("cannot look at a memory file", errno))?;
    usize::try_from(status.st_size).map_err(|_| Error::internal("a memory file of negative length"))
}
