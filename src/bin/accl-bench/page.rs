//! A page that all ranks of this machine share, with a barrier in it: the bench's own, so that waiting for each
//! other never depends on the library under test.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The page's content. All zero is the state to begin with.
#[repr(C)]
#[derive(Debug)]
struct Shared {
    /// How many have arrived in this round.
    arrived: AtomicU32,
    /// Counts rounds; the last to arrive advances it and wakes the others.
    round: AtomicU32,
}

/// The mapped page.
#[derive(Debug)]
pub(crate) struct Page {
    shared: NonNull<Shared>,
    ranks: u32,
    file: OwnedFd,
}

// SAFETY: The page is never unmapped and holds only atomics.
unsafe impl Send for Page {}
// SAFETY: As above.
unsafe impl Sync for Page {}

const PAGE_BYTES: usize = 4096;
/// Polls before sleeping: ranks usually arrive close together, but there may be more of them than processors.
const SPINS: u32 = 200;

impl Page {
    /// A new page, in memory without a name that vanishes with its last user.
    pub(crate) fn create(ranks: usize) -> std::io::Result<Self> {
        // SAFETY: The name is a text with its end.
        let raw = unsafe { libc::memfd_create(c"accl-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: A new descriptor that nobody else owns.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: Only takes numbers.
        if unsafe { libc::ftruncate(raw, PAGE_BYTES as libc::off_t) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Self::map(file, ranks)
    }

    /// The page that the parent process passed on as this descriptor.
    pub(crate) fn inherited(descriptor: RawFd, ranks: usize) -> std::io::Result<Self> {
        // SAFETY: The parent opened it for this process alone; nothing else here knows the number.
        Self::map(unsafe { OwnedFd::from_raw_fd(descriptor) }, ranks)
    }

    fn map(file: OwnedFd, ranks: usize) -> std::io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: A new mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE_BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let shared = NonNull::new(address.cast()).ok_or_else(std::io::Error::last_os_error)?;
        Ok(Self { shared, ranks: ranks as u32, file })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns when all ranks have called. A rank that never comes is the hub's business, not ours.
    pub(crate) fn barrier(&self) {
        // SAFETY: The mapping is valid, aligned and never goes away; zeroes are valid atomics.
        let shared = unsafe { self.shared.as_ref() };
        // The round before we arrive: it cannot advance without us.
        let round = shared.round.load(Ordering::Acquire);
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            // Before the round advances, for those who see it advance may arrive again at once.
            shared.arrived.store(0, Ordering::Relaxed);
            // Pairs with the acquiring loads below: what all did before is seen by all.
            shared.round.fetch_add(1, Ordering::AcqRel);
            futex(&shared.round, libc::FUTEX_WAKE, i32::MAX as u32);
            return;
        }
        for _ in 0..SPINS {
            if shared.round.load(Ordering::Acquire) != round {
                return;
            }
            std::thread::yield_now();
        }
        while shared.round.load(Ordering::Acquire) == round {
            futex(&shared.round, libc::FUTEX_WAIT, round);
        }
    }
}

/// Waits while the word has the value, or wakes as many; spurious returns are the caller's loop's business.
fn futex(word: &AtomicU32, what: i32, value: u32) {
    // SAFETY: The word is aligned and lives; no time limit, no second word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), what, value, std::ptr::null::<libc::timespec>()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn nobody_overtakes() {
        let page = Page::create(5).unwrap();
        let counter = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for round in 0..200 {
                        counter.fetch_add(1, Ordering::Relaxed);
                        page.barrier();
                        assert_eq!(counter.load(Ordering::Relaxed), 5 * (round + 1));
                        page.barrier();
                    }
                });
            }
        });
    }
}
