//! What keeps a communicator from calls though nothing has failed.

use crate::sync::prim::{AtomicU32, Ordering};

/// A reason, as a bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Reason {
    /// Only its end may follow.
    Finalized = 1,
    /// Nothing more is carried out; what remains is to make others of it.
    Revoked = 2,
    /// Its memory has been given back, until it is resumed.
    Suspended = 4,
}

/// All reasons that there are; none at first.
#[derive(Debug, Default)]
pub(super) struct Standing(AtomicU32);

impl Standing {
    /// True if nothing keeps it from calls.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// True for this reason.
    pub(super) fn is(&self, reason: Reason) -> bool {
        self.0.load(Ordering::Acquire) & reason as u32 != 0
    }

    /// Adds a reason; true if it was there.
    pub(super) fn add(&self, reason: Reason) -> bool {
        self.0.fetch_or(reason as u32, Ordering::AcqRel) & reason as u32 != 0
    }

    /// Takes a reason away.
    pub(super) fn remove(&self, reason: Reason) {
        self.0.fetch_and(!(reason as u32), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_told_apart() {
        let standing = Standing::default();
        assert!(standing.is_open());
        assert!(!standing.add(Reason::Revoked));
        assert!(!standing.add(Reason::Suspended));
        assert!(standing.add(Reason::Suspended));
        standing.remove(Reason::Suspended);
        assert!(standing.is(Reason::Revoked) && !standing.is(Reason::Suspended) && !standing.is_open());
    }
}
