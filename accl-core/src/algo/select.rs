//! Which algorithm serves a call.

use super::Folding;
#[cfg(test)]
use super::cost::Pull;
use super::cost::{BOARD_MOST_BYTES, Shape, Thresholds, Way, predict};
use crate::config::{AlgorithmRules, Settings};
use crate::error::{Error, Result};
use crate::topo::Machine;
use crate::types::Collective;
use parking_lot::Mutex;

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
    /// By a plan of messages.
    Planned(Algorithm),
}

/// What the choice depends on besides the request.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The algorithm for each kind, as the settings leave it; none if they leave none.
    routes: [Option<Algorithm>; Collective::ALL.len()],
    /// Where one way becomes better than another, for each kind.
    thresholds: [Thresholds; Collective::ALL.len()],
    shape: Shape,
    machine: Machine,
}

impl Facts {
    /// The facts that settings give for ranks of this shape, on a machine of these figures.
    pub fn of(settings: &Settings, shape: Shape, machine: &Machine) -> Self {
        let routes = Collective::ALL.map(|kind| {
            let open = kind == Collective::Split || settings.deterministic;
            if open { Some(Algorithm::Direct) } else { route(kind, &settings.algorithms) }
        });
        let mut thresholds = best_thresholds(shape, machine);
        for (kind, of_kind) in Collective::ALL.into_iter().zip(&mut thresholds) {
            let board_bytes = BOARD_MOST_BYTES / contributed_blocks(kind, shape.ranks);
            if let Some(bytes) = settings.exchange_bytes {
                of_kind.copied_most_bytes = (bytes / contributed_blocks(kind, shape.ranks)).min(board_bytes);
            }
            if let Some(bytes) = settings.flat_bytes.filter(|_| kind == Collective::AllReduce) {
                of_kind.flat_most_bytes = bytes;
            }
            if let Some(bytes) = settings.pass_bytes {
                of_kind.passing_least_bytes = bytes;
            }
            if let Some(bytes) = settings.stream_bytes {
                of_kind.streaming_least_bytes = bytes;
            }
        }
        Self { routes, thresholds, shape, machine: *machine }
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

    /// How long a call of `bytes` should take that goes `way`; nanoseconds.
    pub fn predict(&self, way: Way, kind: Collective, bytes: usize) -> f64 {
        predict(way, kind, self.shape, bytes, &self.machine)
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
        matches!(select(kind, bytes, self), Ok(Choice::Exchange))
    }

    /// Who folds in a call of `bytes` that is read in place, where no rank's call is in place.
    pub fn folding(&self, kind: Collective, bytes: usize) -> Folding {
        if bytes <= self.thresholds[kind.index()].flat_most_bytes {
            Folding::Everyone
        } else {
            Folding::Owner
        }
    }

    /// True if a call of `bytes` is passed on by copies.
    #[inline]
    pub fn passes(&self, kind: Collective, bytes: usize) -> bool {
        bytes >= self.thresholds[kind.index()].passing_least_bytes
    }

    /// True if results of a call of `bytes` are stored past the caches.
    pub fn streams(&self, kind: Collective, bytes: usize) -> bool {
        bytes >= self.thresholds[kind.index()].streaming_least_bytes
    }
}

/// The thresholds of a shape on a machine, for each kind. Searching takes a while, and communicators of a process are
/// mostly alike, so a few answers are kept.
fn best_thresholds(shape: Shape, machine: &Machine) -> [Thresholds; Collective::ALL.len()] {
    const KEPT: usize = 16;
    static ANSWERS: Mutex<Vec<(Shape, Machine, [Thresholds; Collective::ALL.len()])>> =
        Mutex::new(Vec::new());
    let mut answers = ANSWERS.lock();
    if let Some((.., found)) = answers.iter().find(|(of, on, _)| *of == shape && on == machine) {
        return *found;
    }
    let found = Collective::ALL.map(|kind| Thresholds::of(kind, shape, machine));
    if answers.len() == KEPT {
        answers.remove(0);
    }
    answers.push((shape, *machine, found));
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

/// The choice for a call of `bytes`, those of its count. All ranks must come to the same one, so it depends on nothing that differs between
/// them, except settings; those are compared with the call itself.
#[inline]
pub fn select(kind: Collective, bytes: usize, facts: &Facts) -> Result<Choice> {
    if facts.shape.ranks == 1 {
        return Ok(Choice::Planned(Algorithm::Direct));
    }
    let route = facts.route(kind)?;
    let small = bytes <= facts.thresholds[kind.index()].copied_most_bytes;
    Ok(match route {
        Algorithm::Direct if small => Choice::Exchange,
        Algorithm::Direct if facts.passes(kind, bytes) => Choice::Passing,
        Algorithm::Direct => Choice::Reading,
        _ => Choice::Planned(route),
    })
}

/// The first algorithm that the rules allow.
fn route(kind: Collective, rules: &AlgorithmRules) -> Option<Algorithm> {
    // AlltoAll, Gather and Scatter are point-to-point at heart; no rule of NCCL names an algorithm for them.
    if !Algorithm::Ring.serves(kind) {
        return Some(Algorithm::Direct);
    }
    Algorithm::ALL.into_iter().find(|algorithm| algorithm.serves(kind) && rules.allow(kind, algorithm.name()))
}

#[cold]
fn none_left(kind: Collective) -> Error {
    let have: Vec<_> = Algorithm::ALL.iter().filter(|one| one.serves(kind)).map(|one| one.name()).collect();
    Error::usage(format!(
        "the setting ALGO leaves no algorithm for {kind}; there are {}: name one of them or unset it",
        have.join(", ")
    ))
}
