//! Direct: every rank reads what it needs from those who have it.
//!
//! Each element's inputs are folded in rank order by the one rank that owns the element, so the result depends
//! on nothing but the inputs.

use super::chunk::{segment, segments};
use super::{Buffer, Operand, Plan, Request, Span};
use crate::types::Collective;
use std::ops::Range;

/// One rank alone: its result is its own input, finished.
pub(super) fn alone(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    if request.kind.reduces() {
        plan.reduce([Operand::Local(Span::input(all.clone()))], Span::output(all));
    } else {
        plan.copy(Span::input(all.clone()), Span::output(all));
    }
}

pub(super) fn plan(request: &Request, plan: &mut Plan) {
    match request.kind {
        Collective::AllReduce => all_reduce(request, plan),
        Collective::ReduceScatter => reduce_scatter(request, plan),
        Collective::Reduce => reduce(request, plan),
        Collective::Broadcast => broadcast(request, plan),
        Collective::AllGather | Collective::Split => all_gather(request, plan),
        Collective::AllToAll => all_to_all(request, plan),
        Collective::Gather => gather(request, plan),
        Collective::Scatter => scatter(request, plan),
    }
}

/// All inputs for `range`, in rank order; the peers' come as messages.
fn everybody(request: &Request, range: Range<usize>) -> impl Iterator<Item = Operand> {
    let rank = request.rank;
    (0..request.ranks).map(move |peer| {
        if peer == rank {
            Operand::Local(Span::input(range.clone()))
        } else {
            Operand::Peer(peer, Buffer::Input)
        }
    })
}

/// The owner of a chunk folds it and hands it to everybody, segment by segment.
fn all_reduce(request: &Request, plan: &mut Plan) {
    let size = request.segment_elems;
    for peer in request.peers() {
        let chunk = request.chunk(peer);
        for index in 0..segments(&chunk, size) {
            plan.send(peer, Span::input(segment(&chunk, size, index)));
        }
    }
    let own = request.chunk(request.rank);
    for index in 0..segments(&own, size) {
        let part = segment(&own, size, index);
        plan.reduce(everybody(request, part.clone()), Span::output(part.clone()));
        for peer in request.peers() {
            plan.send(peer, Span::output(part.clone()));
        }
    }
    for peer in request.peers_backwards() {
        let chunk = request.chunk(peer);
        for index in 0..segments(&chunk, size) {
            plan.recv(peer, Span::output(segment(&chunk, size, index)));
        }
    }
}

fn reduce_scatter(request: &Request, plan: &mut Plan) {
    for peer in request.peers() {
        plan.send(peer, Span::input(request.block(peer)));
    }
    let own = request.block(request.rank);
    plan.reduce(everybody(request, own), Span::output(0..request.count_elems));
}

fn reduce(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    if request.rank == request.root {
        plan.reduce(everybody(request, all.clone()), Span::output(all));
    } else {
        plan.send(request.root, Span::input(all));
    }
}

fn broadcast(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    if request.rank == request.root {
        for peer in request.peers() {
            plan.send(peer, Span::input(all.clone()));
        }
        plan.copy(Span::input(all.clone()), Span::output(all));
    } else {
        plan.recv(request.root, Span::output(all));
    }
}

fn all_gather(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    for peer in request.peers() {
        plan.send(peer, Span::input(all.clone()));
    }
    plan.copy(Span::input(all), Span::output(request.block(request.rank)));
    for peer in request.peers_backwards() {
        plan.recv(peer, Span::output(request.block(peer)));
    }
}

fn all_to_all(request: &Request, plan: &mut Plan) {
    for peer in request.peers() {
        plan.send(peer, Span::input(request.block(peer)));
    }
    let own = request.block(request.rank);
    plan.copy(Span::input(own.clone()), Span::output(own));
    for peer in request.peers_backwards() {
        plan.recv(peer, Span::output(request.block(peer)));
    }
}

fn gather(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    if request.rank == request.root {
        plan.copy(Span::input(all), Span::output(request.block(request.root)));
        for peer in request.peers() {
            plan.recv(peer, Span::output(request.block(peer)));
        }
    } else {
        plan.send(request.root, Span::input(all));
    }
}

fn scatter(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    if request.rank == request.root {
        for peer in request.peers() {
            plan.send(peer, Span::input(request.block(peer)));
        }
        plan.copy(Span::input(request.block(request.root)), Span::output(all));
    } else {
        plan.recv(request.root, Span::output(all));
    }
}
