//! What a collective costs between hosts, by the algorithm that carries it from host to host: pure arithmetic on the
//! figures of a [`Wire`].
//!
//! A message takes the time of the way, what both ends do for it, and its bytes; the ranks of a host share what their
//! host can send. What ranks of one host do among themselves comes before and after that.
//!
//! All ranks must come to the same, on whatever host they are; so what happens within a host is predicted from the figures of
//! a typical machine, never from those that one host has measured.

use super::cost::{Pull, Shape, Way, predict};
use super::{Algorithm, Choice, Layout};
use crate::topo::{Machine, Wire};
use crate::types::Collective;

/// What both ends of a message do for it: a system call each, through the kernel's network.
const MESSAGE_NS: f64 = 3_000.0;
/// Up to so many hosts may send to one rank at the same time, and it is as if one did; each one more makes the bytes slower by
/// this share of their time: their bursts meet in queues. Assumed, not measured.
const CALM_SENDERS: f64 = 3.0;
const CROWD_SHARE: f64 = 0.05;
/// Copying a few KiB that another core has written, and a step of a plan.
const NEAR_COPY_NS_PER_BYTE: f64 = 0.12;
const STEP_NS: f64 = 100.0;
/// Folding what is in a cache, each byte of the sum.
const FOLD_NS_PER_BYTE: f64 = 0.04;
/// Plans that queue everything before the first result comes, or much of it, send and fold what caches have lost: so many bytes stay in
/// one, and each one more takes so much longer.
const NEAR_BYTES: f64 = (2 << 20) as f64;
const FAR_NS_PER_BYTE: f64 = 0.3;
/// The most bytes of a block that are gathered by hosts: ranks hold the blocks of whole hosts in scratch memory.
pub(super) const GATHERED_MOST_BYTES: usize = 64 << 10;

/// Who takes part, as all ranks see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Spread {
    pub(super) ranks: usize,
    pub(super) hosts: usize,
    /// Ranks of the largest host, and of the smallest.
    pub(super) most_local: usize,
    pub(super) least_local: usize,
    pub(super) wire: Wire,
    pub(super) segment_bytes: usize,
}

impl Spread {
    pub(super) fn of(layout: &Layout, wire: Wire, segment_bytes: usize) -> Self {
        let locals = || layout.hosts().iter().map(Vec::len);
        Self {
            ranks: locals().sum(),
            hosts: layout.hosts().len(),
            most_local: locals().max().unwrap_or(1),
            least_local: locals().min().unwrap_or(1),
            wire,
            segment_bytes,
        }
    }
}

/// Nanoseconds from call to return of an operation of `bytes` (those of the call's count) between hosts.
pub(super) fn predict_hosts(choice: Choice, kind: Collective, spread: Spread, bytes: usize) -> f64 {
    let segment_bytes = spread.segment_bytes as f64;
    let model = |members, sharing| Model {
        kind,
        members: members as f64,
        sharing,
        spread,
        segment_bytes,
        bytes: bytes as f64,
    };
    match choice {
        // Every rank is a station of its own, and the ranks of a host share the wire.
        Choice::Planned(algorithm) => model(spread.ranks, spread.most_local as f64).carried(algorithm),
        Choice::Hierarchical(algorithm) => {
            let model = model(spread.hosts, 1.0);
            match kind {
                Collective::AllToAll => model.all_to_all(algorithm),
                Collective::AllReduce => model.carried(algorithm) + model.all_reduced_locally(algorithm),
                Collective::AllGather | Collective::ReduceScatter => {
                    model.gathered(algorithm, spread.most_local as f64)
                        + model.local(kind, bytes * spread.hosts)
                }
                _ => model.carried(algorithm) + model.local(kind, bytes),
            }
        }
        _ => f64::INFINITY,
    }
}

/// Nanoseconds from the send of a message of `bytes` until it is received on another host.
pub(super) fn predict_message(spread: Spread, bytes: usize) -> f64 {
    let (kind, segment_bytes, bytes) = (Collective::Broadcast, spread.segment_bytes as f64, bytes as f64);
    let model = Model { kind, members: 2.0, sharing: 1.0, spread, segment_bytes, bytes };
    model.hop() + model.wire(bytes)
}

struct Model {
    kind: Collective,
    /// Those between which messages go,
    members: f64,
    /// and how many of them share a host's wire.
    sharing: f64,
    spread: Spread,
    segment_bytes: f64,
    bytes: f64,
}

impl Model {
    /// A message without bytes.
    fn hop(&self) -> f64 {
        f64::from(self.spread.wire.latency_ns) + MESSAGE_NS
    }

    /// So many bytes of each member that shares a wire.
    fn wire(&self, bytes: f64) -> f64 {
        bytes * self.sharing * 8_000.0 / f64::from(self.spread.wire.bandwidth_mbps.max(1))
    }

    /// How much longer bytes take that come from so many at once.
    fn crowd(senders: f64) -> f64 {
        1.0 + CROWD_SHARE * (senders - CALM_SENDERS).max(0.0)
    }

    fn far(bytes: f64) -> f64 {
        (bytes - NEAR_BYTES).max(0.0) * FAR_NS_PER_BYTE
    }

    fn fold(&self, bytes: f64) -> f64 {
        if self.kind.reduces() { bytes * FOLD_NS_PER_BYTE } else { 0.0 }
    }

    /// Hops from the root to the last member of a tree.
    fn depth(&self) -> f64 {
        self.members.log2().ceil()
    }

    /// From member to member by the plan of `algorithm`.
    fn carried(&self, algorithm: Algorithm) -> f64 {
        match self.kind {
            Collective::AllReduce => self.all_reduce(algorithm),
            Collective::Reduce | Collective::Broadcast => self.rooted(algorithm),
            Collective::Gather | Collective::Scatter => {
                let others = self.members - 1.0;
                self.hop() + (others - 1.0) * MESSAGE_NS + self.wire(others * self.bytes)
            }
            // Every member for itself: blocks of one rank, or those of all.
            _ => self.gathered(algorithm, 1.0),
        }
    }

    fn all_reduce(&self, algorithm: Algorithm) -> f64 {
        let (members, bytes) = (self.members, self.bytes);
        let others = members - 1.0;
        let share = others / members;
        match algorithm {
            Algorithm::RecursiveDoubling => {
                let odd = if members.log2().fract() == 0.0 { 0.0 } else { 2.0 };
                let segments = (bytes / self.segment_bytes).ceil().max(1.0);
                // Nothing of a segment is under way before the one before is finished, and the sum is copied once more.
                let rounds = members.log2().floor() + odd;
                rounds * (segments * self.hop() + self.wire(bytes) + self.fold(bytes))
                    + self.fold(bytes)
                    + Self::far(bytes)
            }
            Algorithm::Tree => {
                let first = (bytes / 2.0).min(self.segment_bytes);
                let moved = if members > 2.0 { 2.0 * bytes } else { bytes };
                let messages = 2.0 * (moved / self.segment_bytes).ceil();
                2.0 * self.depth() * (self.hop() + self.wire(first) + self.fold(first))
                    + messages * MESSAGE_NS
                    + self.wire((moved - 2.0 * first).max(0.0))
                    + self.fold(bytes)
                    + Self::far(bytes)
            }
            Algorithm::Ring => {
                let windows = (bytes / (self.segment_bytes * members)).ceil().max(1.0);
                2.0 * others * windows * self.hop()
                    + self.wire(2.0 * share * bytes)
                    + self.fold(share * bytes)
            }
            Algorithm::Direct => {
                let segments = (bytes / members / self.segment_bytes).ceil().max(1.0);
                2.0 * (self.hop() + (others * segments - 1.0) * MESSAGE_NS)
                    + self.wire(2.0 * share * bytes) * Self::crowd(others)
                    + self.fold(share * bytes)
                    + Self::far(bytes)
            }
        }
    }

    fn rooted(&self, algorithm: Algorithm) -> f64 {
        let others = self.members - 1.0;
        let first = self.bytes.min(self.segment_bytes);
        let rest = self.bytes - first;
        let segments = (self.bytes / self.segment_bytes).ceil().max(1.0);
        let work = self.fold(self.bytes) + (segments - 1.0) * MESSAGE_NS;
        match algorithm {
            Algorithm::Direct => {
                self.hop() + (others - 1.0) * MESSAGE_NS + self.wire(others * self.bytes) + others * work
            }
            Algorithm::Ring => others * (self.hop() + self.wire(first)) + self.wire(rest) + work,
            _ => {
                let children = if self.members > 3.0 { 2.0 } else { 1.0 };
                let station = self.hop() + (children - 1.0) * MESSAGE_NS + children * self.wire(first);
                self.depth() * station + children * (self.wire(rest) + work)
            }
        }
    }

    /// AllGather and ReduceScatter, where each member stands for the blocks of so many ranks.
    fn gathered(&self, algorithm: Algorithm, blocks: f64) -> f64 {
        let others = self.members - 1.0;
        let wire = self.wire(others * blocks * self.bytes);
        let work = self.fold(others * self.bytes);
        match algorithm {
            Algorithm::Ring => others * self.hop() + wire + work,
            _ => self.hop() + (others - 1.0) * MESSAGE_NS + wire * Self::crowd(others) + work,
        }
    }

    fn all_to_all(&self, algorithm: Algorithm) -> f64 {
        let local = self.spread.most_local as f64;
        let others = self.spread.ranks as f64 - local;
        let wire = self.wire(local * others * self.bytes);
        if algorithm == Algorithm::Ring {
            return self.hop() + (others - 1.0) * MESSAGE_NS + wire;
        }
        if self.bytes > GATHERED_MOST_BYTES as f64 {
            return f64::INFINITY;
        }
        // An agent takes the blocks of its host, sorts them, sends them, and deals out what comes.
        let hosts = ((self.members - 1.0) / local).ceil();
        let blocks = hosts * local * local;
        let near = blocks * (STEP_NS + 5.0 * self.bytes * NEAR_COPY_NS_PER_BYTE) + 2.0 * self.meeting();
        self.hop() + (hosts - 1.0) * MESSAGE_NS + wire + near
    }

    /// The stages of an AllReduce within a host: ranks fold a share each where several carry on.
    fn all_reduced_locally(&self, algorithm: Algorithm) -> f64 {
        let teams = if algorithm == Algorithm::Ring { self.spread.least_local } else { 1 };
        let bytes = self.bytes as usize / teams;
        self.local(Collective::Reduce, bytes) + self.local(Collective::Broadcast, bytes)
    }

    /// What the largest host does for an operation of its own of so many bytes, by messages.
    fn local(&self, kind: Collective, bytes: usize) -> f64 {
        let ranks = self.spread.most_local;
        if ranks == 1 {
            return 0.0;
        }
        let shape = Shape { ranks, cpus: ranks, pull: Pull::Kernel };
        predict(Way::Passed, kind, shape, bytes, &Machine::default())
    }

    fn meeting(&self) -> f64 {
        self.local(Collective::Broadcast, 1)
    }
}

#[cfg(test)]
#[path = "cost_hosts_tests.rs"]
mod tests;
