//! How one call is to be made: on which stream, and by which algorithm, where somebody asks for one.

use super::collectives::bytes_of;
use super::{Communicator, Stream};
use crate::algo::{Algorithm, AlgorithmSet, Candidate, Selection, select};
use crate::config::AlgorithmRules;
use crate::error::{Error, Result};
use crate::types::{Collective, DataType};

/// What a call brings besides its arguments.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions<'a> {
    /// Where it is made.
    pub stream: Stream<'a>,
    /// By what it goes; all ranks must have chosen the same.
    pub selection: Selection,
}

impl<'a> From<Stream<'a>> for CallOptions<'a> {
    #[inline]
    fn from(stream: Stream<'a>) -> Self {
        Self { stream, selection: Selection::default() }
    }
}

/// What a call asks of its algorithm; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Which may serve it, of those that the setting ALGO leaves.
    pub algorithms: AlgorithmRules,
    /// One of these or an error; else they are for nothing where none of them can serve.
    pub forced: bool,
    /// The result is to depend on nothing but the inputs in the order of ranks.
    pub deterministic: bool,
}

/// Who may serve a call.
#[derive(Debug)]
pub struct Candidates {
    /// What serves it unless another one is chosen.
    pub usual: Candidate,
    /// All that may.
    pub all: Vec<Candidate>,
}

impl Communicator {
    /// The algorithm for a call, by what it asks for: `count_elems` as in the call. An error (InvalidUsage) if it forces one that
    /// cannot serve. A local question; all ranks must ask the same.
    pub fn choose(
        &self,
        kind: Collective,
        count_elems: usize,
        dtype: DataType,
        wish: &Wish,
    ) -> Result<Selection> {
        let (bytes, facts) = (bytes_of(count_elems, dtype)?, &self.joined()?.facts);
        let restricts = !wish.algorithms.is_open(kind);
        let wanted = wanted(kind, wish);
        if wish.deterministic && kind.reduces() {
            // Where one rank is all there is, or nobody asks, this is what serves anyway.
            if restricts && wish.forced && !wanted.contains(Algorithm::Direct) && self.ranks() > 1 {
                return Err(Error::usage(format!(
                    "the call of {kind} is to be deterministic, which takes direct, and forces one of another selection ({}); allow \
                     direct, or do without one of the two",
                    named(wanted)
                )));
            }
            return Ok(facts.deterministic(kind));
        }
        if !restricts {
            return Ok(Selection::default());
        }
        match facts.narrowed(kind, bytes, wanted) {
            Some(selection) => Ok(selection),
            None if wish.forced => Err(Error::usage(format!(
                "the call of {kind} forces a selection of algorithms of which none can serve ({}); there are {}: name one of them, or \
                 set forceAlgSelection to 0 to make it a wish",
                named(wanted),
                named(facts.left(kind))
            ))),
            None => Ok(Selection::default()),
        }
    }

    /// Who may serve a call that asks for this, and what takes how long.
    pub fn candidates(
        &self,
        kind: Collective,
        count_elems: usize,
        dtype: DataType,
        wish: &Wish,
    ) -> Result<Candidates> {
        let selection = self.choose(kind, count_elems, dtype, wish)?;
        let (bytes, facts) = (bytes_of(count_elems, dtype)?, &self.joined()?.facts);
        let usual = Candidate {
            name: select(kind, bytes, selection, facts)?.algorithm().name(),
            selection,
            predicted_ns: self.explain_bytes(kind, bytes, selection)?.predicted_ns,
        };
        let restricted =
            !wish.algorithms.is_open(kind) && facts.narrowed(kind, bytes, wanted(kind, wish)).is_some();
        let wanted = if wish.deterministic && kind.reduces() {
            AlgorithmSet::of(Algorithm::Direct)
        } else if restricted {
            wanted(kind, wish)
        } else {
            AlgorithmSet::serving(kind, |_| true)
        };
        Ok(Candidates { usual, all: facts.candidates(kind, bytes, wanted, restricted).collect() })
    }
}

fn wanted(kind: Collective, wish: &Wish) -> AlgorithmSet {
    AlgorithmSet::serving(kind, |one| wish.algorithms.allow(kind, one.name()))
}

/// The names of algorithms, for people.
fn named(set: AlgorithmSet) -> String {
    let names = set.names();
    if names.is_empty() { "none".to_string() } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::comm::CommConfig;

    fn wish(text: &str, forced: bool) -> Wish {
        Wish { algorithms: AlgorithmRules::parse(text).unwrap(), forced, ..Wish::default() }
    }

    fn way(rank: &Communicator, kind: Collective, wish: &Wish) -> Result<&'static str> {
        let selection = rank.choose(kind, 1 << 20, DataType::Float32, wish)?;
        rank.explain_with(kind, 1 << 20, DataType::Float32, selection).map(|explained| explained.way)
    }

    #[test]
    fn a_call_restricts_its_algorithms() {
        let ranks = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let usual = ranks[0].explain(Collective::AllReduce, 1 << 20, DataType::Float32).unwrap().way;
        for (text, forced, expected) in [
            ("ring", true, "ring"),
            ("Tree,Ring", true, "ring"),
            ("^ring,direct", true, "tree"),
            ("rd", false, "rd"),
            ("NVLS,Tree", true, "tree"),
            ("NVLS", false, usual),
            ("direct", true, usual),
            ("broadcast:ring", true, usual),
            ("allreduce:tree;ring", true, "tree"),
            ("", true, usual),
        ] {
            for rank in &ranks {
                assert_eq!(way(rank, Collective::AllReduce, &wish(text, forced)), Ok(expected), "{text}");
            }
        }
        for (kind, text, words) in [
            (Collective::AllReduce, "NVLS", "there are direct, ring, tree, rd"),
            (Collective::AllGather, "tree", "there are direct, ring: name one"),
            (Collective::AllToAll, "ring", "there are direct: name"),
        ] {
            let error = way(&ranks[0], kind, &wish(text, true)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            assert!(error.text().contains(words) && error.text().contains("forceAlgSelection"), "{error}");
        }
        let alone = Communicator::init_all(1, None, &CommConfig::default()).unwrap();
        assert_eq!(way(&alone[0], Collective::AllReduce, &wish("NVLS", true)), Ok("alone"));
    }

    #[test]
    fn deterministic_is_direct() {
        let ranks = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let usual = ranks[0].explain(Collective::AllReduce, 1 << 20, DataType::Float32).unwrap().way;
        let deterministic = |text, forced| Wish { deterministic: true, ..wish(text, forced) };
        let way = |kind, wish: &Wish| way(&ranks[0], kind, wish);
        assert_eq!(way(Collective::AllReduce, &deterministic("", true)), Ok(usual));
        assert_eq!(way(Collective::AllReduce, &deterministic("ring", false)), Ok(usual));
        let error = way(Collective::AllReduce, &deterministic("ring", true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        // What is only moved has no order.
        assert_eq!(way(Collective::Broadcast, &deterministic("ring", true)), Ok("ring"));
    }

    #[test]
    fn candidates_come_with_their_times() {
        let ranks = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let found = |wish: &Wish| {
            ranks[1].candidates(Collective::AllReduce, 1 << 20, DataType::Float32, wish).unwrap()
        };
        let all = found(&Wish::default());
        let names: Vec<_> = all.all.iter().map(|one| one.name).collect();
        assert_eq!(names, ["direct", "ring", "tree", "rd"]);
        assert_eq!(all.usual, all.all[0]);
        let some = found(&wish("ring,tree", true));
        assert_eq!(some.all, all.all[1..3]);
        assert_eq!(some.usual, all.all[1]);
        assert_eq!(found(&wish("NVLS", false)).all.len(), 4);
    }
}
