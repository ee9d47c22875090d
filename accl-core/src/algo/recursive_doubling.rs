//! Recursive doubling: in each of log₂(n) rounds a rank swaps what it has with a partner twice as far away.
//!
//! With p the largest power of two not above n, the first 2·(n − p) ranks begin in pairs: the even one gives its
//! input to the odd one and gets the result at the end.

use super::chunk::{segment, segments};
use super::{Buffer, Operand, Plan, Request, Span};
use crate::types::{Collective, Rank};
use std::ops::Range;

pub(super) fn plan(request: &Request, plan: &mut Plan) {
    match request.kind {
        Collective::AllReduce => {
            let all = 0..request.count_elems;
            for index in 0..segments(&all, request.segment_elems) {
                all_reduce(request, plan, segment(&all, request.segment_elems, index));
            }
        }
        _ => super::direct::plan(request, plan),
    }
}

/// How ranks take part in the doubling.
struct Fold {
    rounds: u32,
    pairs: usize,
}

impl Fold {
    fn of(ranks: usize) -> Self {
        let rounds = ranks.ilog2();
        Self { rounds, pairs: ranks - (1 << rounds) }
    }

    /// The place of a rank in the doubling; none for those that give their input away.
    fn place(&self, rank: Rank) -> Option<usize> {
        if rank >= 2 * self.pairs { Some(rank - self.pairs) } else { (rank % 2 == 1).then_some(rank / 2) }
    }

    /// The rank at a place.
    fn rank(&self, place: usize) -> Rank {
        if place < self.pairs { 2 * place + 1 } else { place + self.pairs }
    }
}

fn all_reduce(request: &Request, plan: &mut Plan, part: Range<usize>) {
    let fold = Fold::of(request.ranks);
    let rank = request.rank;
    let Some(place) = fold.place(rank) else {
        plan.send(rank + 1, Span::input(part.clone()));
        plan.recv(rank + 1, Span::output(part));
        return;
    };
    // What this rank holds so far, and in which of the two scratch halves the next sum goes.
    let mut held = Span::input(part.clone());
    let mut next = 0;
    let mut scratch = || {
        next = 1 - next;
        Span::partial(next * request.segment_elems..next * request.segment_elems + part.len())
    };
    plan.partial_elems = 2 * request.segment_elems;
    if place < fold.pairs {
        let sum = scratch();
        plan.reduce([Operand::Peer(rank - 1, Buffer::Input), Operand::Local(held)], sum);
        held = sum;
    }
    for round in 0..fold.rounds {
        let partner = fold.rank(place ^ (1 << round));
        plan.send(partner, held);
        // The scratch half that is written now was sent in the round before.
        if round > 0 {
            plan.drain(fold.rank(place ^ (1 << (round - 1))));
        }
        let raw = round == 0 && partner >= 2 * fold.pairs;
        let theirs = Operand::Peer(partner, if raw { Buffer::Input } else { Buffer::Partial });
        let mine = Operand::Local(held);
        // Lower places first, so that both partners fold in the same order.
        let operands = if place & (1 << round) == 0 { [mine, theirs] } else { [theirs, mine] };
        let sum = scratch();
        plan.reduce(operands, sum);
        held = sum;
    }
    // The result may lie where the input lies, which the first partner may still be reading; and the next
    // segment uses the same scratch halves.
    for round in [0, fold.rounds - 1] {
        plan.drain(fold.rank(place ^ (1 << round)));
    }
    plan.reduce([Operand::Local(held)], Span::output(part.clone()));
    if place < fold.pairs {
        plan.send(rank - 1, Span::output(part));
    }
}
