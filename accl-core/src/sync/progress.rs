//! How much of what was queued is done, and who waits for the rest.
//!
//! Anybody queues and anybody waits; one thread completes, in any order, and says how much at a time. It looks at the
//! waiters when nothing is left: waking them earlier would only take the core.

use super::bell::Bell;
use super::prim::{AtomicU64, Ordering};

/// Two counts, and a bell for those who wait until they are equal. Who queues and who completes write to cache lines of
/// their own.
#[derive(Debug, Default)]
pub struct Progress {
    queued: Line<AtomicU64>,
    done: Line<(AtomicU64, Bell)>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

impl Progress {
    /// Adds one; returns how many were queued before.
    #[inline]
    pub fn queue(&self) -> u64 {
        self.queued.0.fetch_add(1, Ordering::AcqRel)
    }

    /// How many were queued so far.
    pub fn queued(&self) -> u64 {
        self.queued.0.load(Ordering::Acquire)
    }

    /// How many are done.
    #[inline]
    pub fn done(&self) -> u64 {
        // Acquire: pairs with `complete`; what was done is seen with it.
        self.done.0.0.load(Ordering::Acquire)
    }

    /// True if everything queued is done.
    #[inline]
    pub fn is_idle(&self) -> bool {
        // `done` first: it never overtakes `queued`, so that equality was true when `done` was read or later.
        let done = self.done();
        done == self.queued.0.load(Ordering::Acquire)
    }

    /// `count` more are done. Called by one thread only. True if somebody may sleep who is to be woken: then wake
    /// [`Bell::word`] of [`Progress::idle`].
    #[inline]
    pub fn must_wake(&self, count: u64) -> bool {
        let done = self.done.0.0.load(Ordering::Relaxed) + count;
        // Release: pairs with `done`.
        self.done.0.0.store(done, Ordering::Release);
        done == self.queued.0.load(Ordering::Acquire) && self.idle().must_wake()
    }

    /// The bell that rings when everything is done.
    pub fn idle(&self) -> &Bell {
        &self.done.0.1
    }

    /// `count` more are done; wakes who waits if nothing is left. Called by one thread only.
    #[inline]
    #[cfg(not(loom))]
    pub fn complete(&self, count: u64) {
        if self.must_wake(count) {
            crate::os::futex::wake_all(self.idle().word());
        }
    }

    /// Sleeps until everything queued is done.
    #[cfg(not(loom))]
    pub fn wait(&self) {
        while !self.is_idle() {
            let rings = self.idle().arm();
            if !self.is_idle() {
                crate::os::futex::wait(self.idle().word(), rings, std::time::Duration::from_secs(3600));
            }
            self.idle().disarm();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_queued_and_done() {
        let progress = Progress::default();
        assert!(progress.is_idle());
        progress.wait();
        assert_eq!([progress.queue(), progress.queue(), progress.queue()], [0, 1, 2]);
        progress.complete(2);
        assert_eq!((progress.done(), progress.is_idle()), (2, false));
        progress.complete(1);
        assert_eq!((progress.done(), progress.is_idle()), (3, true));
        progress.wait();
    }

    #[test]
    fn only_the_last_one_wakes_who_waits() {
        let progress = Progress::default();
        progress.queue();
        progress.queue();
        progress.idle().arm();
        progress.idle().arm();
        progress.idle().disarm();
        assert!(!progress.must_wake(1));
        assert!(progress.must_wake(1));
        progress.idle().disarm();
        progress.queue();
        assert!(!progress.must_wake(1), "nobody waits any more");
    }
}
