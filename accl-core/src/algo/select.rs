//! Which algorithm serves a call.

use super::{Folding, Request};
use crate::config::{AlgorithmRules, Settings};
use crate::error::{Error, Result};
use crate::types::Collective;

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
    /// By a plan of messages.
    Planned(Algorithm),
}

/// What the choice depends on besides the request.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The algorithm for each kind, as the settings leave it; none if they leave none.
    routes: [Option<Algorithm>; Collective::ALL.len()],
    exchange_bytes: usize,
}

impl Facts {
    /// The facts that settings give; `board_bytes` is the most that a rank can post.
    pub fn of(settings: &Settings, board_bytes: usize) -> Self {
        let routes = Collective::ALL.map(|kind| {
            let open = kind == Collective::Split || settings.deterministic;
            if open { Some(Algorithm::Direct) } else { route(kind, &settings.algorithms) }
        });
        Self { routes, exchange_bytes: settings.exchange_bytes.min(board_bytes) }
    }

    /// An error if the settings leave no algorithm for `kind`.
    #[inline]
    pub fn check(&self, kind: Collective, ranks: usize) -> Result<()> {
        if ranks == 1 { Ok(()) } else { self.route(kind).map(|_| ()) }
    }

    #[inline]
    fn route(&self, kind: Collective) -> Result<Algorithm> {
        self.routes[kind.index()].ok_or_else(|| none_left(kind))
    }

    /// From how many bytes of results on a rank stores them past its caches.
    pub fn streaming_bytes(&self) -> usize {
        24 << 20
    }

    /// True if a call takes the one-step path: [`select`] says [`Choice::Exchange`].
    #[inline]
    pub fn exchanges(
        &self,
        kind: Collective,
        ranks: usize,
        count_elems: usize,
        element_bytes: usize,
    ) -> bool {
        matches!(select(kind, ranks, count_elems, element_bytes, self), Ok(Choice::Exchange))
    }

    /// Who folds in an AllReduce that is read in place, where no rank's call is in place. Two ranks read as many bytes
    /// either way, and one of them waits once less.
    pub fn folding(&self, request: &Request) -> Folding {
        if request.ranks == 2 { Folding::Everyone } else { Folding::Owner }
    }
}

/// Bytes that the busiest rank contributes.
#[inline]
fn contribution_bytes(kind: Collective, ranks: usize, count_elems: usize, element_bytes: usize) -> usize {
    let blocks = match kind {
        Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => ranks,
        _ => 1,
    };
    count_elems.saturating_mul(element_bytes).saturating_mul(blocks)
}

/// The choice for a call. All ranks must come to the same one, so it depends on nothing that differs between
/// them, except settings; those are compared with the call itself.
#[inline]
pub fn select(
    kind: Collective,
    ranks: usize,
    count_elems: usize,
    element_bytes: usize,
    facts: &Facts,
) -> Result<Choice> {
    if ranks == 1 {
        return Ok(Choice::Planned(Algorithm::Direct));
    }
    let route = facts.route(kind)?;
    let small = contribution_bytes(kind, ranks, count_elems, element_bytes) <= facts.exchange_bytes;
    Ok(match route {
        Algorithm::Direct if small => Choice::Exchange,
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
