//! Which algorithm serves a call.

use super::between::Between;
use super::choices::{Choices, Forced, WAYS, WAYS_WITHOUT_READING};
#[cfg(test)]
use super::cost::Pull;
use super::cost::{BOARD_MOST_BYTES, Shape, Way, predict};
use super::cost_messages::{predict_message, predict_own_copy};
use super::selection::{AlgorithmSet, Selection};
use super::{Folding, Layout};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::topo::{Machine, Wire};
use crate::types::{Collective, Rank};
use parking_lot::Mutex;
use std::sync::Arc;

/// The algorithms that have plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Algorithm {
    /// Every rank reads what it needs from those who have it.
    Direct = 0,
    /// Neighbours only.
    Ring = 1,
    /// Up and down.
    Tree = 2,
    /// Partners at doubling distances.
    RecursiveDoubling = 3,
}

impl Algorithm {
    /// All of them, in the order of preference on one host.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Ring, Self::Tree, Self::RecursiveDoubling];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::RecursiveDoubling => "rd",
        }
    }

    /// True if it has a plan of its own for `kind`.
    pub fn serves(self, kind: Collective) -> bool {
        match self {
            Self::Direct => true,
            Self::Ring => matches!(
                kind,
                Collective::AllReduce
                    | Collective::AllGather
                    | Collective::ReduceScatter
                    | Collective::Broadcast
                    | Collective::Reduce
            ),
            Self::Tree => matches!(kind, Collective::AllReduce | Collective::Broadcast | Collective::Reduce),
            Self::RecursiveDoubling => kind == Collective::AllReduce,
        }
    }
}

/// How a call is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// In one step: everybody's contribution stands on the board.
    Exchange,
    /// Directly, where every rank reads what it needs in the others' memory; ranks find out whether all can when they
    /// see each other's calls, and else go by the direct plan.
    Reading,
    /// By the direct plan, with messages that are copied into links and out of them: both ends work at the same time,
    /// where otherwise one would wait for the other to read.
    Passing,
    /// Through staging areas that all ranks can read, a segment at a time.
    Staging,
    /// By a plan of messages.
    Planned(Algorithm),
    /// The same for ranks on several hosts, which fold among themselves first; the algorithm is the one between the hosts.
    Hierarchical(Algorithm),
}

impl Choice {
    /// The algorithm that it is a form of.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Planned(algorithm) | Self::Hierarchical(algorithm) => algorithm,
            _ => Algorithm::Direct,
        }
    }

    /// The name for people of a choice between hosts.
    pub fn name(self, kind: Collective) -> &'static str {
        match self {
            // Of an AllToAll it is not the data that goes around, but who sends to whom.
            Self::Hierarchical(Algorithm::Ring) if kind == Collective::AllToAll => "rotated",
            Self::Hierarchical(Algorithm::Direct) if kind == Collective::AllToAll => "hosts-gathered",
            Self::Hierarchical(Algorithm::Direct) => "hosts-direct",
            Self::Hierarchical(Algorithm::Ring) => "hosts-ring",
            Self::Hierarchical(Algorithm::Tree) => "hosts-tree",
            Self::Hierarchical(Algorithm::RecursiveDoubling) => "hosts-rd",
            Self::Planned(algorithm) => algorithm.name(),
            _ => "direct",
        }
    }
}

/// What the choice depends on besides the request.
#[derive(Clone, Debug)]
pub struct Facts {
    routes: Routes,
    /// What calls may restrict further.
    left: [AlgorithmSet; Collective::ALL.len()],
    /// The ways of direct calls.
    ways: Arc<Ways>,
    /// True until it is known that some rank cannot read another's memory.
    reads: bool,
    /// True if small calls may go in one step: several ranks on one host.
    exchanges: bool,
    /// From where on results are stored past the caches, if a setting says so.
    streaming_least_bytes: Option<usize>,
    shape: Shape,
    machine: Machine,
    /// If the ranks are on several hosts.
    pub(super) between_hosts: Option<Arc<Between>>,
}

/// The algorithm for each kind, as the settings leave it; none if they leave none.
type Routes = [Option<Algorithm>; Collective::ALL.len()];

impl Facts {
    /// The facts for ranks on several hosts, with this network between them.
    pub fn between_hosts(
        settings: &Settings,
        layout: Layout,
        wire: Wire,
        shape: Shape,
        machine: &Machine,
    ) -> Self {
        Self {
            left: Collective::ALL.map(|kind| left(kind, settings, settings.deterministic && kind.reduces())),
            between_hosts: Some(Arc::new(Between::new(settings, layout, wire))),
            reads: false,
            exchanges: false,
            ..Self::of(settings, shape, machine)
        }
    }

    /// The facts that settings give for ranks of one host of this shape, on a machine of these figures.
    pub fn of(settings: &Settings, shape: Shape, machine: &Machine) -> Self {
        let left = Collective::ALL.map(|kind| left(kind, settings, settings.deterministic));
        let routes = left.map(|left| left.iter().next());
        let forced = Collective::ALL.map(|kind| forced(kind, shape.ranks, settings));
        let ways = if forced.iter().all(|of_kind| *of_kind == Forced::default()) {
            best_ways(shape, machine)
        } else {
            Arc::new(Ways::of(shape, machine, &forced))
        };
        let streaming_least_bytes = settings.stream_bytes;
        Self {
            routes,
            left,
            ways,
            reads: true,
            exchanges: shape.ranks > 1,
            streaming_least_bytes,
            shape,
            machine: *machine,
            between_hosts: None,
        }
    }

    /// Some rank cannot read another's memory: calls go other ways from now on. All ranks must say so between the same
    /// two operations.
    pub fn stop_reading(&mut self) {
        self.reads = false;
    }

    #[inline]
    fn choices(&self, kind: Collective) -> &Choices {
        let of_kinds = if self.reads { &self.ways.reading } else { &self.ways.without };
        &of_kinds[kind.index()]
    }

    /// Who shares a host with whom, if there are several.
    pub fn layout(&self) -> Option<&Layout> {
        self.between_hosts.as_ref().map(|between| &between.layout)
    }

    /// The algorithms that settings leave for `kind`.
    pub fn left(&self, kind: Collective) -> AlgorithmSet {
        self.left[kind.index()]
    }

    /// Who takes part.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The facts without settings, of two ranks on a machine that nobody has measured.
    #[cfg(test)]
    pub(crate) fn for_tests(settings: &Settings) -> Self {
        Self::of(settings, Shape { ranks: 2, cpus: 2, pull: Pull::InPlace }, &Machine::default())
    }

    /// How long a call of `bytes` should take by a choice between hosts; nanoseconds. None on one host.
    pub fn predict_between(&self, choice: Choice, kind: Collective, bytes: usize) -> Option<f64> {
        self.between_hosts.as_ref().map(|between| between.predict(choice, kind, bytes))
    }

    /// How long a call of `bytes` should take that goes `way`; nanoseconds.
    pub fn predict(&self, way: Way, kind: Collective, bytes: usize) -> f64 {
        predict(way, kind, self.shape, bytes, &self.machine)
    }

    /// How long a message of `bytes` should take from `rank` to `peer`; nanoseconds. On one host it is copied through a ring up to
    /// `copied_most_bytes`.
    pub fn predict_message(&self, rank: Rank, peer: Rank, bytes: usize, copied_most_bytes: usize) -> f64 {
        let apart = |between: &&Arc<Between>| !between.layout.neighbours(rank).contains(&peer);
        match self.between_hosts.as_ref().filter(apart) {
            Some(between) => between.predict_message(bytes),
            None if rank == peer => predict_own_copy(self.shape, bytes, &self.machine),
            None => predict_message(self.shape, bytes, copied_most_bytes, &self.machine),
        }
    }

    /// An error if the settings leave no algorithm for `kind`.
    #[inline]
    pub fn check(&self, kind: Collective) -> Result<()> {
        if self.shape.ranks == 1 { Ok(()) } else { self.route(kind).map(|_| ()) }
    }

    #[inline]
    fn route(&self, kind: Collective) -> Result<Algorithm> {
        self.routes[kind.index()].ok_or_else(|| none_left(kind))
    }

    /// True if a call takes the one-step path: [`select`] says [`Choice::Exchange`].
    #[inline]
    pub fn exchanges(&self, kind: Collective, bytes: usize) -> bool {
        self.exchanges
            && self.choices(kind).copies(bytes)
            && self.routes[kind.index()] == Some(Algorithm::Direct)
    }

    /// The way for a call of `bytes` that goes directly.
    #[inline]
    pub fn way(&self, kind: Collective, bytes: usize) -> Way {
        self.choices(kind).way(bytes)
    }

    /// Who folds in a call of `bytes` that is read in place, where no rank's call is in place.
    pub fn folding(&self, kind: Collective, bytes: usize) -> Folding {
        if self.way(kind, bytes) == Way::LentFlat { Folding::Everyone } else { Folding::Owner }
    }

    /// True if results of a call of `bytes` are stored past the caches.
    pub fn streams(&self, kind: Collective, bytes: usize) -> bool {
        let usual = self.choices(kind).streaming_least_bytes;
        bytes >= self.streaming_least_bytes.unwrap_or(usual)
    }
}

/// What settings leave of the choice.
fn forced(kind: Collective, ranks: usize, settings: &Settings) -> Forced {
    let blocks = contributed_blocks(kind, ranks);
    Forced {
        copied_most_bytes: settings.exchange_bytes.map(|bytes| bytes.min(BOARD_MOST_BYTES) / blocks),
        flat_most_bytes: settings.flat_bytes.filter(|_| kind == Collective::AllReduce),
        passed_least_bytes: settings.pass_bytes,
        staged_least_bytes: settings.stage_bytes,
    }
}

/// The way for each kind and size.
#[derive(Debug)]
struct Ways {
    /// Where every rank can read every other's memory,
    reading: [Choices; Collective::ALL.len()],
    /// and where not.
    without: [Choices; Collective::ALL.len()],
}

impl Ways {
    fn of(shape: Shape, machine: &Machine, forced: &[Forced; Collective::ALL.len()]) -> Self {
        let among = |ways: &[Way]| {
            Collective::ALL.map(|kind| Choices::among(ways, kind, shape, machine, &forced[kind.index()]))
        };
        Self { reading: among(&WAYS), without: among(&WAYS_WITHOUT_READING) }
    }
}

/// The ways of a shape on a machine where no setting says anything. Finding them takes a while, and communicators of a
/// process are mostly alike, so a few are kept.
fn best_ways(shape: Shape, machine: &Machine) -> Arc<Ways> {
    const KEPT: usize = 16;
    static ANSWERS: Mutex<Vec<(Shape, Machine, Arc<Ways>)>> = Mutex::new(Vec::new());
    let mut answers = ANSWERS.lock();
    if let Some((.., found)) = answers.iter().find(|(of, on, _)| *of == shape && on == machine) {
        return found.clone();
    }
    let found = Arc::new(Ways::of(shape, machine, &[Forced::default(); Collective::ALL.len()]));
    if answers.len() == KEPT {
        answers.remove(0);
    }
    answers.push((shape, *machine, found.clone()));
    found
}

/// Blocks of the call's count that the busiest rank contributes.
#[inline]
pub(crate) fn contributed_blocks(kind: Collective, ranks: usize) -> usize {
    match kind {
        Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => ranks,
        _ => 1,
    }
}

/// The choice for a call of `bytes`, those of its count, unless it was made before. All ranks must come to the same one, so it depends on
/// nothing that differs between them, except settings and what calls ask for; those are compared with the call itself.
#[inline]
pub fn select(kind: Collective, bytes: usize, selection: Selection, facts: &Facts) -> Result<Choice> {
    if facts.shape.ranks == 1 {
        return Ok(Choice::Planned(Algorithm::Direct));
    }
    if let Some(choice) = selection.0 {
        return Ok(choice);
    }
    if let Some(between) = &facts.between_hosts {
        return between.choice(kind, bytes).ok_or_else(|| none_left(kind));
    }
    let route = facts.route(kind)?;
    if route != Algorithm::Direct {
        return Ok(Choice::Planned(route));
    }
    Ok(match facts.way(kind, bytes) {
        Way::Copied => Choice::Exchange,
        Way::Passed => Choice::Passing,
        Way::Staged => Choice::Staging,
        _ => Choice::Reading,
    })
}

/// The algorithms that settings allow for operations of `kind`, whose plans may be chosen by name.
pub(super) fn left(kind: Collective, settings: &Settings, deterministic: bool) -> AlgorithmSet {
    // AlltoAll, Gather and Scatter are point-to-point at heart; no rule of NCCL names an algorithm for them.
    if kind == Collective::Split || deterministic || !Algorithm::Ring.serves(kind) {
        return AlgorithmSet::of(Algorithm::Direct);
    }
    AlgorithmSet::serving(kind, |one| settings.algorithms.allow(kind, one.name()))
}

#[cold]
fn none_left(kind: Collective) -> Error {
    Error::usage(format!(
        "the setting ALGO leaves no algorithm for {kind}; there are {}: name one of them or unset it",
        AlgorithmSet::serving(kind, |_| true).names()
    ))
}
