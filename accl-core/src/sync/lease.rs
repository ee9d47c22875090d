//! Lending memory to a reader who may be in the middle of it when the lender wants it back.
//!
//! The reader announces that it reads, then looks whether the lease has ended; the lender ends the lease, then
//! looks whether the reader reads. Each side puts a sequentially consistent fence between its store and its load
//! (the pattern of Dekker), so at least one of them sees the other: either the reader keeps off, or the lender
//! waits until it is through.

use super::prim::{AtomicU32, Ordering, fence};

/// The words of one lease, in memory that both sides can reach. All bytes zero is a lease that lasts.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Lease {
    /// The lender's: the memory must not be touched any more.
    closed: Line,
    /// The reader's: it is reading right now.
    reading: Line,
}

/// A word on a line of its own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line(AtomicU32);

impl Lease {
    /// The reader's announcement. True if it may read until [`Lease::end_reading`]; false if the lease has ended.
    #[must_use]
    pub fn begin_reading(&self) -> bool {
        self.reading.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `close`.
        fence(Ordering::SeqCst);
        if self.closed.0.load(Ordering::Relaxed) != 0 {
            self.end_reading();
            return false;
        }
        true
    }

    /// The reader is through. Release: its reads are over before the lender sees this.
    pub fn end_reading(&self) {
        self.reading.0.store(0, Ordering::Release);
    }

    /// For readers that announce nothing, since the kernel copies for them and survives whatever becomes of the
    /// memory: true if the lease lasts, and what was copied before this look is what the lender meant.
    pub fn lasts(&self) -> bool {
        // Keeps the copy before the look; pairs with the fence in `close`, which keeps what the lender does with
        // its memory behind the end of the lease.
        fence(Ordering::Acquire);
        self.closed.0.load(Ordering::Relaxed) == 0
    }

    /// Ends the lease. When this returns, nobody reads the memory and nobody will, unless `unneeded` says that
    /// the reader has finished with all of it anyway. Calls `pause` between looks.
    pub fn close(&self, unneeded: impl Fn() -> bool, pause: impl Fn()) {
        self.closed.0.store(1, Ordering::Relaxed);
        // Pairs with the fences in `begin_reading` and `lasts`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with `end_reading`.
        while !unneeded() && self.reading.0.load(Ordering::Acquire) != 0 {
            pause();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_words_have_a_line_of_their_own_and_zeros_are_an_open_lease() {
        assert_eq!((size_of::<Lease>(), align_of::<Lease>()), (128, 128));
        let lease = Lease::default();
        assert!(lease.begin_reading());
        lease.end_reading();
        lease.close(|| false, || panic!("nobody reads"));
        assert!(!lease.lasts() && !lease.begin_reading());
        lease.close(|| false, || panic!("the refused reader does not read"));
    }
}
