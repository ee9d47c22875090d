//! Which ranks of a communicator share memory, and where each of them has its place.

use crate::types::Rank;
use std::sync::Arc;

/// The ranks of one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members {
    ranks: usize,
    local: usize,
    /// The slot of each rank, [`ELSEWHERE`] for those of other hosts; none if all are here, each in the slot of its
    /// own number.
    slots: Option<Arc<[u32]>>,
}

const ELSEWHERE: u32 = u32::MAX;

impl Members {
    /// Those of `ranks` ranks for whom `is_local` holds.
    pub fn of(ranks: usize, is_local: impl Fn(Rank) -> bool) -> Self {
        let mut local = 0;
        let slots: Arc<[u32]> = (0..ranks)
            .map(|rank| {
                if !is_local(rank) {
                    return ELSEWHERE;
                }
                local += 1;
                local - 1
            })
            .collect();
        let local = local as usize;
        Self { ranks, local, slots: (local < ranks).then_some(slots) }
    }

    /// Ranks of the communicator.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Those of this host.
    pub fn local(&self) -> usize {
        self.local
    }

    /// True if `rank` is one of this host.
    #[inline]
    pub fn has(&self, rank: Rank) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots[rank] != ELSEWHERE)
    }

    /// The slot of a rank of this host.
    #[inline]
    pub(in crate::transport) fn slot(&self, rank: Rank) -> usize {
        match &self.slots {
            None => rank,
            Some(slots) => {
                assert!(slots[rank] != ELSEWHERE, "rank {rank} shares no memory with this one");
                slots[rank] as usize
            }
        }
    }
}

impl From<usize> for Members {
    /// All of so many ranks.
    fn from(ranks: usize) -> Self {
        Self { ranks, local: ranks, slots: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_among_those_of_the_host() {
        let odd = Members::of(5, |rank| rank % 2 == 1);
        assert_eq!((odd.ranks(), odd.local()), (5, 2));
        assert_eq!((0..5).map(|rank| odd.has(rank)).collect::<Vec<_>>(), [false, true, false, true, false]);
        assert_eq!((odd.slot(1), odd.slot(3)), (0, 1));
        assert_eq!(Members::of(3, |_| true), Members::from(3));
    }
}
