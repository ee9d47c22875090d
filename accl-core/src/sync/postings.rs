//! Who has posted what: the rule by which places on a board are used again.
//!
//! Of each kind of place every rank has so many, its `depth`. Operation s goes into place s modulo `depth`, beside a
//! sequence number that is stored last: peers that see the number see what was written before it. A rank may have posted
//! `ahead` operations that it is not done with (1 where it finishes each before it posts the next). So it may post
//! operation s only when all peers have posted s − depth + ahead, for then they are done with operation s − depth, whose
//! place s takes: depth − ahead + 1 is the `lead` that one rank may have over another.
//!
//! The numbers and the places lie elsewhere; this file only says who may touch which of them when.

use super::prim::{AtomicU64, Ordering};

/// One rank's view of who has posted what.
#[derive(Debug)]
pub struct Postings {
    rank: usize,
    /// The latest operation that each rank is known to have posted.
    seen: Vec<u64>,
}

impl Postings {
    /// The view of `rank` of an empty board.
    pub fn new(rank: usize, ranks: usize) -> Self {
        Self { rank, seen: vec![0; ranks] }
    }

    /// True if this rank's place for operation `sequence` may be written, where ranks may have a lead of `lead`.
    /// `number` gives the sequence number of a rank's place for an operation.
    #[inline]
    pub fn can_post<'a>(
        &mut self,
        sequence: u64,
        lead: usize,
        number: impl Fn(usize, u64) -> &'a AtomicU64,
    ) -> bool {
        let needed = (sequence + 1).saturating_sub(lead as u64);
        // Where a look is needed, a later operation tells more: then the next looks are not.
        let later = needed + lead as u64 / 2;
        // By index: `has_posted` changes the list that it walks.
        (0..self.seen.len()).all(|rank| {
            rank == self.rank
                || self.seen[rank] >= needed
                || self.has_posted(rank, later, &number)
                || self.has_posted(rank, needed, &number)
        })
    }

    /// Posts operation `sequence`, whose place has been written. Release: pairs with [`Postings::has_posted`].
    pub fn post(&mut self, sequence: u64, number: &AtomicU64) {
        number.store(sequence, Ordering::Release);
        self.seen[self.rank] = sequence;
    }

    /// True if `rank` has posted operation `sequence`; then its place may be read until this rank posts
    /// the operation that is `ahead` later.
    #[inline]
    pub fn has_posted<'a>(
        &mut self,
        rank: usize,
        sequence: u64,
        number: impl Fn(usize, u64) -> &'a AtomicU64,
    ) -> bool {
        if self.seen[rank] >= sequence {
            return true;
        }
        // Acquire: pairs with `post`; everything written before the number is seen with it.
        let found = number(rank, sequence).load(Ordering::Acquire);
        self.seen[rank] = self.seen[rank].max(found);
        found >= sequence
    }
}
