//! How long the launches of one rank may take: each has the limits that were set before it was queued.

use crate::sync::prim::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// Limits that are to change: each is left as it is (None), taken away (Some(None)), or set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeLimits {
    /// How long an operation may stand still.
    pub timeout: Option<Option<Duration>>,
    /// After how long a wait explains itself.
    pub warn_after: Option<Option<Duration>>,
}

/// A duration that any thread may change; none is kept as the largest number of nanoseconds.
#[derive(Debug)]
struct Changeable(AtomicU64);

impl Changeable {
    fn new(limit: Option<Duration>) -> Self {
        Self(AtomicU64::new(Self::word(limit)))
    }

    fn word(limit: Option<Duration>) -> u64 {
        limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
    }

    fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ns| *ns != u64::MAX).map(Duration::from_nanos)
    }

    fn set(&self, limit: Option<Duration>) {
        self.0.store(Self::word(limit), Ordering::Relaxed);
    }
}

/// The limits of the launch whose turn it is, and what changes with later ones.
#[derive(Debug)]
pub(super) struct LaunchLimits {
    timeout: Changeable,
    warn_after: Changeable,
    has_later: AtomicBool,
    /// Changes, each with how many launches come before those that it is for.
    later: Mutex<VecDeque<(u64, TimeLimits)>>,
}

impl LaunchLimits {
    pub(super) fn new(timeout: Option<Duration>, warn_after: Option<Duration>) -> Self {
        Self {
            timeout: Changeable::new(timeout),
            warn_after: Changeable::new(warn_after),
            has_later: AtomicBool::new(false),
            later: Mutex::new(VecDeque::new()),
        }
    }

    /// Changes them for what comes behind the `queued` launches so far, of which `done` are over.
    pub(super) fn change(&self, changes: TimeLimits, queued: u64, done: u64) {
        self.later.lock().push_back((queued, changes));
        // Release: pairs with `follow`.
        self.has_later.store(true, Ordering::Release);
        self.follow(done);
    }

    /// How long an operation may stand still, after `done` launches.
    pub(super) fn timeout(&self, done: u64) -> Option<Duration> {
        self.follow(done);
        self.timeout.get()
    }

    /// After how long a wait explains itself, after `done` launches.
    pub(super) fn warn_after(&self, done: u64) -> Option<Duration> {
        self.follow(done);
        self.warn_after.get()
    }

    /// Makes the changes whose turn has come.
    fn follow(&self, done: u64) {
        // Acquire: pairs with `change`.
        if !self.has_later.load(Ordering::Acquire) {
            return;
        }
        let mut later = self.later.lock();
        while let Some(&(before, changes)) = later.front()
            && before <= done
        {
            later.pop_front();
            if let Some(timeout) = changes.timeout {
                self.timeout.set(timeout);
            }
            if let Some(warn_after) = changes.warn_after {
                self.warn_after.set(warn_after);
            }
        }
        self.has_later.store(!later.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launch_has_the_limits_that_were_set_before_it() {
        let seconds = |number| Some(Duration::from_secs(number));
        let limits = LaunchLimits::new(None, seconds(10));
        let change = |timeout| TimeLimits { timeout: Some(timeout), warn_after: None };
        // Nothing is queued: at once.
        limits.change(change(seconds(1)), 0, 0);
        assert_eq!((limits.timeout(0), limits.warn_after(0)), (seconds(1), seconds(10)));
        // Two launches are queued, then a third; none of them is done.
        limits.change(change(seconds(2)), 2, 0);
        limits.change(TimeLimits { timeout: Some(None), warn_after: Some(None) }, 3, 0);
        assert_eq!(limits.timeout(0), seconds(1));
        assert_eq!(limits.timeout(1), seconds(1));
        assert_eq!((limits.timeout(2), limits.warn_after(2)), (seconds(2), seconds(10)));
        assert_eq!((limits.timeout(3), limits.warn_after(3)), (None, None));
        // The last of several changes before one launch counts.
        limits.change(change(seconds(4)), 5, 3);
        limits.change(change(seconds(5)), 5, 3);
        assert_eq!((limits.timeout(4), limits.timeout(5)), (None, seconds(5)));
    }
}
