//! AllToAll between hosts.
//!
//! Small blocks are *gathered*: for each pair of hosts one rank of either is the *agent*. The ranks of a host hand it their
//! blocks for the other host, it puts them into the order of their receivers and sends them in one message, and the
//! other agent deals them out. Large blocks go straight from rank to rank, in an order in which everybody sends to
//! somebody else, with few under way at a time.

use super::{Layout, Plan, Request, Span};
use crate::types::Rank;
use std::ops::Range;

/// Blocks that a rank has under way before it waits for the first of them.
const UNDER_WAY: usize = 4;

/// Rank to rank.
pub(super) fn rotated(request: &Request, plan: &mut Plan) {
    let (rank, ranks) = (request.rank, request.ranks);
    let block = |owner| request.block(owner);
    plan.copy(Span::input(block(rank)), Span::output(block(rank)));
    for distance in 1..ranks {
        let to = |distance| (rank + distance) % ranks;
        let from = (rank + ranks - distance) % ranks;
        // Whoever that is for has come as far as this rank has, but for the last few: no circle of waits.
        if distance > UNDER_WAY && request.count_elems > 0 {
            plan.drain(to(distance - UNDER_WAY));
        }
        plan.send(to(distance), Span::input(block(to(distance))));
        plan.recv(from, Span::output(block(from)));
    }
}

/// Gathered by hosts.
pub(super) fn gathered(request: &Request, layout: &Layout, plan: &mut Plan) {
    let exchange = Exchange { request, layout, host: layout.host_of[request.rank] };
    let rank = request.rank;
    let agency = |other: &usize| exchange.agent(exchange.host, *other) == rank;
    exchange.give(plan);
    // All blocks that this rank is an agent for lie in scratch memory: as they came, sorted, and as they come from there.
    let mut at = 0;
    let mut rooms = Vec::new();
    for other in exchange.others().filter(agency) {
        let blocks = exchange.locals().len() * layout.hosts[other].len();
        let room = |number| at + number * blocks * request.count_elems;
        rooms.push((other, [room(0), room(1), room(2)]));
        at = room(3);
    }
    plan.transit_elems = at;
    rooms.iter().for_each(|(other, room)| exchange.collect(*other, *room, plan));
    rooms.iter().for_each(|(other, room)| exchange.deal(*other, room[2], plan));
    for other in exchange.others().filter(|other| !agency(other)) {
        for run in runs(&layout.hosts[other]) {
            plan.recv(exchange.agent(exchange.host, other), Span::output(exchange.blocks(&run)));
        }
    }
}

/// The exchange as one rank sees it.
struct Exchange<'a> {
    request: &'a Request,
    layout: &'a Layout,
    host: usize,
}

/// Ranks that follow each other, as ranges.
fn runs(ranks: &[Rank]) -> Vec<Range<Rank>> {
    let mut runs: Vec<Range<Rank>> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some(run) if run.end == *rank => run.end += 1,
            _ => runs.push(*rank..rank + 1),
        }
    }
    runs
}

impl Exchange<'_> {
    fn locals(&self) -> &[Rank] {
        &self.layout.hosts[self.host]
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.layout.hosts.len()).filter(|other| *other != self.host)
    }

    /// The rank of `host` that deals with `other`.
    fn agent(&self, host: usize, other: usize) -> Rank {
        let ranks = &self.layout.hosts[host];
        ranks[other % ranks.len()]
    }

    /// The blocks of ranks that follow each other.
    fn blocks(&self, run: &Range<Rank>) -> Range<usize> {
        self.request.block(run.start).start..self.request.block(run.end).start
    }

    /// So many blocks of scratch memory, from the one of this number on in a room.
    fn transit(&self, room: usize, number: usize, blocks: usize) -> Span {
        let count = self.request.count_elems;
        Span::transit(room + number * count..room + (number + blocks) * count)
    }

    /// What this rank has goes to those of its host, and to its agents.
    fn give(&self, plan: &mut Plan) {
        let rank = self.request.rank;
        let own = || self.locals().iter().copied().filter(|peer| *peer != rank);
        let block = |owner| self.request.block(owner);
        own().for_each(|peer| plan.send(peer, Span::input(block(peer))));
        for other in self.others().filter(|other| self.agent(self.host, *other) != rank) {
            for run in runs(&self.layout.hosts[other]) {
                plan.send(self.agent(self.host, other), Span::input(self.blocks(&run)));
            }
        }
        plan.copy(Span::input(block(rank)), Span::output(block(rank)));
        own().for_each(|peer| plan.recv(peer, Span::output(block(peer))));
    }

    /// The agent's work for its host: blocks come by those who send them, and go on by those who get them.
    fn collect(&self, other: usize, [came, sorted, _]: [usize; 3], plan: &mut Plan) {
        let (rank, locals, theirs) = (self.request.rank, self.locals(), &self.layout.hosts[other]);
        for (place, from) in locals.iter().enumerate() {
            if *from != rank {
                let mut number = place * theirs.len();
                for run in runs(theirs) {
                    plan.recv(*from, self.transit(came, number, run.len()));
                    number += run.len();
                }
            }
            for (receiver, to) in theirs.iter().enumerate() {
                let block = if *from == rank {
                    Span::input(self.request.block(*to))
                } else {
                    self.transit(came, place * theirs.len() + receiver, 1)
                };
                plan.copy(block, self.transit(sorted, receiver * locals.len() + place, 1));
            }
        }
        plan.send(self.agent(other, self.host), self.transit(sorted, 0, locals.len() * theirs.len()));
    }

    /// The agent's work for the other host: each rank gets what is for it.
    fn deal(&self, other: usize, room: usize, plan: &mut Plan) {
        let (locals, theirs) = (self.locals(), &self.layout.hosts[other]);
        plan.recv(self.agent(other, self.host), self.transit(room, 0, locals.len() * theirs.len()));
        for (receiver, to) in locals.iter().enumerate() {
            let mut number = receiver * theirs.len();
            for run in runs(theirs) {
                let blocks = self.transit(room, number, run.len());
                number += run.len();
                if *to == self.request.rank {
                    plan.copy(blocks, Span::output(self.blocks(&run)));
                } else {
                    plan.send(*to, blocks);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_follow_each_other_are_one_run() {
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
        assert!(runs(&[]).is_empty());
    }
}
