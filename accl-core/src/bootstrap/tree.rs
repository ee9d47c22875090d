//! How the list of all ranks comes to many of them: from the root to a few processes, from each of these to a few more.
//! No I/O and no clock.
//!
//! The root hears and says little to each rank: who joins, who is ready, the verdict. Only the list grows with the ranks,
//! and sending it to all of them would cost the root the square of their number. So it goes down a tree of processes.
//! The root is the tree's root; process number p ≥ ARITY, in the order of their first ranks, asks number p / ARITY − 1.
//! The other ranks of a process look at what their first one got. Failures need no tree: the root, which has a connection to
//! every rank, tells them at once; and a rank that cannot get the list from where it should asks the root.

use super::root::{Connection, Outbox};
use super::wire::{Message, PeerRecord};
use std::collections::HashMap;
use std::sync::Arc;

/// Up to so many ranks all get the list from the root: they need no connections among themselves, and the square of
/// that is little.
pub(super) const STAR_RANKS: usize = 32;
/// How many processes get the list from one: with few the tree is deep, with many each takes long to serve them.
pub(super) const ARITY: usize = 8;

/// All ranks, in order.
pub(super) type Roster = Arc<[PeerRecord]>;

/// From where a rank gets the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// From the root.
    Root,
    /// From the process of this rank.
    ProcessOf(usize),
    /// From the first rank of its own process.
    OwnProcess,
}

/// The source of each rank.
pub(super) fn sources(roster: &[PeerRecord]) -> Vec<Source> {
    if roster.len() <= STAR_RANKS {
        return vec![Source::Root; roster.len()];
    }
    tree(roster, |number| number.checked_sub(ARITY).map(|beyond| beyond / ARITY))
}

/// The same for a share whose list its first rank gets (from the root of the first id).
pub(super) fn sources_in_share(roster: &[PeerRecord]) -> Vec<Source> {
    tree(roster, |number| number.checked_sub(1).map(|beyond| beyond / ARITY))
}

/// The tree of processes in which `parent` says the number of a process's parent; none is the root.
fn tree(roster: &[PeerRecord], parent: impl Fn(usize) -> Option<usize>) -> Vec<Source> {
    let mut numbers = HashMap::new();
    let mut first_ranks = Vec::new();
    let source = |(rank, record): (usize, &PeerRecord)| {
        let process = (record.place.kernel, record.place.pid, record.place.process);
        if numbers.contains_key(&process) {
            return Source::OwnProcess;
        }
        let number = first_ranks.len();
        numbers.insert(process, number);
        first_ranks.push(rank);
        parent(number).map_or(Source::Root, |parent| Source::ProcessOf(first_ranks[parent]))
    };
    roster.iter().enumerate().map(source).collect()
}

/// What a process has of the list, and who has asked it before it came.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    roster: Option<Roster>,
    waiting: Vec<Connection>,
}

impl Shelf {
    /// The list, if it has come.
    pub(super) fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    /// Another process asks for the list.
    pub(super) fn handle_fetch(&mut self, connection: Connection) -> Outbox {
        match &self.roster {
            Some(roster) => vec![(connection, Message::Roster(roster.clone()))],
            None => {
                self.waiting.push(connection);
                Outbox::new()
            }
        }
    }

    /// The list has come; the first one stays.
    pub(super) fn handle_roster(&mut self, roster: Roster) -> Outbox {
        let roster = self.roster.get_or_insert(roster);
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().map(|connection| (connection, Message::Roster(roster.clone()))).collect()
    }

    /// Whoever asked is gone.
    pub(super) fn handle_closed(&mut self, connection: Connection) {
        self.waiting.retain(|waiting| *waiting != connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::Place;
    use proptest::prelude::*;

    fn record(process: u64) -> PeerRecord {
        PeerRecord { place: Place { process, ..Place::default() }, ..PeerRecord::default() }
    }

    proptest! {
        #[test]
        fn everybody_gets_the_list_and_nobody_serves_many(processes in prop::collection::vec(0u64..400, 33..600)) {
            let roster: Vec<_> = processes.iter().copied().map(record).collect();
            let mut has = std::collections::BTreeSet::new();
            let mut served: HashMap<Option<u64>, usize> = HashMap::new();
            for (rank, source) in sources(&roster).into_iter().enumerate() {
                let by = match source {
                    Source::Root => None,
                    Source::ProcessOf(parent) => {
                        prop_assert!(parent < rank, "lower ranks do not wait for higher ones");
                        prop_assert!(has.contains(&processes[parent]));
                        Some(processes[parent])
                    }
                    Source::OwnProcess => {
                        prop_assert!(has.contains(&processes[rank]));
                        continue;
                    }
                };
                prop_assert!(has.insert(processes[rank]), "once for a process");
                *served.entry(by).or_default() += 1;
            }
            prop_assert!(served.values().all(|served| *served <= ARITY));
            prop_assert!(processes.iter().all(|process| has.contains(process)));
        }
    }

    #[test]
    fn few_ranks_all_ask_the_root() {
        let roster: Vec<_> = (0..STAR_RANKS as u64).map(|rank| record(rank / 2)).collect();
        assert_eq!(sources(&roster), vec![Source::Root; STAR_RANKS]);
    }

    #[test]
    fn those_who_ask_early_are_answered_when_the_list_comes() {
        let mut shelf = Shelf::default();
        assert!([1, 2, 3].into_iter().all(|connection| shelf.handle_fetch(connection).is_empty()));
        shelf.handle_closed(2);
        let roster: Roster = vec![record(7)].into();
        let sent = |connection| (connection, Message::Roster(roster.clone()));
        assert_eq!(shelf.handle_roster(roster.clone()), [sent(1), sent(3)]);
        assert_eq!(shelf.handle_fetch(4), [sent(4)]);
        // Another rank of the process has it, too.
        assert!(shelf.handle_roster(vec![record(8)].into()).is_empty());
        assert_eq!(shelf.roster(), Some(&roster));
    }
}
