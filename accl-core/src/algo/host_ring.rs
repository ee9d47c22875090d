//! AllGather and ReduceScatter around a ring of hosts: each host is connected to the next one only.
//!
//! The ranks of a host stand in *columns*: the one at place p in column p, and where a host has fewer ranks than others, its
//! ranks stand in several. What concerns a rank, its block or the sum for it, stays in that rank's column while it goes
//! from host to host; the rank of a host that stands in a column is its *station* there. So all ranks carry about as much,
//! and each byte crosses the network as often as it must.

use super::chunk::{segment, segments};
use super::{Buffer, Layout, Operand, Plan, Request, Span};
use crate::types::Rank;
use std::collections::BTreeSet;
use std::ops::Range;

/// The ring as one rank sees it.
struct Ring<'a> {
    request: &'a Request,
    hosts: &'a [Vec<Rank>],
    host: usize,
    locals: &'a [Rank],
}

impl<'a> Ring<'a> {
    fn of(request: &'a Request, layout: &'a Layout) -> Self {
        let host = layout.host_of[request.rank];
        Self { request, hosts: &layout.hosts, host, locals: &layout.hosts[host] }
    }

    fn columns(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn station(&self, host: usize, column: usize) -> Rank {
        let ranks = &self.hosts[host % self.hosts.len()];
        ranks[column % ranks.len()]
    }

    fn here(&self, column: usize) -> Rank {
        self.station(self.host, column)
    }

    fn left(&self, column: usize) -> Rank {
        self.station(self.host + self.hosts.len() - 1, column)
    }

    fn right(&self, column: usize) -> Rank {
        self.station(self.host + 1, column)
    }

    /// The rank of the host so many stations behind whose own column that is.
    fn behind(&self, distance: usize, column: usize) -> Option<Rank> {
        self.hosts[(self.host + self.hosts.len() - distance) % self.hosts.len()].get(column).copied()
    }

    fn others(&self) -> impl Iterator<Item = Rank> {
        self.locals.iter().copied().filter(|peer| *peer != self.request.rank)
    }

    fn part(&self, owner: Rank, index: usize) -> Range<usize> {
        let part = segment(&(0..self.request.count_elems), self.request.segment_elems, index);
        let start = self.request.block(owner).start;
        start + part.start..start + part.end
    }

    fn segments(&self) -> usize {
        segments(&(0..self.request.count_elems), self.request.segment_elems)
    }
}

/// Every station hands on what comes, to the next one and to the ranks of its host.
pub(super) fn all_gather(request: &Request, layout: &Layout, plan: &mut Plan) {
    let ring = Ring::of(request, layout);
    let (rank, size, all) = (request.rank, request.segment_elems, 0..request.count_elems);
    let place = ring.locals.iter().position(|one| *one == rank).unwrap_or(0);
    for index in 0..ring.segments() {
        let own = Span::input(segment(&all, size, index));
        plan.send(ring.right(place), own);
        ring.others().for_each(|peer| plan.send(peer, own));
        plan.copy(own, Span::output(ring.part(rank, index)));
    }
    for index in 0..ring.segments() {
        ring.others().for_each(|owner| plan.recv(owner, Span::output(ring.part(owner, index))));
    }
    for distance in 1..ring.hosts.len() {
        for column in 0..ring.columns() {
            let Some(owner) = ring.behind(distance, column) else { continue };
            for index in 0..ring.segments() {
                let block = Span::output(ring.part(owner, index));
                if ring.here(column) != rank {
                    plan.recv(ring.here(column), block);
                    continue;
                }
                plan.recv(ring.left(column), block);
                if distance + 1 < ring.hosts.len() {
                    plan.send(ring.right(column), block);
                }
                ring.others().for_each(|peer| plan.send(peer, block));
            }
        }
    }
}

/// The sum for a rank begins at the host behind its own, and picks up what each host has folded, until it comes home.
pub(super) fn reduce_scatter(request: &Request, layout: &Layout, plan: &mut Plan) {
    let ring = Ring::of(request, layout);
    let (rank, size, hosts) = (request.rank, request.segment_elems, ring.hosts.len());
    // At station number `step` of their way are the sums for the host that is one step more behind; those for this host last.
    let sums = |step: usize| {
        let owner = |column| ring.behind((step + 1) % hosts, column);
        (0..ring.columns()).filter_map(|column| Some((column, owner(column)?))).collect::<Vec<_>>()
    };
    for index in 0..ring.segments() {
        for step in 0..hosts {
            for (column, owner) in sums(step).into_iter().filter(|(column, _)| ring.here(*column) != rank) {
                plan.send(ring.here(column), Span::input(ring.part(owner, index)));
            }
        }
        if index > 0 {
            // Scratch memory is used again.
            let own = (0..ring.columns()).filter(|column| ring.here(*column) == rank);
            let right: BTreeSet<Rank> = own.map(|column| ring.right(column)).collect();
            right.into_iter().for_each(|peer| plan.drain(peer));
        }
        let mut slot = 0;
        for step in 0..hosts {
            for (column, owner) in sums(step).into_iter().filter(|(column, _)| ring.here(*column) == rank) {
                let own = Span::input(ring.part(owner, index));
                let left = (step > 0).then(|| {
                    let raw = step == 1 && ring.hosts[(ring.host + hosts - 1) % hosts].len() == 1;
                    Operand::Peer(ring.left(column), if raw { Buffer::Input } else { Buffer::Partial })
                });
                let everybody = left.into_iter().chain(layout.everybody(rank, own));
                if step + 1 == hosts {
                    plan.reduce(everybody, Span::output(segment(&(0..request.count_elems), size, index)));
                } else if step == 0 && ring.locals.len() == 1 {
                    plan.send(ring.right(column), own);
                } else {
                    let sum = Span::partial(slot * size..slot * size + own.count_elems);
                    plan.reduce(everybody, sum);
                    plan.send(ring.right(column), sum);
                    slot += 1;
                }
            }
        }
        plan.partial_elems = plan.partial_elems.max(slot * size);
    }
}
