//! Which way calls go by their size: lists that are made from predictions and settings, and looked up at each call.

use super::cost::{STAGED_MOST_BYTES, Shape, Way, copied_most_bytes, predict, streams};
use crate::topo::Machine;
use crate::types::Collective;

/// What settings say of ways, in bytes of the call's count for one rank: none leaves the choice to predictions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Forced {
    /// Up to here [`Way::Copied`], and not above.
    pub copied_most_bytes: Option<usize>,
    /// Up to here [`Way::LentFlat`], above it [`Way::LentOwned`].
    pub flat_most_bytes: Option<usize>,
    /// From here on [`Way::Passed`], and not below.
    pub passed_least_bytes: Option<usize>,
    /// From here on [`Way::Staged`], and not below.
    pub staged_least_bytes: Option<usize>,
}

impl Forced {
    /// True if a call of `bytes` must go `way`.
    fn demands(&self, way: Way, bytes: usize) -> bool {
        match way {
            Way::Copied => self.copied_most_bytes.is_some_and(|most| bytes <= most),
            Way::Passed => self.passed_least_bytes.is_some_and(|least| bytes >= least),
            Way::Staged => self.staged_least_bytes.is_some_and(|least| bytes >= least),
            _ => false,
        }
    }

    /// True if it may.
    fn allows(&self, way: Way, bytes: usize) -> bool {
        match way {
            Way::Copied => self.copied_most_bytes.is_none_or(|most| bytes <= most),
            Way::LentFlat => self.flat_most_bytes.is_none_or(|most| bytes <= most),
            Way::LentOwned => self.flat_most_bytes.is_none_or(|most| bytes > most),
            Way::Passed => self.passed_least_bytes.is_none_or(|least| bytes >= least),
            Way::Staged => self.staged_least_bytes.is_none_or(|least| bytes >= least),
            _ => false,
        }
    }

    /// Sizes at which it changes its mind.
    fn turns(&self) -> impl Iterator<Item = usize> {
        let most = [self.copied_most_bytes, self.flat_most_bytes].map(|most| most?.checked_add(1));
        let least = [self.passed_least_bytes, self.staged_least_bytes];
        most.into_iter().chain(least).flatten()
    }
}

/// The ways of ranks that can read each other's memory; of equal ones the first is chosen.
pub(super) const WAYS: [Way; 5] = [Way::Copied, Way::LentFlat, Way::LentOwned, Way::Staged, Way::Passed];
/// Those of ranks that cannot.
pub(super) const WAYS_WITHOUT_READING: [Way; 3] = [Way::Copied, Way::Staged, Way::Passed];

/// Which way a call goes by its size, for one kind of operation and one [`Shape`]. Sizes are bytes of the call's count
/// for one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choices {
    /// Ways, each with the size from which on it is taken, in ascending order; the first begins at 0.
    ways: Box<[(usize, Way)]>,
    /// Below this the first way is taken, if it is [`Way::Copied`].
    copied_below_bytes: usize,
    /// From here on results are written with stores that go around the caches; `usize::MAX` for never.
    pub streaming_least_bytes: usize,
}

impl Choices {
    /// The choices of ranks that can read each other's memory.
    pub fn of(kind: Collective, shape: Shape, machine: &Machine, forced: &Forced) -> Self {
        Self::among(&WAYS, kind, shape, machine, forced)
    }

    /// At each of [`sizes`] that of `among` which is predicted to be the fastest, of those that `forced` leaves; in
    /// between, the way of the next smaller one.
    pub fn among(among: &[Way], kind: Collective, shape: Shape, machine: &Machine, forced: &Forced) -> Self {
        // Where a way ends, calls that are a little larger must not go it.
        let ends = [copied_most_bytes(kind, shape.ranks), STAGED_MOST_BYTES].map(|most| most + 1);
        let mut sizes: Vec<usize> = sizes().chain(forced.turns()).chain(ends).chain([0]).collect();
        sizes.sort_unstable();
        let mut ways: Vec<(usize, Way)> = Vec::new();
        for bytes in sizes {
            let time = |way: Way| predict(way, kind, shape, bytes, machine);
            let way = best(among, forced, bytes, time);
            if ways.last().is_none_or(|(_, last)| *last != way) {
                ways.push((bytes, way));
            }
        }
        let streaming = self::sizes().find(|bytes| streams(kind, shape, *bytes, machine));
        let copied_below_bytes = match ways[..] {
            [(_, Way::Copied), (end, _), ..] => end,
            _ => 0,
        };
        let streaming_least_bytes = streaming.unwrap_or(usize::MAX);
        Self { ways: ways.into(), copied_below_bytes, streaming_least_bytes }
    }

    /// True if the way for a call is the first, and [`Way::Copied`]: as nearly all small calls find out.
    #[inline]
    pub fn copies(&self, bytes: usize) -> bool {
        bytes < self.copied_below_bytes
    }

    /// The way for a call.
    #[inline]
    pub fn way(&self, bytes: usize) -> Way {
        let next = self.ways.iter().position(|(least, _)| *least > bytes).unwrap_or(self.ways.len());
        self.ways[next.saturating_sub(1)].1
    }

    /// The ways, each with the size from which on it is taken.
    pub fn ways(&self) -> &[(usize, Way)] {
        &self.ways
    }
}

/// The fastest of the ways that are left for a call of `bytes`.
fn best(among: &[Way], forced: &Forced, bytes: usize, time: impl Fn(Way) -> f64) -> Way {
    let able: Vec<Way> = among.iter().copied().filter(|way| time(*way) < f64::INFINITY).collect();
    if let Some(way) = able.iter().find(|way| forced.demands(**way, bytes)) {
        return *way;
    }
    let left = able.into_iter().filter(|way| forced.allows(*way, bytes));
    // Passing carries everything.
    left.min_by(|one, other| time(*one).total_cmp(&time(*other))).unwrap_or(Way::Passed)
}

/// The sizes at which ways are compared: 1 to 8 bytes, then eight for each doubling, to 4 GiB.
pub fn sizes() -> impl Iterator<Item = usize> {
    let doublings = 0..29;
    (1..8).chain(doublings.flat_map(|shift| (8..16).map(move |step: usize| step << shift)))
}
