//! What one call asks of its algorithm, beyond what settings ask of all: which may serve it, and which of them does.
//!
//! All ranks must ask alike, as they must have the same settings; the choice is posted with the call, so that a difference is
//! noticed.

use super::{Algorithm, Choice, Facts, Way, hierarchical};
use crate::types::Collective;

/// What was chosen for one call beforehand; nothing by default, which leaves the choice to [`select`](super::select).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Selection(pub(super) Option<Choice>);

impl Selection {
    /// True if nothing was chosen.
    #[inline]
    pub fn is_open(self) -> bool {
        self.0.is_none()
    }
}

/// A set of algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlgorithmSet(u8);

impl AlgorithmSet {
    /// One alone.
    pub fn of(algorithm: Algorithm) -> Self {
        Self(1 << algorithm as u8)
    }

    /// Those that serve `kind` and are allowed.
    pub fn serving(kind: Collective, allowed: impl Fn(Algorithm) -> bool) -> Self {
        let serves = |one: &Algorithm| one.serves(kind) && allowed(*one);
        Self(Algorithm::ALL.into_iter().filter(serves).fold(0, |set, one| set | Self::of(one).0))
    }

    /// Those that are in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// True if `algorithm` is one of them.
    pub fn contains(self, algorithm: Algorithm) -> bool {
        self.and(Self::of(algorithm)) == Self::of(algorithm)
    }

    /// Its members, in the order of preference on one host.
    pub fn iter(self) -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.into_iter().filter(move |one| self.contains(*one))
    }

    /// Their names in settings.
    pub fn names(self) -> String {
        self.iter().map(Algorithm::name).collect::<Vec<_>>().join(", ")
    }
}

/// One algorithm that may serve a call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Its name in settings.
    pub name: &'static str,
    /// What makes a call go by it.
    pub selection: Selection,
    /// Nanoseconds that the call should take then.
    pub predicted_ns: f64,
}

impl Facts {
    /// The selection for a call of `bytes` that is to go by one of `wanted`, of those that settings leave: on one host the first, between
    /// hosts the one that should be the fastest, by plans of these alone. None if nothing is left.
    pub fn narrowed(&self, kind: Collective, bytes: usize, wanted: AlgorithmSet) -> Option<Selection> {
        if self.shape().ranks == 1 {
            return Some(Selection::default());
        }
        let mut left = self.left(kind).and(wanted).iter();
        let Some(between) = &self.between_hosts else { return Some(self.on_one_host(kind, left.next()?)) };
        let time = |one: &Algorithm| between.predict(Choice::Planned(*one), kind, bytes);
        let fastest = left.min_by(|one, other| time(one).total_cmp(&time(other)))?;
        Some(Selection(Some(Choice::Planned(fastest))))
    }

    /// The selection for a call whose result is to depend on nothing but the inputs in the order of ranks: the one of the setting
    /// DETERMINISTIC, whatever others say.
    pub fn deterministic(&self, kind: Collective) -> Selection {
        match &self.between_hosts {
            _ if self.shape().ranks == 1 || !kind.reduces() => Selection::default(),
            Some(_) => Selection(Some(Choice::Planned(Algorithm::Direct))),
            None => self.on_one_host(kind, Algorithm::Direct),
        }
    }

    /// The algorithms of `wanted` that may serve a call of `bytes`, each as the library would use it. With `restricted`, between hosts, by
    /// plans in which hosts do not count, as for [`Facts::narrowed`].
    pub fn candidates(
        &self,
        kind: Collective,
        bytes: usize,
        wanted: AlgorithmSet,
        restricted: bool,
    ) -> impl Iterator<Item = Candidate> {
        let several = self.shape().ranks > 1;
        let wanted = wanted.iter().filter(move |_| several);
        wanted.filter_map(move |algorithm| self.candidate(kind, bytes, algorithm, restricted))
    }

    fn candidate(
        &self,
        kind: Collective,
        bytes: usize,
        algorithm: Algorithm,
        restricted: bool,
    ) -> Option<Candidate> {
        let name = algorithm.name();
        let left = Some(algorithm).filter(|one| self.left(kind).contains(*one));
        let Some(between) = &self.between_hosts else {
            let way = match left? {
                Algorithm::Direct => self.way(kind, bytes),
                Algorithm::Ring => Way::Ring,
                Algorithm::Tree => Way::Tree,
                Algorithm::RecursiveDoubling => Way::RecursiveDoubling,
            };
            let predicted_ns = self.predict(way, kind, bytes);
            return Some(Candidate { name, selection: self.on_one_host(kind, algorithm), predicted_ns });
        };
        let choice = if !restricted && between.goes_by_hosts(kind) {
            hierarchical::serves(kind, algorithm).then_some(Choice::Hierarchical(algorithm))
        } else {
            left.map(Choice::Planned)
        }?;
        let predicted_ns = between.predict(choice, kind, bytes);
        Some(Candidate { name, selection: Selection(Some(choice)), predicted_ns })
    }

    /// What is chosen there anyway needs no selection.
    fn on_one_host(&self, kind: Collective, algorithm: Algorithm) -> Selection {
        let usual = self.left(kind).iter().next();
        Selection((usual != Some(algorithm)).then_some(Choice::Planned(algorithm)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Layout, Pull, Shape, select};
    use super::*;
    use crate::config::{Settings, Source};
    use crate::topo::{Machine, Wire};
    use Algorithm::{Direct, RecursiveDoubling, Ring, Tree};

    fn facts(settings: &[(&str, &str)], hosts: usize) -> Facts {
        let settings = Settings::from_source(&Source::of_pairs(settings)).unwrap();
        let shape = Shape { ranks: 4, cpus: 4, pull: Pull::Kernel };
        match hosts {
            1 => Facts::of(&settings, shape, &Machine::default()),
            _ => {
                let layout = Layout::of(&(0..4).map(|rank| rank % hosts).collect::<Vec<_>>());
                Facts::between_hosts(&settings, layout, Wire::UNKNOWN, shape, &Machine::default())
            }
        }
    }

    fn set(algorithms: &[Algorithm]) -> AlgorithmSet {
        AlgorithmSet::serving(Collective::AllReduce, |one| algorithms.contains(&one))
    }

    fn chosen(facts: &Facts, kind: Collective, wanted: &[Algorithm]) -> Option<Choice> {
        let selection = facts.narrowed(kind, 1 << 20, set(wanted))?;
        Some(select(kind, 1 << 20, selection, facts).unwrap())
    }

    #[test]
    fn on_one_host_the_first_that_is_left_serves() {
        let open = facts(&[], 1);
        let own = select(Collective::AllReduce, 1 << 20, Selection::default(), &open).unwrap();
        for (wanted, expected) in [
            (&[Ring][..], Some(Choice::Planned(Ring))),
            (&[Tree, Ring], Some(Choice::Planned(Ring))),
            (&[RecursiveDoubling], Some(Choice::Planned(RecursiveDoubling))),
            (&[Tree, Direct], Some(own)),
            (&[], None),
        ] {
            assert_eq!(chosen(&open, Collective::AllReduce, wanted), expected, "{wanted:?}");
        }
        assert!(open.narrowed(Collective::AllReduce, 8, set(&[Direct])).unwrap().is_open());
        assert_eq!(chosen(&open, Collective::AllGather, &[Tree]), None);
        assert_eq!(chosen(&open, Collective::AllToAll, &[Ring]), None);
        // Settings come first.
        let ring = facts(&[("ACCL_ALGO", "ring")], 1);
        assert_eq!(chosen(&ring, Collective::AllReduce, &[Direct, Ring]), Some(Choice::Planned(Ring)));
        assert_eq!(chosen(&ring, Collective::AllReduce, &[Direct, Tree]), None);
        assert_eq!(ring.deterministic(Collective::AllReduce), Selection(Some(Choice::Planned(Direct))));
        assert!(open.deterministic(Collective::AllReduce).is_open());
    }

    #[test]
    fn between_hosts_the_fastest_plan_without_hosts_serves() {
        let open = facts(&[], 2);
        assert_eq!(chosen(&open, Collective::AllReduce, &[Tree]), Some(Choice::Planned(Tree)));
        let all = chosen(&open, Collective::AllReduce, &[Ring, Tree]).unwrap();
        let time = |one| open.predict_between(Choice::Planned(one), Collective::AllReduce, 1 << 20);
        let fastest = if time(Ring) < time(Tree) { Ring } else { Tree };
        assert_eq!(all, Choice::Planned(fastest));
        assert_eq!(open.deterministic(Collective::Reduce), Selection(Some(Choice::Planned(Direct))));
        assert!(open.deterministic(Collective::Broadcast).is_open());
        let own = facts(&[("ACCL_DETERMINISTIC", "1")], 2);
        assert_eq!(chosen(&own, Collective::AllReduce, &[Ring]), None);
    }

    #[test]
    fn candidates_are_what_may_serve() {
        let names = |facts: &Facts, kind, restricted| -> Vec<_> {
            let wanted = AlgorithmSet::serving(kind, |_| true);
            let found = facts.candidates(kind, 1 << 20, wanted, restricted);
            found
                .map(|one| {
                    assert!(one.predicted_ns > 0.0 && one.predicted_ns < f64::INFINITY);
                    (one.name, one.selection.0)
                })
                .collect()
        };
        let planned = |one| Some(Choice::Planned(one));
        assert_eq!(
            names(&facts(&[], 1), Collective::AllReduce, false),
            [
                ("direct", None),
                ("ring", planned(Ring)),
                ("tree", planned(Tree)),
                ("rd", planned(RecursiveDoubling))
            ]
        );
        assert_eq!(names(&facts(&[], 1), Collective::AllToAll, false), [("direct", None)]);
        let ring = facts(&[("ACCL_ALGO", "allgather:ring")], 1);
        assert_eq!(names(&ring, Collective::AllGather, false), [("ring", None)]);
        let by_hosts = |one| Some(Choice::Hierarchical(one));
        let between = facts(&[], 2);
        assert_eq!(
            names(&between, Collective::Broadcast, false),
            [("direct", by_hosts(Direct)), ("ring", by_hosts(Ring)), ("tree", by_hosts(Tree))]
        );
        assert_eq!(
            names(&between, Collective::Broadcast, true),
            [("direct", planned(Direct)), ("ring", planned(Ring)), ("tree", planned(Tree))]
        );
    }
}
