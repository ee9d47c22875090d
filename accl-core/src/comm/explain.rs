//! What would be done for a call, and how long it should take.

use super::Communicator;
use super::collectives::bytes_of;
use crate::algo::{Algorithm, BOARD_MOST_BYTES, Choice, Selection, Way, select};
use crate::bootstrap::PeerRecord;
use crate::error::Result;
use crate::transport::shm::BOARD_BYTES;
use crate::types::{Collective, DataType};

// The model and the board agree about what fits.
const _: () = assert!(BOARD_MOST_BYTES == BOARD_BYTES);

/// The choice for a call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Explanation {
    /// How it is carried out: `copied`, `lent-flat`, `lent-owned`, `passed`, `staged`, `ring`, `tree`, `rd`; between hosts also
    /// `hosts-direct`, `hosts-ring`, `hosts-tree`, `hosts-rd`; `alone` for one rank, `nothing` for no elements.
    pub way: &'static str,
    /// Nanoseconds that it should take.
    pub predicted_ns: f64,
}

impl Communicator {
    /// What a call of this kind would do, without doing it: `count_elems` as in the call. A local question; no peer needs
    /// to ask the same. Errors are those of the call.
    pub fn explain(&self, kind: Collective, count_elems: usize, dtype: DataType) -> Result<Explanation> {
        self.explain_with(kind, count_elems, dtype, Selection::default())
    }

    /// The same of a call that brings this selection.
    pub fn explain_with(
        &self,
        kind: Collective,
        count_elems: usize,
        dtype: DataType,
        selection: Selection,
    ) -> Result<Explanation> {
        self.check_usable()?;
        self.explain_bytes(kind, bytes_of(count_elems, dtype)?, selection)
    }

    /// The same of a call whose count is of so many bytes.
    pub(super) fn explain_bytes(
        &self,
        kind: Collective,
        bytes: usize,
        selection: Selection,
    ) -> Result<Explanation> {
        let facts = &self.joined()?.facts;
        facts.check(kind)?;
        if bytes == 0 {
            return Ok(Explanation { way: "nothing", predicted_ns: 0.0 });
        }
        let choice = select(kind, bytes, selection, facts)?;
        if let Some(predicted_ns) = facts.predict_between(choice, kind, bytes) {
            return Ok(Explanation { way: choice.name(kind), predicted_ns });
        }
        let way = match choice {
            // The plan of direct, with messages.
            Choice::Planned(Algorithm::Direct) if self.ranks() > 1 => Way::Passed,
            Choice::Planned(Algorithm::Ring) => Way::Ring,
            Choice::Planned(Algorithm::Tree) => Way::Tree,
            Choice::Planned(Algorithm::RecursiveDoubling) => Way::RecursiveDoubling,
            _ => facts.way(kind, bytes),
        };
        let name = if self.ranks() == 1 { "alone" } else { way.name() };
        Ok(Explanation { way: name, predicted_ns: facts.predict(way, kind, bytes) })
    }
}

/// What tools are told of a communicator, beside its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The same for all its ranks, and probably of no other communicator.
    pub number: u64,
    /// On how many hosts its ranks are.
    pub hosts: usize,
    /// How many ranks are on the host that has the fewest, and on the one that has the most.
    pub local_ranks: (usize, usize),
}

impl Communicator {
    /// What tools are told of it. An error (Internal) before it has joined.
    pub fn identity(&self) -> Result<Identity> {
        let peers = &self.joined()?.peers;
        let local = |peer: &PeerRecord| peers.iter().filter(|other| other.shares_host(peer)).count();
        let is_first =
            |(rank, peer): &(usize, &PeerRecord)| !peers[..*rank].iter().any(|other| other.shares_host(peer));
        let locals = || peers.iter().enumerate().filter(is_first).map(|(_, peer)| local(peer));
        Ok(Identity {
            number: self.public_number(),
            hosts: locals().count(),
            local_ranks: (locals().min().unwrap_or(1), locals().max().unwrap_or(1)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::CommConfig;

    #[test]
    fn larger_calls_go_other_ways_and_take_longer() {
        let ranks = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let explain = |count| ranks[1].explain(Collective::AllReduce, count, DataType::Float32).unwrap();
        let explained = [1, 1 << 10, 1 << 20].map(explain);
        assert_eq!(explain(0), Explanation { way: "nothing", predicted_ns: 0.0 });
        assert!(
            explained.windows(2).all(|pair| pair[0].predicted_ns < pair[1].predicted_ns),
            "{explained:?}"
        );
        assert!(explained[0].way == "copied" && explained[2].way != "copied", "{explained:?}");
        // All ranks say the same.
        assert_eq!(ranks[0].explain(Collective::AllReduce, 1 << 10, DataType::Float32), Ok(explained[1]));
        let error = ranks[0].explain(Collective::AllReduce, usize::MAX, DataType::Float32).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
    }

    #[test]
    fn one_rank_is_alone() {
        let ranks = Communicator::init_all(1, None, &CommConfig::default()).unwrap();
        let explained = ranks[0].explain(Collective::Broadcast, 1 << 10, DataType::Uint8).unwrap();
        assert!(explained.way == "alone" && explained.predicted_ns > 0.0, "{explained:?}");
    }
}
