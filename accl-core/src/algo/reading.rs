//! Reading: every rank reads what it needs in the memory of those who have it, where all can read all.
//!
//! The same shape as `direct`, without messages: inputs lie where they are from the beginning, so most operations are
//! one step and a word that the memory is no longer needed. Each element's inputs are folded in rank order by one
//! rank, so that the result depends on nothing but the inputs.

use super::{Operand, Plan, Request, Span};
use crate::types::{Collective, Rank};
use std::ops::Range;

/// Who folds the elements of an AllReduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folding {
    /// Every rank folds all of them: nothing to wait for in between, and more to read. Not for calls in place, whose
    /// input would be gone before others have read it.
    Everyone,
    /// Every element has one rank that folds it, and the others read the result.
    Owner,
}

pub(super) fn plan(request: &Request, folding: Folding, plan: &mut Plan) {
    let (all, block) = (0..request.count_elems, request.block(request.rank));
    let is_root = request.rank == request.root;
    match request.kind {
        Collective::AllReduce if folding == Folding::Owner => return all_reduce(request, plan),
        Collective::AllReduce => fold(request, all, 0, plan),
        Collective::ReduceScatter => fold(request, block.clone(), block.start, plan),
        Collective::Reduce if is_root => fold(request, all, 0, plan),
        Collective::AllGather | Collective::Split => collect(request, all, block, plan),
        Collective::AllToAll => collect(request, block.clone(), block, plan),
        Collective::Gather if is_root => collect(request, all, block, plan),
        Collective::Broadcast => take(request, all, plan),
        Collective::Scatter => take(request, block, plan),
        Collective::Reduce | Collective::Gather => {}
    }
    release(request, plan);
}

/// All inputs for `range`, in rank order; the result begins at `range.start - shift` of the output.
fn fold(request: &Request, range: Range<usize>, shift: usize, plan: &mut Plan) {
    let span = Span::input(range.clone());
    let operands = (0..request.ranks).map(|peer| operand(request, peer, span));
    plan.reduce(operands, Span::output(range.start - shift..range.end - shift));
}

fn operand(request: &Request, peer: Rank, span: Span) -> Operand {
    if peer == request.rank { Operand::Local(span) } else { Operand::Remote(peer, span) }
}

/// `range` of everybody's input, each into the block of its rank; `own` is this rank's block.
fn collect(request: &Request, range: Range<usize>, own: Range<usize>, plan: &mut Plan) {
    let source = Span::input(range);
    plan.copy(source, Span::output(own));
    for peer in request.peers_backwards() {
        plan.read(peer, source, Span::output(request.block(peer)));
    }
}

/// `range` of the root's input.
fn take(request: &Request, range: Range<usize>, plan: &mut Plan) {
    let (source, to) = (Span::input(range), Span::output(0..request.count_elems));
    if request.rank == request.root {
        plan.copy(source, to);
    } else {
        plan.read(request.root, source, to);
    }
}

/// True if `reader` reads the memory of `from`, another rank, in an operation of this kind and root.
pub fn reads(kind: Collective, root: Rank, reader: Rank, from: Rank) -> bool {
    reader != from
        && match kind {
            Collective::Broadcast | Collective::Scatter => from == root,
            Collective::Reduce | Collective::Gather => reader == root,
            _ => true,
        }
}

/// Tells that this rank needs nobody's memory any more, and waits for those who need its own.
fn release(request: &Request, plan: &mut Plan) {
    let (rank, root) = (request.rank, request.root);
    let reads = |reader, from| reads(request.kind, root, reader, from);
    if request.peers().any(|peer| reads(rank, peer)) {
        plan.tell();
    }
    for peer in request.peers().filter(|peer| reads(*peer, rank)) {
        plan.wait_for(peer, 1);
    }
}

/// The owner of a chunk folds it; when all have, the others read the results.
fn all_reduce(request: &Request, plan: &mut Plan) {
    fold(request, request.chunk(request.rank), 0, plan);
    plan.tell();
    for peer in request.peers_backwards() {
        let result = Span::output(request.chunk(peer));
        plan.wait_for(peer, 1);
        plan.read(peer, result, result);
    }
    plan.tell();
    for peer in request.peers() {
        plan.wait_for(peer, 2);
    }
}
