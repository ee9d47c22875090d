//! Which way calls between hosts go by their size: lists that are made once, from predictions and settings, and looked up
//! at each call.

use super::cost_hosts::{GATHERED_MOST_BYTES, Spread, predict_hosts, predict_message};
use super::select::left;
use super::{Algorithm, Choice, Layout, hierarchical, sizes};
use crate::config::Settings;
use crate::topo::Wire;
use crate::types::Collective;

/// What the choice between hosts depends on.
#[derive(Debug)]
pub(super) struct Between {
    pub(super) layout: Layout,
    spread: Spread,
    /// For each kind the ways, each with the bytes of the call's count from which on it is taken, in ascending order; empty where
    /// settings leave none.
    ways: [Box<[(usize, Choice)]>; Collective::ALL.len()],
}

impl Between {
    pub(super) fn new(settings: &Settings, layout: Layout, wire: Wire) -> Self {
        let spread = Spread::of(&layout, wire, settings.segment_bytes);
        let ways = Collective::ALL.map(|kind| list(&ways(kind, settings), kind, spread));
        Self { layout, spread, ways }
    }

    /// The way for a call of `bytes`; none if settings leave none.
    #[inline]
    pub(super) fn choice(&self, kind: Collective, bytes: usize) -> Option<Choice> {
        let ways = &self.ways[kind.index()];
        let next = ways.iter().position(|(least, _)| *least > bytes).unwrap_or(ways.len());
        ways.get(next.checked_sub(1)?).map(|(_, choice)| *choice)
    }

    /// True if hosts count for operations of `kind`: their ranks do some of the work among themselves.
    pub(super) fn goes_by_hosts(&self, kind: Collective) -> bool {
        matches!(self.ways[kind.index()].first(), Some((_, Choice::Hierarchical(_))))
    }

    /// How long a call of `bytes` should take that goes by `choice`; nanoseconds.
    pub(super) fn predict(&self, choice: Choice, kind: Collective, bytes: usize) -> f64 {
        predict_hosts(choice, kind, self.spread, bytes)
    }

    /// How long a message of `bytes` to another host should take; nanoseconds.
    pub(super) fn predict_message(&self, bytes: usize) -> f64 {
        predict_message(self.spread, bytes)
    }
}

/// The ways that serve `kind` and that settings leave; of equal ones the first is chosen.
fn ways(kind: Collective, settings: &Settings) -> Vec<Choice> {
    use Algorithm::{Direct, RecursiveDoubling, Ring, Tree};
    let all = [RecursiveDoubling, Tree, Direct, Ring].into_iter();
    // The order of ranks counts where there is something to fold.
    if settings.deterministic && kind.reduces() || kind == Collective::Split {
        return vec![Choice::Planned(Direct)];
    }
    // Who names algorithms gets plans of these alone, in which hosts do not count.
    let open = settings.algorithms.is_open(kind);
    let hierarchical = all.clone().filter(|one| open && hierarchical::serves(kind, *one));
    let ways: Vec<_> = hierarchical.map(Choice::Hierarchical).collect();
    if !ways.is_empty() {
        return ways;
    }
    let left = left(kind, settings, false);
    all.filter(|one| left.contains(*one)).map(Choice::Planned).collect()
}

/// At each of [`sizes`] that of `among` which is predicted to be the fastest; in between, the way of the next smaller one.
fn list(among: &[Choice], kind: Collective, spread: Spread) -> Box<[(usize, Choice)]> {
    let mut list: Vec<(usize, Choice)> = Vec::new();
    let mut sizes: Vec<_> = [0, GATHERED_MOST_BYTES + 1].into_iter().chain(sizes()).collect();
    sizes.sort_unstable();
    for bytes in sizes {
        let time = |choice: &Choice| predict_hosts(*choice, kind, spread, bytes);
        let best = among.iter().copied().min_by(|one, other| time(one).total_cmp(&time(other)));
        if let Some(best) = best.filter(|best| list.last().is_none_or(|(_, last)| last != best)) {
            list.push((bytes, best));
        }
    }
    list.into()
}
