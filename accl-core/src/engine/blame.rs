//! Who keeps a rank waiting in the end: a pure judgement of what ranks say of themselves.
//!
//! A rank waits for some ranks (*needs*), those may wait for others, and so on. Whoever is reached so and does not say that it waits is
//! late. If all who are reached say that they wait, some of them wait for each other in a circle, which is what is shown then.

use crate::transport::shm::{Waiting, Word};
use crate::types::Rank;
use std::collections::BTreeMap;

/// Who keeps a rank waiting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// These do, those first of whom most is known; nobody if the rank waits for nobody.
    Late(Vec<Late>),
    /// These ranks wait for each other: each with what it waits in, and for whom.
    Circle(Vec<(Rank, Waiting, Rank)>),
}

/// A rank that others wait for, and that does not wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Late {
    pub(super) rank: Rank,
    /// What is known of it; if that is a wait, then it is one for nobody.
    pub(super) word: Word,
    /// Who waits for whom: the first is the rank that asks, the last this one.
    pub(super) path: Vec<Rank>,
}

impl Verdict {
    /// True if all that matters has been heard: to wait for more words would not change it.
    pub(super) fn is_certain(&self) -> bool {
        match self {
            Self::Late(late) => late.iter().all(|late| late.word != Word::Unheard),
            Self::Circle(_) => true,
        }
    }
}

/// Follows the waits of `rank`, which waits in `waiting` for `needs`, through what is `known` of the other ones of `ranks`. Each is asked for once.
pub(super) fn judge(
    (rank, waiting): (Rank, Waiting),
    needs: &[Rank],
    ranks: usize,
    known: impl Fn(Rank) -> Word,
) -> Verdict {
    // What cannot be true is not believed: nobody waits for itself, nor for ranks that are none.
    let sound = |of: Rank, needs: &[Rank]| -> Vec<Rank> {
        needs.iter().copied().filter(|need| *need != of && *need < ranks).collect()
    };
    let mut waits = BTreeMap::from([(rank, (waiting, sound(rank, needs)))]);
    let mut by = BTreeMap::new();
    let mut queue = vec![rank];
    let mut late = Vec::new();
    let mut next = 0;
    while let Some(waiter) = queue.get(next).copied() {
        next += 1;
        for need in waits.get(&waiter).map_or(Vec::new(), |(_, needs)| needs.clone()) {
            if need == rank || by.contains_key(&need) {
                continue;
            }
            by.insert(need, waiter);
            match known(need) {
                Word::Waits(waiting, needs) if !sound(need, &needs).is_empty() => {
                    waits.insert(need, (waiting, sound(need, &needs)));
                    queue.push(need);
                }
                word => late.push(Late { rank: need, word, path: path(&by, rank, need) }),
            }
        }
    }
    let circle = if late.is_empty() { circle(&waits, rank) } else { Vec::new() };
    if !circle.is_empty() {
        return Verdict::Circle(circle);
    }
    let certainty = |late: &Late| match late.word {
        Word::Stopped => 0,
        Word::Free => 1,
        Word::Waits(..) => 2,
        Word::Unheard => 3,
    };
    late.sort_by_key(|late| (certainty(late), late.rank));
    Verdict::Late(late)
}

/// The ranks from `first` to `last`, by whom each was reached.
fn path(by: &BTreeMap<Rank, Rank>, first: Rank, last: Rank) -> Vec<Rank> {
    let mut path = vec![last];
    let mut current = last;
    while let Some(before) = by.get(&current).copied().filter(|_| current != first) {
        path.push(before);
        current = before;
    }
    path.reverse();
    path
}

/// The circle into which the first needs lead from `first` on; none if they do not.
fn circle(waits: &BTreeMap<Rank, (Waiting, Vec<Rank>)>, first: Rank) -> Vec<(Rank, Waiting, Rank)> {
    let mut links: Vec<(Rank, Waiting, Rank)> = Vec::new();
    let mut current = first;
    loop {
        if let Some(start) = links.iter().position(|(rank, ..)| *rank == current) {
            return links.split_off(start);
        }
        let Some((waiting, needs)) = waits.get(&current) else { return Vec::new() };
        let Some(need) = needs.first() else { return Vec::new() };
        links.push((current, *waiting, *need));
        current = *need;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: Waiting = Waiting::Collective(3, None);

    fn waits(needs: &[Rank]) -> Word {
        Word::Waits(IN, needs.to_vec())
    }

    /// Of rank 0, by the words of the others: those that are not there were not heard.
    fn verdict(needs: &[Rank], words: &[(Rank, Word)]) -> Verdict {
        let known = |rank: Rank| {
            words.iter().find(|(of, _)| *of == rank).map_or(Word::Unheard, |(_, word)| word.clone())
        };
        judge((0, IN), needs, 8, known)
    }

    fn late(needs: &[Rank], words: &[(Rank, Word)]) -> Vec<Rank> {
        let Verdict::Late(late) = verdict(needs, words) else { panic!("{:?}", verdict(needs, words)) };
        late.into_iter().map(|late| late.rank).collect()
    }

    #[test]
    fn the_end_of_a_chain_is_late() {
        let chain = [(1, waits(&[2])), (2, waits(&[3])), (3, Word::Free)];
        let expected = Late { rank: 3, word: Word::Free, path: vec![0, 1, 2, 3] };
        assert_eq!(verdict(&[1], &chain), Verdict::Late(vec![expected]));
        assert!(verdict(&[1], &chain).is_certain());
        for end in [Word::Stopped, waits(&[])] {
            assert_eq!(late(&[1], &[(1, waits(&[2])), (2, end.clone())]), [2]);
            assert!(verdict(&[1], &[(1, waits(&[2])), (2, end)]).is_certain());
        }
        assert_eq!(verdict(&[], &chain), Verdict::Late(Vec::new()), "who waits for nobody misses nobody");
    }

    #[test]
    fn who_was_not_heard_may_be_heard_yet_and_is_late_else() {
        let chain = [(1, waits(&[2]))];
        assert_eq!(late(&[1], &chain), [2]);
        assert!(!verdict(&[1], &chain).is_certain());
        // Of the others nothing is heard at all.
        assert_eq!(late(&[4, 1], &[]), [1, 4]);
        // Who says that it does not wait comes before one of whom nothing is known.
        assert_eq!(late(&[1, 5], &[(5, waits(&[6])), (6, Word::Free), (7, Word::Free)]), [6, 1]);
    }

    #[test]
    fn a_word_that_comes_late_changes_the_end() {
        assert_eq!(late(&[1, 2], &[(1, waits(&[3]))]), [2, 3]);
        assert_eq!(late(&[1, 2], &[(1, waits(&[3])), (2, waits(&[3]))]), [3]);
    }

    #[test]
    fn all_who_are_waited_for_are_followed_each_once() {
        // Everybody waits for 6, some for each other, too.
        let words = [(1, waits(&[0, 2, 6])), (2, waits(&[1, 0])), (3, waits(&[2, 1])), (6, Word::Stopped)];
        assert_eq!(late(&[2, 3], &words), [6]);
        let Verdict::Late(ends) = verdict(&[3], &words) else { panic!() };
        assert_eq!(ends[0].path, [0, 3, 1, 6], "the shortest way");
        // Two are late, each for another.
        let both = [(1, waits(&[5])), (2, waits(&[4])), (4, Word::Free), (5, Word::Stopped)];
        assert_eq!(late(&[1, 2], &both), [5, 4], "what is stopped comes first");
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_a_circle() {
        let receives = |from| Word::Waits(Waiting::Recv(from, 4), vec![from]);
        let pair = [(1, receives(2)), (2, receives(1))];
        let expected = vec![(1, Waiting::Recv(2, 4), 2), (2, Waiting::Recv(1, 4), 1)];
        assert_eq!(verdict(&[1], &pair), Verdict::Circle(expected), "this rank waits beside it");
        let whole = [(1, waits(&[2])), (2, waits(&[0]))];
        assert_eq!(verdict(&[1], &whole), Verdict::Circle(vec![(0, IN, 1), (1, IN, 2), (2, IN, 0)]));
        assert!(verdict(&[1], &whole).is_certain());
        // A circle of which one waits for a late one, too, is none.
        assert_eq!(late(&[1], &[(1, waits(&[2])), (2, waits(&[0, 3])), (3, Word::Free)]), [3]);
    }

    #[test]
    fn what_cannot_be_true_is_not_believed() {
        // Of itself, of ranks that are none, of too many: as if it said that it waits for nobody.
        for needs in [&[1][..], &[8, 1], &[Rank::MAX]] {
            assert_eq!(late(&[1], &[(1, waits(needs))]), [1], "{needs:?}");
        }
        assert_eq!(late(&[0, 9, 1], &[(1, waits(&[1, 99, 2])), (2, Word::Stopped)]), [2]);
    }
}
