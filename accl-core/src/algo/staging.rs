//! Staging: data goes through memory that all ranks share, a segment at a time.
//!
//! Every rank has a staging area that all others can read in place, whatever else they may read of each other. What a
//! rank writes there once, all its peers read: segments are small enough to stay in the caches of those who share them.
//!
//! Plans go in rounds. In each, a rank finishes one segment, goes on with the one after, begins the next, and then all
//! ranks meet; so what a round reads was written in the round before, and two slots of each kind, used in turn, are
//! enough: a slot is written again two rounds later, when all have met who could still have read it. The first round
//! may write at once, since no rank begins to move data before all whose memory it writes have left the operation
//! before.
//!
//! ```text
//! staging area of a rank: | input slot 0 | input slot 1 | result slot 0 | result slot 1 |
//! ```

use super::chunk::segment;
use super::{Operand, Plan, Request, Span};
use crate::types::{Collective, Rank};
use std::ops::Range;

/// Slots of a broadcast: the root may be so many segments ahead of the slowest reader.
const BROADCAST_SLOTS: usize = 4;

/// True if there is a plan for operations of `kind`.
pub(super) fn serves(kind: Collective) -> bool {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    matches!(kind, AllReduce | Reduce | ReduceScatter | AllGather | Broadcast)
}

pub(super) fn plan(request: &Request, plan: &mut Plan) {
    match request.kind {
        Collective::Broadcast if request.rank == request.root => give(request, plan),
        Collective::Broadcast => take(request, plan),
        Collective::AllGather => all_gather(request, plan),
        Collective::ReduceScatter => reduce_scatter(request, plan),
        _ => Folds::of(request).plan(request, plan),
    }
}

/// The most elements, a multiple of the alignment, of which `shares` fit into the staging area.
fn share(request: &Request, shares: usize) -> usize {
    let align = request.align_elems;
    (request.staging_elems / shares / align * align).max(align)
}

fn staged(start: usize, count: usize) -> Span {
    Span::staging(start..start + count)
}

/// All inputs, in rank order: this rank's own where it is, the others' where they have staged them.
fn everybody(request: &Request, own: Span, place: Span) -> impl Iterator<Item = Operand> {
    let rank = request.rank;
    (0..request.ranks)
        .map(move |peer| if peer == rank { Operand::Local(own) } else { Operand::Remote(peer, place) })
}

/// Tells that this rank is through with a round, and waits until all others are: they have told as often.
fn meet(request: &Request, tells: usize, plan: &mut Plan) {
    plan.tell();
    for peer in request.peers() {
        plan.wait_for(peer, tells as u64);
    }
}

/// AllReduce and Reduce: in each segment every rank owns a chunk. It folds what all have staged of it, and stages the
/// result for those who want it.
#[derive(Clone, Copy, Debug)]
struct Folds {
    /// Elements of a chunk of a full segment.
    chunk_elems: usize,
    segment_elems: usize,
    segments: usize,
}

impl Folds {
    fn of(request: &Request) -> Self {
        let chunk_elems = share(request, 2 * (request.ranks + 1));
        let segment_elems = chunk_elems * request.ranks;
        Self { chunk_elems, segment_elems, segments: request.count_elems.div_ceil(segment_elems) }
    }

    fn plan(self, request: &Request, plan: &mut Plan) {
        let wants = |rank| request.kind == Collective::AllReduce || rank == request.root;
        for round in 0..self.segments + 2 {
            if let Some(index) = round.checked_sub(2).filter(|_| wants(request.rank)) {
                self.collect(request, index, plan);
            }
            if (1..=self.segments).contains(&round) {
                self.fold(request, round - 1, wants(request.rank), plan);
            }
            if round < self.segments {
                self.stage(request, round, plan);
            }
            if round <= self.segments {
                meet(request, round + 1, plan);
            }
        }
    }

    fn segment(self, request: &Request, index: usize) -> Range<usize> {
        segment(&(0..request.count_elems), self.segment_elems, index)
    }

    /// The chunk of `owner` in a segment.
    fn chunk(self, request: &Request, index: usize, owner: Rank) -> Range<usize> {
        request.chunk_of(self.segment(request, index), owner)
    }

    /// Where a chunk lies in the input slot of a segment.
    fn input_place(self, request: &Request, index: usize, chunk: &Range<usize>) -> Span {
        let start = self.segment(request, index).start;
        staged(index % 2 * self.segment_elems + chunk.start - start, chunk.len())
    }

    fn result_place(self, index: usize, chunk: &Range<usize>) -> Span {
        staged(2 * self.segment_elems + index % 2 * self.chunk_elems, chunk.len())
    }

    fn stage(self, request: &Request, index: usize, plan: &mut Plan) {
        for owner in request.peers() {
            let chunk = self.chunk(request, index, owner);
            plan.copy(Span::input(chunk.clone()), self.input_place(request, index, &chunk));
        }
    }

    fn fold(self, request: &Request, index: usize, wanted: bool, plan: &mut Plan) {
        let chunk = self.chunk(request, index, request.rank);
        let place = self.input_place(request, index, &chunk);
        let operands = everybody(request, Span::input(chunk.clone()), place);
        if request.kind == Collective::Reduce && wanted {
            return plan.reduce(operands, Span::output(chunk.clone()));
        }
        let result = self.result_place(index, &chunk);
        plan.reduce(operands, result);
        if wanted {
            plan.copy(result, Span::output(chunk));
        }
    }

    fn collect(self, request: &Request, index: usize, plan: &mut Plan) {
        for owner in request.peers_backwards() {
            let chunk = self.chunk(request, index, owner);
            plan.read(owner, self.result_place(index, &chunk), Span::output(chunk));
        }
    }
}

/// Every rank stages for each other one what that one folds.
fn reduce_scatter(request: &Request, plan: &mut Plan) {
    let size = share(request, 2 * request.ranks);
    let all = 0..request.count_elems;
    let segments = request.count_elems.div_ceil(size);
    let place = |index: usize, owner: Rank, count| staged((index % 2 * request.ranks + owner) * size, count);
    for round in 0..=segments {
        if let Some(index) = round.checked_sub(1) {
            let part = segment(&all, size, index);
            let own = shifted(&part, request.block(request.rank).start);
            let source = place(index, request.rank, part.len());
            plan.reduce(everybody(request, Span::input(own), source), Span::output(part));
        }
        if round < segments {
            let part = segment(&all, size, round);
            for owner in request.peers() {
                let input = shifted(&part, request.block(owner).start);
                plan.copy(Span::input(input), place(round, owner, part.len()));
            }
            meet(request, round + 1, plan);
        }
    }
}

/// Every rank stages what all others read.
fn all_gather(request: &Request, plan: &mut Plan) {
    let size = share(request, 2);
    let all = 0..request.count_elems;
    let segments = request.count_elems.div_ceil(size);
    for round in 0..=segments {
        if let Some(index) = round.checked_sub(1) {
            let part = segment(&all, size, index);
            for peer in request.peers_backwards() {
                let output = shifted(&part, request.block(peer).start);
                plan.read(peer, staged(index % 2 * size, part.len()), Span::output(output));
            }
        }
        if round < segments {
            let part = segment(&all, size, round);
            plan.copy(Span::input(part.clone()), staged(round % 2 * size, part.len()));
            let own = shifted(&part, request.block(request.rank).start);
            plan.copy(Span::input(part), Span::output(own));
            meet(request, round + 1, plan);
        }
    }
}

fn give(request: &Request, plan: &mut Plan) {
    let size = share(request, BROADCAST_SLOTS);
    let all = 0..request.count_elems;
    for index in 0..request.count_elems.div_ceil(size) {
        let part = segment(&all, size, index);
        if let Some(before) = index.checked_sub(BROADCAST_SLOTS) {
            for peer in request.peers() {
                plan.wait_for(peer, before as u64 + 1);
            }
        }
        plan.copy(Span::input(part.clone()), staged(index % BROADCAST_SLOTS * size, part.len()));
        plan.tell();
        plan.copy(Span::input(part.clone()), Span::output(part));
    }
}

fn take(request: &Request, plan: &mut Plan) {
    let size = share(request, BROADCAST_SLOTS);
    let all = 0..request.count_elems;
    for index in 0..request.count_elems.div_ceil(size) {
        let part = segment(&all, size, index);
        plan.wait_for(request.root, index as u64 + 1);
        let source = staged(index % BROADCAST_SLOTS * size, part.len());
        plan.read(request.root, source, Span::output(part));
        plan.tell();
    }
}

fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
