//! A doorbell: who waits sleeps, anybody rings.
//!
//! A waiter arms the bell, looks at everything it waits for once more, and only then sleeps. Whoever makes
//! something visible rings afterwards. Either the waiter's last look sees the change, or the ringer sees the
//! armed bell: both sides put a sequentially consistent fence between their store and their load (the pattern
//! of Dekker), so at least one of the two loads sees the other side's store.

use super::prim::{AtomicU32, Ordering, fence};

/// A doorbell, also in memory that other processes can reach: rings u32 | how many waiters have armed it u32.
#[derive(Debug)]
#[repr(C)]
pub struct Bell {
    rings: AtomicU32,
    armed: AtomicU32,
}

impl Bell {
    /// A bell that nobody has rung.
    pub fn new() -> Self {
        Self { rings: AtomicU32::new(0), armed: AtomicU32::new(0) }
    }

    /// Called by the waiter before its last look. Returns what to sleep on: [`Bell::word`] equal to this.
    pub fn arm(&self) -> u32 {
        let rings = self.rings.load(Ordering::Relaxed);
        self.armed.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `is_armed`.
        fence(Ordering::SeqCst);
        rings
    }

    /// Called by the waiter when it no longer sleeps.
    pub fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Called after a change has been stored. True if a waiter may sleep; false if its last look sees the change.
    #[inline]
    pub fn is_armed(&self) -> bool {
        // Pairs with the fence in `arm`.
        fence(Ordering::SeqCst);
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// The same, and counts a ring: if it is true, wake [`Bell::word`].
    pub fn must_wake(&self) -> bool {
        if !self.is_armed() {
            return false;
        }
        self.rings.fetch_add(1, Ordering::Release);
        true
    }

    /// The word that the waiter sleeps on.
    pub fn word(&self) -> &AtomicU32 {
        &self.rings
    }

    /// Tells who waits that something changed.
    #[cfg(not(loom))]
    pub fn ring(&self) {
        if self.must_wake() {
            crate::os::futex::wake_all(&self.rings);
        }
    }

    /// Under loom there is no kernel to wake; the model test does that part itself.
    #[cfg(loom)]
    pub fn ring(&self) {
        self.must_wake();
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}
