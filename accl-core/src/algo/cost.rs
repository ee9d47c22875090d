//! What a collective costs on one host, by the way in which it is carried out: pure arithmetic on the figures of a
//! [`Machine`].
//!
//! Every rank does the same at the same time, so what is predicted is one rank's time: *meetings* (a rank waits for
//! what its slowest peer tells it) and work on bytes. Where ranks outnumber processors both come in *waves*.
//!
//! How fast bytes move depends on where they are: a rank's own rows against the second-level cache, the rows of all
//! ranks against the shared one ([`Rows`]). A row is in a cache that is as large, no more in one half as large, and in
//! part between; so predictions have no jumps, and grow with the bytes.
//!
//! The hot path does not come here: it looks a call's bytes up in [`super::Choices`], which are made when a communicator
//! is.

use super::staging;
use crate::topo::Machine;
use crate::types::Collective;

/// A way to carry out a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// Everybody's contribution is copied to the board, and read there.
    Copied,
    /// Buffers are lent; every rank reads all that it needs of all peers, in one phase.
    LentFlat,
    /// Buffers are lent; every rank finishes the chunk that it owns, then fetches those of the others. AllReduce only.
    LentOwned,
    /// Messages are copied into links and out of them, by both ends at once.
    Passed,
    /// Segments are copied once into memory that all share, and read there by all.
    Staged,
    /// Neighbours only, over links.
    Ring,
    /// Up and down, over links.
    Tree,
    /// Partners at doubling distances, over links.
    RecursiveDoubling,
}

impl Way {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::LentFlat => "lent-flat",
            Self::LentOwned => "lent-owned",
            Self::Passed => "passed",
            Self::Staged => "staged",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::RecursiveDoubling => "rd",
        }
    }
}

/// How a rank gets at what its peers lend. Of a communicator it is the slowest of all pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pull {
    /// By loads: threads of one process, or memory that is mapped by both.
    InPlace,
    /// The kernel copies, piece by piece (`process_vm_readv`).
    Kernel,
    /// Not at all: everything is copied into a ring and out of it.
    Ring,
}

/// Who takes part, and with what.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Members of the communicator, at least 1.
    pub ranks: usize,
    /// Processors that they share, at least 1.
    pub cpus: usize,
    /// How they read each other's memory.
    pub pull: Pull,
}

/// The most bytes that one rank can contribute by [`Way::Copied`].
pub const BOARD_MOST_BYTES: usize = 16 << 10;
/// A rank's staging area, of two to 64 ranks.
const STAGING_BYTES: f64 = (512 << 10) as f64;
/// Where data is more than all caches hold, staging it gains nothing, and plans would be long.
pub(super) const STAGED_MOST_BYTES: usize = 256 << 20;
/// The kernel is asked for so many bytes at once: they stay in a second-level cache until they are folded.
const PIECE_BYTES: f64 = (256 << 10) as f64;
/// A message's head carries so many bytes itself.
const INLINE_BYTES: usize = 32;
/// What our own code takes to make and follow a plan, beyond what a copied call takes: some 1,000 instructions
/// (`benches/paths.rs` counts them).
const PLAN_NS: f64 = 600.0;
/// A link's records: how long they are, and what either end takes for one besides its bytes, unless it waits anyway.
const RECORD_KIB: f64 = 64.0;
const RECORD_NS: f64 = 640.0;
const LINE_KIB: f64 = 64.0 / 1024.0;

/// What a rank has to do for a call of so many bytes, which are those of the call's count.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Volumes {
    /// Bytes that the busiest rank contributes.
    contributed: f64,
    /// Bytes that the busiest rank needs of peers, and of how many.
    pulled: f64,
    sources: f64,
    /// Bytes of result at the busiest rank.
    written: f64,
    /// Of those, what it copies from itself.
    own: f64,
}

impl Volumes {
    fn of(kind: Collective, ranks: usize, bytes: usize) -> Self {
        let (bytes, all) = (bytes as f64, ranks as f64);
        let others = all - 1.0;
        let volumes = |contributed, pulled, written, own| Self {
            contributed: contributed * bytes,
            pulled: pulled * bytes,
            sources: if matches!(kind, Collective::Broadcast | Collective::Scatter) { 1.0 } else { others },
            written: written * bytes,
            own: own * bytes,
        };
        match kind {
            Collective::AllReduce | Collective::Reduce => volumes(1.0, others, 1.0, 0.0),
            Collective::ReduceScatter => volumes(all, others, 1.0, 0.0),
            Collective::Broadcast => volumes(1.0, others.min(1.0), 1.0, 0.0),
            Collective::AllGather | Collective::Gather | Collective::Split => volumes(1.0, others, all, 1.0),
            Collective::AllToAll => volumes(all, others, all, 1.0),
            Collective::Scatter => volumes(all, others.min(1.0), 1.0, 0.0),
        }
    }
}

/// Bytes that an operation goes over, for one rank and for all.
#[derive(Clone, Copy, Debug)]
struct Rows {
    own: f64,
    all: f64,
}

/// The figures of one kind of work, by where the bytes are; nanoseconds for each KiB.
#[derive(Clone, Copy, Debug)]
struct Rate {
    l2: f64,
    l3: f64,
    memory: f64,
}

impl Rate {
    fn of(l2_ps: u32, l3_ps: u32, memory_ps: u32) -> Self {
        // Nothing gets faster further away; a measurement may say so by accident.
        let (l2, l3, memory) = (ns(l2_ps), ns(l3_ps), ns(memory_ps));
        Self { l2, l3: l3.max(l2), memory: memory.max(l3).max(l2) }
    }

    fn at(self, rows: Rows, machine: &Machine) -> f64 {
        let l2 = share_within(machine.l2_kib, rows.own);
        let l3 = share_within(machine.l3_kib, rows.all).max(l2);
        self.l2 * l2 + self.l3 * (l3 - l2) + self.memory * (1.0 - l3)
    }
}

fn ns(picoseconds: u32) -> f64 {
    f64::from(picoseconds) / 1000.0
}

fn kib(bytes: f64) -> f64 {
    bytes / 1024.0
}

/// How much of so many bytes, gone over again and again, a cache of that size still has.
fn share_within(cache_kib: u32, bytes: f64) -> f64 {
    (2.0 - kib(bytes) / f64::from(cache_kib.max(1))).clamp(0.0, 1.0)
}

/// Nanoseconds from call to return of an operation of `bytes` (those of the call's count, for one rank) that goes `way`.
/// A way that does not serve the call, as [`Way::Copied`] above [`BOARD_MOST_BYTES`], takes for ever.
pub fn predict(way: Way, kind: Collective, shape: Shape, bytes: usize, machine: &Machine) -> f64 {
    let model = Model { kind, shape, bytes, volumes: Volumes::of(kind, shape.ranks, bytes), machine };
    match way {
        Way::Copied if model.volumes.contributed > BOARD_MOST_BYTES as f64 => f64::INFINITY,
        _ if shape.ranks <= 1 => model.copy(model.volumes.written),
        Way::Copied => model.copied(),
        Way::LentFlat => model.flat(),
        Way::LentOwned if kind == Collective::AllReduce => model.owned(),
        Way::LentOwned => f64::INFINITY,
        Way::Passed => model.passed(),
        Way::Staged if !staging::serves(kind) || bytes > STAGED_MOST_BYTES => f64::INFINITY,
        Way::Staged => model.staged(),
        Way::Ring | Way::Tree | Way::RecursiveDoubling => model.linked(way),
    }
}

/// True if results are written faster with stores that go around the caches.
pub(super) fn streams(kind: Collective, shape: Shape, bytes: usize, machine: &Machine) -> bool {
    let volumes = Volumes::of(kind, shape.ranks, bytes);
    let (cached, streaming) = Model { kind, shape, bytes, volumes, machine }.stores();
    streaming < cached
}

/// The most bytes of a call's count that the busiest rank can contribute by [`Way::Copied`].
pub(super) fn copied_most_bytes(kind: Collective, ranks: usize) -> usize {
    BOARD_MOST_BYTES / Volumes::of(kind, ranks, 1).contributed as usize
}

/// A call, and what it is to be predicted with.
#[derive(Clone, Copy, Debug)]
struct Model<'a> {
    kind: Collective,
    shape: Shape,
    bytes: usize,
    volumes: Volumes,
    machine: &'a Machine,
}

impl Model<'_> {
    fn ranks(&self) -> f64 {
        self.shape.ranks as f64
    }

    /// How often a processor has to change ranks until all have had their turn.
    fn waves(&self) -> f64 {
        self.shape.ranks.div_ceil(self.shape.cpus.max(1)) as f64
    }

    /// The share of a rank's peers that are on other processors: those on its own have left their data in its cache.
    fn elsewhere(&self) -> f64 {
        let peers = (self.ranks() - 1.0).max(1.0);
        ((self.ranks() - self.waves()) / peers).clamp(0.0, 1.0)
    }

    /// Reading what a peer has just written, by long rows; nanoseconds for each KiB.
    fn fresh(&self) -> f64 {
        ns(self.machine.dirty_read_bulk_ps_per_kib) * self.elsewhere()
    }

    /// Asking the kernel for a peer's memory: it looks the peer up, which a switch has driven out of the caches.
    fn remote_call(&self) -> f64 {
        let cold = if self.waves() > 1.0 { self.machine.yield_ps } else { 0 };
        ns(self.machine.remote_call_ps) + ns(cold)
    }

    /// A rank tells all others something and hears as much from each: the line of the last one is waited for, the
    /// lines of the others have come meanwhile.
    fn meeting(&self) -> f64 {
        let further = (self.ranks() - 2.0) * LINE_KIB * ns(self.machine.dirty_read_ps_per_kib);
        // Where ranks take turns, each has to be switched to, and back to whoever waits for it.
        let turns = if self.waves() > 1.0 { 2.0 * self.waves() } else { 0.0 };
        ns(self.machine.handover_ps) + further + turns * ns(self.machine.yield_ps)
    }

    /// Data that is not in the head is asked for when the head is there: once more the way from core to core.
    fn second_look(&self) -> f64 {
        ns(self.machine.handover_ps)
    }

    /// Rows of input and output, of this rank and of all; through this rank's cache also go those of its peers, and
    /// all of ranks that take turns on its processor.
    fn rows(&self) -> Rows {
        let volumes = self.volumes;
        let own = volumes.contributed + volumes.written;
        Rows { own: (own + volumes.pulled) * self.waves(), all: own * self.ranks() }
    }

    fn copy_rate(&self) -> Rate {
        let machine = self.machine;
        Rate::of(machine.copy_l2_ps_per_kib, machine.copy_l3_ps_per_kib, machine.copy_memory_ps_per_kib)
    }

    fn add_rate(&self) -> Rate {
        let machine = self.machine;
        Rate::of(machine.add_l2_ps_per_kib, machine.add_l3_ps_per_kib, machine.add_memory_ps_per_kib)
    }

    fn remote_rate(&self) -> Rate {
        let machine = self.machine;
        Rate::of(machine.remote_l2_ps_per_kib, machine.remote_l3_ps_per_kib, machine.remote_memory_ps_per_kib)
    }

    /// Copying so many bytes, with whichever stores are faster.
    fn copy(&self, bytes: f64) -> f64 {
        let cached = self.copy_rate().at(self.rows(), self.machine);
        kib(bytes) * cached.min(ns(self.machine.copy_streaming_ps_per_kib))
    }

    /// Folding so many bytes into a result, where the operands are as near as `operands` says.
    fn fold(&self, bytes: f64, operands: Rows) -> f64 {
        let cached = self.add_rate().at(operands, self.machine);
        kib(bytes) * cached.min(ns(self.machine.add_streaming_ps_per_kib))
    }

    fn copied(&self) -> f64 {
        let (machine, volumes) = (self.machine, self.volumes);
        let beyond = if self.bytes > INLINE_BYTES { self.second_look() } else { 0.0 };
        let post = kib(volumes.contributed) * ns(machine.dirty_write_ps_per_kib) * self.elsewhere();
        let read = kib(volumes.pulled) * ns(machine.dirty_read_ps_per_kib) * self.elsewhere();
        let near = Rows { own: 0.0, all: 0.0 };
        let fold = if self.kind.reduces() { self.fold(volumes.pulled, near) } else { self.copy(volumes.own) };
        self.meeting() + beyond + self.waves() * (post + read + fold)
    }

    fn flat(&self) -> f64 {
        let all = self.pulled(self.volumes.pulled, self.kind.reduces(), 0.0);
        // One meeting to begin with, one to say that nobody reads any more.
        2.0 * self.meeting() + self.waves() * (PLAN_NS + all + self.copy(self.volumes.own))
    }

    fn owned(&self) -> f64 {
        let chunks = self.volumes.pulled / self.ranks();
        // The results are fresh: they lie in the caches of those who have just written them, over what others had read
        // the last time.
        let fresh = self.fresh();
        let store = kib(self.volumes.written / self.ranks()) * fresh;
        let work = self.pulled(chunks, true, 0.0) + store + self.pulled(chunks, false, fresh);
        3.0 * self.meeting() + self.waves() * (PLAN_NS + work)
    }

    /// Pieces go from a buffer into a link while the peer takes the one before out of it.
    fn passed(&self) -> f64 {
        let (machine, rows, volumes) = (self.machine, self.rows(), self.volumes);
        let fresh = self.fresh();
        let stage = self.copy_rate().at(rows, machine).min(ns(machine.copy_streaming_ps_per_kib)).max(fresh);
        // Sums wait for fresh lines more than copies do: those that the processor reads ahead are of more rows.
        let fold = self.add_rate().at(rows, machine) + 0.4 * fresh;
        let out = match self.kind {
            // Half of what comes are inputs, the other half results.
            Collective::AllReduce => f64::midpoint(fold.max(stage), stage),
            kind if kind.reduces() => fold.max(stage),
            _ => stage,
        };
        // A root gives or takes; without one, every rank does both.
        let work = if self.kind.has_root() { out } else { stage + out };
        let rounds = if self.kind == Collective::AllReduce { 2.0 / self.ranks() } else { 1.0 };
        // A root that gives serves its peers one after the other.
        let gives = matches!(self.kind, Collective::Broadcast | Collective::Scatter);
        let peers = if gives { self.ranks() - 1.0 } else { 1.0 };
        let moved = kib(volumes.pulled) * rounds * peers;
        let records = if self.kind.has_root() {
            peers
        } else {
            let phases = if self.kind == Collective::AllReduce { 2.0 } else { 1.0 };
            2.0 * (moved / RECORD_KIB).max(phases * (self.ranks() - 1.0))
        };
        // Peers that take turns are waited for one by one, each for its messages.
        let meetings = if self.waves() > 1.0 { 3.0 * (self.ranks() - 1.0) } else { 3.0 };
        let carried = moved * work + records * RECORD_NS;
        meetings * self.meeting() + self.waves() * (PLAN_NS + carried + self.copy(volumes.own))
    }

    /// Segments go into the staging area while those before are taken out of others' areas; all meet after each.
    fn staged(&self) -> f64 {
        let (ranks, bytes, machine) = (self.ranks(), kib(self.bytes as f64), self.machine);
        let others = ranks - 1.0;
        // What is put there, what is folded of others', and what is fetched.
        let (put, folded, fetched) = match self.kind {
            Collective::AllReduce | Collective::Reduce => {
                (bytes * others / ranks, bytes * others / ranks, bytes * others / ranks)
            }
            Collective::ReduceScatter => (bytes * others, bytes * others, 0.0),
            Collective::Broadcast => (bytes, 0.0, bytes),
            _ => (bytes, 0.0, bytes * others),
        };
        let segment = kib(STAGING_BYTES)
            / match self.kind {
                Collective::AllReduce | Collective::Reduce => 2.0 * (ranks + 1.0) / ranks,
                Collective::ReduceScatter => 2.0 * ranks,
                Collective::Broadcast => 4.0,
                _ => 2.0,
            };
        let rounds = (bytes / segment).ceil() + if self.kind == Collective::AllReduce { 1.0 } else { 0.0 };
        let near = Rows { own: 0.0, all: 0.0 };
        let copy = self.copy_rate().at(self.rows(), machine).min(ns(machine.copy_streaming_ps_per_kib));
        // What was staged last has been read by peers; what they have staged is fresh.
        let put = put * copy.max(ns(machine.dirty_write_ps_per_kib) * self.elsewhere());
        let read = ns(machine.dirty_read_ps_per_kib) * self.elsewhere();
        let fold = folded * self.add_rate().at(near, machine).max(read);
        let fetch = fetched * copy.max(if self.kind.has_root() { self.fresh() } else { read });
        let work = if self.kind == Collective::Broadcast {
            // The root and its readers work at the same time, as far as there are processors for all.
            let turns = self.shape.cpus.min(self.shape.ranks) as f64;
            PLAN_NS + ((put + others * fetch) / turns).max(put).max(fetch)
        } else {
            self.waves() * (PLAN_NS + put + fold + fetch)
        };
        (1.0 + rounds) * self.meeting() + work + self.waves() * self.copy(self.volumes.own)
    }

    /// Getting `bytes` from all peers that have something, and folding or storing them; each KiB takes `least_ns` at
    /// least. Of inputs nobody knows when they were written; the model takes them for clean.
    fn pulled(&self, bytes: f64, folds: bool, least_ns: f64) -> f64 {
        let (machine, rows) = (self.machine, self.rows());
        let fold = if folds { self.fold(bytes, rows) } else { 0.0 };
        match self.shape.pull {
            Pull::InPlace => {
                let work = if folds { fold } else { self.copy(bytes) };
                self.second_look() + work.max(kib(bytes) * least_ns)
            }
            Pull::Kernel => {
                let sources = self.volumes.sources;
                let calls = sources * (bytes / sources / PIECE_BYTES).ceil().max(1.0);
                // Where ranks take turns, those of other processors have had their caches to themselves meanwhile.
                let apart = if self.waves() > 1.0 { ns(machine.remote_l3_ps_per_kib) } else { 0.0 };
                let read = kib(bytes) * self.remote_rate().at(rows, machine).max(apart).max(least_ns);
                calls * self.remote_call() + read + fold
            }
            Pull::Ring => self.second_look() + kib(bytes) * self.link_rate() + fold,
        }
    }

    /// Nanoseconds for each KiB that goes through a ring: written into it, and read out of it by the peer.
    fn link_rate(&self) -> f64 {
        self.fresh() + self.copy_rate().at(self.rows(), self.machine)
    }

    /// Plans over links, roughly: so many steps one after the other, and so many bytes through the busiest rank.
    fn linked(&self, way: Way) -> f64 {
        let (ranks, bytes) = (self.ranks(), self.bytes as f64);
        let (share, hops) = ((ranks - 1.0) / ranks, ranks.log2().ceil());
        let (steps, moved) = match (way, self.kind) {
            (Way::Ring, Collective::AllReduce) => (2.0 * (ranks - 1.0), 2.0 * share * bytes),
            (Way::Ring, Collective::Broadcast | Collective::Reduce) => (ranks - 1.0, bytes),
            (Way::Ring, _) => (ranks - 1.0, (ranks - 1.0) * bytes),
            (Way::Tree, Collective::AllReduce) => (2.0 * hops, 2.0 * bytes),
            (Way::Tree, _) => (hops, bytes),
            _ => (hops, hops * bytes),
        };
        let rate = match self.shape.pull {
            Pull::Ring => self.link_rate(),
            Pull::Kernel => self.remote_rate().at(self.rows(), self.machine),
            Pull::InPlace => self.copy_rate().at(self.rows(), self.machine),
        };
        let fold = if self.kind.reduces() { self.fold(moved, self.rows()) } else { 0.0 };
        // A step is two of a link's announcements: data there, data read.
        2.0 * steps * self.meeting() + self.waves() * (kib(moved) * rate + fold)
    }

    /// Writing the result with stores that go through the caches, and with those that go around them.
    fn stores(&self) -> (f64, f64) {
        let (machine, rows) = (self.machine, self.rows());
        if self.kind.reduces() {
            (self.add_rate().at(rows, machine), ns(machine.add_streaming_ps_per_kib))
        } else {
            (self.copy_rate().at(rows, machine), ns(machine.copy_streaming_ps_per_kib))
        }
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
