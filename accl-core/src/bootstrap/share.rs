//! Several unique ids for one communicator: each has a root, which gathers its share of the ranks. No I/O and no clock.
//!
//! The root of the first id is the *trunk*, the others are *branches*. The first rank of a branch's share, its *delegate*,
//! is connected to both. It carries the branch's list to the trunk, the list of all back to the ranks of its share (as
//! in [`super::tree`], with the delegate's process at the top), "all are ready" to the trunk and the verdict back. A failure
//! goes the same ways, as soon as either side has one. To the trunk a delegate is like one more rank.

use super::wire::Message;
use std::ops::Range;

/// Which of `ids` roots a rank comes to: the first ones have one rank more if that does not come out even (as in NCCL).
pub(super) fn share_of(rank: u32, ranks: u32, ids: u32) -> u32 {
    let (least, more) = (ranks / ids, ranks % ids);
    let larger = u64::from(more) * (u64::from(least) + 1);
    if u64::from(rank) < larger {
        rank / (least + 1)
    } else {
        ((u64::from(rank) - larger) / u64::from(least.max(1))) as u32 + more
    }
}

/// The ranks of a share.
pub(super) fn ranks_of(share: u32, ranks: u32, ids: u32) -> Range<u32> {
    let (least, more) = (ranks / ids, ranks % ids);
    let first = share * least + share.min(more);
    first..first + least + u32::from(share < more)
}

/// The two roots that a delegate is connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Branch,
    Trunk,
}

/// What a message means for the delegate itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// It is for the other side.
    Nothing,
    /// The list of all ranks, or where that is to be had.
    List(Message),
    /// The verdict.
    Verdict(Message),
}

/// What a delegate does with a message from one side: what it says to the other one, and what it has heard.
pub(super) fn pass_on(from: Side, message: Message) -> (Option<Message>, Heard) {
    match (from, message) {
        (Side::Branch, message @ (Message::Share(_) | Message::Ready(None))) => {
            (Some(message), Heard::Nothing)
        }
        (Side::Branch, message @ Message::Failure(..)) => (Some(message.clone()), Heard::Verdict(message)),
        (Side::Branch, message) => (None, Heard::Verdict(message)),
        // The branch gives the trunk's verdict to all of its ranks, this one among them.
        (Side::Trunk, message @ (Message::Go | Message::Failure(..))) => (Some(message), Heard::Nothing),
        (Side::Trunk, message) => (None, Heard::List(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_rank_is_in_its_share(ranks in 1u32..5000, ids in 1u32..200) {
            let ids = ids.min(ranks);
            let mut next = 0;
            for share in 0..ids {
                let theirs = ranks_of(share, ranks, ids);
                prop_assert_eq!(theirs.start, next);
                prop_assert!(!theirs.is_empty());
                prop_assert!(theirs.clone().all(|rank| share_of(rank, ranks, ids) == share));
                next = theirs.end;
            }
            prop_assert_eq!(next, ranks);
        }

        #[test]
        fn any_number_has_a_share(rank: u32, ranks in 1u32.., ids in 1u32..) {
            let ids = ids.min(ranks);
            prop_assert!(share_of(rank % ranks, ranks, ids) < ids);
        }
    }

    #[test]
    fn shares_are_those_of_nccl() {
        let shares: Vec<_> = (0..8).map(|rank| share_of(rank, 8, 3)).collect();
        assert_eq!(shares, [0, 0, 0, 1, 1, 1, 2, 2]);
    }
}
