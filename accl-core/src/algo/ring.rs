//! Ring: each rank talks to its two neighbours only; every link carries the same load.
//!
//! A reduction travels around the ring and picks up one rank's input at each station, in the form of
//! accumulators, so that a low-precision sum is rounded once, at its last station.

use super::chunk::{segment, segments};
use super::{Buffer, Operand, Plan, Request, Span};
use crate::types::{Collective, Rank};
use std::ops::Range;

/// Segments that a chain has under way before it waits for the next station.
const CHAIN_DEPTH: usize = 8;

pub(super) fn plan(request: &Request, plan: &mut Plan) {
    match request.kind {
        Collective::AllReduce => all_reduce(request, plan),
        Collective::ReduceScatter => reduce_scatter(request, plan),
        Collective::AllGather => all_gather(request, plan),
        Collective::Broadcast => broadcast(request, plan),
        Collective::Reduce => reduce(request, plan),
        _ => super::direct::plan(request, plan),
    }
}

/// The ring as one rank sees it.
struct Neighbours {
    left: Rank,
    right: Rank,
}

fn neighbours(request: &Request) -> Neighbours {
    let (rank, ranks) = (request.rank, request.ranks);
    Neighbours { left: (rank + ranks - 1) % ranks, right: (rank + 1) % ranks }
}

/// The rank `distance` stations behind.
fn behind(request: &Request, distance: usize) -> Rank {
    (request.rank + 2 * request.ranks - distance) % request.ranks
}

/// Sends chunks around so that after n − 1 stations this rank finishes the chunk `distance` behind it, which
/// goes to `to`. `part` gives the current segment of a rank's chunk.
fn reduce_around(
    request: &Request,
    plan: &mut Plan,
    distance: usize,
    part: impl Fn(Rank) -> Range<usize>,
    to: impl Fn(Rank) -> Span,
) {
    let Neighbours { left, right } = neighbours(request);
    let stations = request.ranks - 1;
    // The chunk that is finished here has come from station to station; we sent on those before it.
    let first = behind(request, distance + request.ranks - stations);
    plan.send(right, Span::input(part(first)));
    for station in 0..stations {
        let chunk = behind(request, distance + request.ranks - stations + station + 1);
        let own = part(chunk);
        let came_as = if station == 0 { Buffer::Input } else { Buffer::Partial };
        let operands = [Operand::Peer(left, came_as), Operand::Local(Span::input(own.clone()))];
        if station + 1 == stations {
            plan.reduce(operands, to(chunk));
        } else {
            let slot = station * request.segment_elems;
            let sum = Span::partial(slot..slot + own.len());
            plan.reduce(operands, sum);
            plan.send(right, sum);
        }
    }
    plan.partial_elems = plan.partial_elems.max(stations * request.segment_elems);
}

fn all_reduce(request: &Request, plan: &mut Plan) {
    let Neighbours { left, right } = neighbours(request);
    let size = request.segment_elems;
    for index in 0..segments(&request.chunk(0), size) {
        if index > 0 {
            plan.drain(right);
        }
        let part = |owner: Rank| segment(&request.chunk(owner), size, index);
        reduce_around(request, plan, request.ranks - 1, part, |chunk| Span::output(part(chunk)));
        // Finished here: the chunk of the right neighbour. Now the finished chunks go around.
        for station in 0..request.ranks - 1 {
            plan.send(right, Span::output(part(behind(request, request.ranks - 1 + station))));
            plan.recv(left, Span::output(part(behind(request, station))));
        }
    }
}

fn reduce_scatter(request: &Request, plan: &mut Plan) {
    let Neighbours { right, .. } = neighbours(request);
    let size = request.segment_elems;
    for index in 0..segments(&(0..request.count_elems), size) {
        if index > 0 {
            plan.drain(right);
        }
        let part = |owner: Rank| segment(&request.block(owner), size, index);
        let to = |_| Span::output(segment(&(0..request.count_elems), size, index));
        reduce_around(request, plan, 0, part, to);
    }
}

fn all_gather(request: &Request, plan: &mut Plan) {
    let Neighbours { left, right } = neighbours(request);
    let all = 0..request.count_elems;
    plan.send(right, Span::input(all.clone()));
    plan.copy(Span::input(all), Span::output(request.block(request.rank)));
    for station in 1..request.ranks {
        let block = Span::output(request.block(behind(request, station)));
        plan.recv(left, block);
        if station + 1 < request.ranks {
            plan.send(right, block);
        }
    }
}

fn broadcast(request: &Request, plan: &mut Plan) {
    let Neighbours { left, right } = neighbours(request);
    let all = 0..request.count_elems;
    if request.rank == request.root {
        for index in 0..segments(&all, request.segment_elems) {
            plan.send(right, Span::input(segment(&all, request.segment_elems, index)));
        }
        plan.copy(Span::input(all.clone()), Span::output(all));
        return;
    }
    for index in 0..segments(&all, request.segment_elems) {
        let part = Span::output(segment(&all, request.segment_elems, index));
        plan.recv(left, part);
        if right != request.root {
            plan.send(right, part);
        }
    }
}

fn reduce(request: &Request, plan: &mut Plan) {
    let Neighbours { left, right } = neighbours(request);
    let (all, size) = (0..request.count_elems, request.segment_elems);
    let begins = left == request.root;
    for index in 0..segments(&all, size) {
        let part = segment(&all, size, index);
        if begins {
            plan.send(right, Span::input(part));
            continue;
        }
        let left_begins = (left + request.ranks - 1) % request.ranks == request.root;
        let came_as = if left_begins { Buffer::Input } else { Buffer::Partial };
        let operands = [Operand::Peer(left, came_as), Operand::Local(Span::input(part.clone()))];
        if request.rank == request.root {
            plan.reduce(operands, Span::output(part));
        } else {
            let slot = index % CHAIN_DEPTH;
            if index > 0 && slot == 0 {
                plan.drain(right);
            }
            let sum = Span::partial(slot * size..slot * size + part.len());
            plan.reduce(operands, sum);
            plan.send(right, sum);
            plan.partial_elems = plan.partial_elems.max((slot + 1) * size);
        }
    }
}
