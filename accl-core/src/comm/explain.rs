//! What would be done for a call, and how long it should take.

use super::Communicator;
use super::collectives::bytes_of;
use crate::algo::{Algorithm, BOARD_MOST_BYTES, Choice, Way, select};
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
        self.check_usable()?;
        self.explain_bytes(kind, bytes_of(count_elems, dtype)?)
    }

    /// The same of a call whose count is of so many bytes.
    pub(super) fn explain_bytes(&self, kind: Collective, bytes: usize) -> Result<Explanation> {
        let facts = &self.joined()?.facts;
        facts.check(kind)?;
        if bytes == 0 {
            return Ok(Explanation { way: "nothing", predicted_ns: 0.0 });
        }
        let choice = select(kind, bytes, facts)?;
        if let Some(predicted_ns) = facts.predict_between(choice, kind, bytes) {
            return Ok(Explanation { way: choice.name(kind), predicted_ns });
        }
        let way = match choice {
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
}

impl Communicator {
    /// What tools are told of it. An error (Internal) before it has joined.
    pub fn identity(&self) -> Result<Identity> {
        let peers = &self.joined()?.peers;
        let is_first =
            |(rank, peer): &(usize, &PeerRecord)| !peers[..*rank].iter().any(|other| other.shares_host(peer));
        Ok(Identity {
            number: self.public_number(),
            hosts: peers.iter().enumerate().filter(is_first).count(),
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
