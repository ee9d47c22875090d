//! The memory that the ranks of one communicator share on one host.
//!
//! ```text
//! | header 4 KiB | rank blocks n × 384 B | who reads whom n × n B | board heads D × n × 64 B |
//! | board data d × n × 16 KiB | staging areas n × S |
//! | rings: for each source, destination, lane: control 384 B, bytes R |
//! | if there are other hosts, what is known of each rank: its state 1 B | what it waits for 104 B (`block.rs`) |
//! ```
//! ```text
//! header: magic u64 | ranks u32 | ring bytes u32 | processors u32 | figures k × u32 | questions u64 | first failure
//! ```
//! Everything begins at a multiple of 128 bytes. R and S shrink as ranks grow, so that the whole stays below about
//! 256 MiB of address space; memory is only used where it is touched.
//!
//! # Safety
//! All structures here are atomics, or bytes whose access is ordered by the atomics beside them. Offsets come
//! from [`Geometry`] alone, whose total is checked against the mapping's length.
#![allow(unsafe_code)]

use super::block::{Heard, RankBlock, RankState, Word};
use super::members::Members;
use crate::error::{Error, ErrorKind, Result};
use crate::os::cpu;
use crate::os::mapping::Mapping;
use crate::sync::cursor::{self, Head, Tail};
use crate::sync::lease::Lease;
use crate::sync::prim::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::verdict::Verdict;
use crate::topo::{FIGURES, Machine};
use crate::types::Rank;
use std::ops::Range;
use std::sync::Arc;

/// How many operations the board keeps of each rank, where their data fits into the heads.
pub const BOARD_DEPTH: usize = 128;
/// How many of them a rank may have posted before it is done with the first.
pub const BOARD_AHEAD: usize = 64;
/// How many operations the board keeps of those with more data. A rank is done with one before it posts the next.
pub const BOARD_DATA_DEPTH: usize = 8;
/// Bytes that one rank can post on the board beside its head.
pub const BOARD_BYTES: usize = 16 << 10;
/// Bytes that fit into the head itself: one cache line carries call and data.
pub const BOARD_INLINE_BYTES: usize = 32;
const BOARD_HEAD_BYTES: usize = 64;
const HEADER_BYTES: usize = 4096;
const RING_BUDGET_BYTES: usize = 192 << 20;
const STAGING_BUDGET_BYTES: usize = 32 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"ACCLARN5");

/// Collectives and point-to-point messages never wait for each other's credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Steps of collective plans.
    Collective = 0,
    /// Send and Recv.
    PointToPoint = 1,
}

/// Where everything lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    ranks: usize,
    ring_bytes: usize,
    reads_start: usize,
    heads_start: usize,
    data_start: usize,
    staging_start: usize,
    staging_bytes: usize,
    rings_start: usize,
    /// Ranks whose state other hosts tell: all, or none where there are no other hosts.
    told_ranks: usize,
}

impl Geometry {
    /// The layout for those of `members` that share it.
    pub fn for_members(members: &Members) -> Self {
        let told_ranks = if members.local() < members.ranks() { members.ranks() } else { 0 };
        Self { told_ranks, ..Self::for_ranks(members.local()) }
    }

    /// The layout for `ranks` ranks on one host, and no others.
    pub fn for_ranks(ranks: usize) -> Self {
        let rings = (ranks * ranks.saturating_sub(1) * 2).max(1);
        let share = (RING_BUDGET_BYTES / rings).clamp(16 << 10, 1 << 20);
        let reads_start = HEADER_BYTES + ranks * size_of::<RankBlock>();
        let heads_start = (reads_start + ranks * ranks).next_multiple_of(128);
        let data_start = (heads_start + BOARD_DEPTH * ranks * BOARD_HEAD_BYTES).next_multiple_of(4096);
        let staging_start = data_start + BOARD_DATA_DEPTH * ranks * BOARD_BYTES;
        // Plans cut it into two slots for each rank and two more, of a cache line at least.
        let least = (128 * (ranks + 1)).next_power_of_two().max(64 << 10);
        let staging_bytes = 1 << (STAGING_BUDGET_BYTES / ranks.max(1)).clamp(least, 512 << 10).ilog2();
        Self {
            ranks,
            ring_bytes: 1 << share.ilog2(),
            reads_start,
            heads_start,
            data_start,
            staging_start,
            staging_bytes,
            rings_start: staging_start + ranks * staging_bytes,
            told_ranks: 0,
        }
    }

    /// Bytes of one rank's staging area.
    pub fn staging_bytes(&self) -> usize {
        self.staging_bytes
    }

    /// Ranks that share the arena.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Data bytes of one ring.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Length of the whole.
    pub fn total_bytes(&self) -> usize {
        self.heard_start() + self.told_ranks * size_of::<Heard>()
    }

    fn heard_start(&self) -> usize {
        (self.told_start() + self.told_ranks).next_multiple_of(128)
    }

    fn told_start(&self) -> usize {
        self.rings_start + self.ranks * self.ranks * 2 * self.ring_stride()
    }

    fn ring_stride(&self) -> usize {
        size_of::<RingControl>() + self.ring_bytes
    }

    fn head_start(&self, rank: Rank, sequence: u64) -> usize {
        let index = (sequence % BOARD_DEPTH as u64) as usize * self.ranks + rank;
        self.heads_start + index * BOARD_HEAD_BYTES
    }

    fn board_data_start(&self, rank: Rank, sequence: u64) -> usize {
        let index = (sequence % BOARD_DATA_DEPTH as u64) as usize * self.ranks + rank;
        self.data_start + index * BOARD_BYTES
    }

    fn ring_start(&self, source: Rank, destination: Rank, lane: Lane) -> usize {
        let index = (source * self.ranks + destination) * 2 + lane as usize;
        self.rings_start + index * self.ring_stride()
    }
}

/// The first bytes: who made it, what its maker says of the machine, and the communicator's first failure.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    ranks: AtomicU32,
    ring_bytes: AtomicU32,
    cpus: AtomicU32,
    machine: [AtomicU32; FIGURES.len()],
    /// How often ranks of this host have asked other hosts for whom they wait.
    asked: AtomicU64,
    failure: Verdict<FAILURE_TEXT_BYTES>,
}

const FAILURE_TEXT_BYTES: usize = 1024;
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// The words of one ring.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RingControl {
    /// The producer's.
    pub(super) tail: Tail,
    /// The consumer's.
    pub(super) head: Head,
    /// Of the memory that the producer lends to the consumer.
    pub(super) lease: Lease,
}

/// A mapped arena.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    geometry: Geometry,
    members: Members,
}

impl Arena {
    /// Lays out fresh zeroed memory, for the members that the layout is for.
    pub fn create(mapping: Mapping, geometry: Geometry, members: Members) -> Result<Arc<Self>> {
        let arena = Self::checked(mapping, geometry, members)?;
        let header = arena.header();
        header.ranks.store(geometry.ranks as u32, Ordering::Relaxed);
        header.ring_bytes.store(geometry.ring_bytes as u32, Ordering::Relaxed);
        // Release: pairs with `open`.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Arc::new(arena))
    }

    /// Takes memory that another process has laid out.
    pub fn open(mapping: Mapping, geometry: Geometry, members: Members) -> Result<Arc<Self>> {
        let arena = Self::checked(mapping, geometry, members)?;
        let header = arena.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.ranks.load(Ordering::Relaxed) as usize != geometry.ranks
            || header.ring_bytes.load(Ordering::Relaxed) as usize != geometry.ring_bytes
        {
            return Err(Error::internal("the shared memory of a peer has another layout"));
        }
        Ok(Arc::new(arena))
    }

    fn checked(mapping: Mapping, geometry: Geometry, members: Members) -> Result<Self> {
        if mapping.len_bytes() < geometry.total_bytes() || members.local() != geometry.ranks {
            return Err(Error::internal("an arena that is smaller than its layout, or for other ranks"));
        }
        Ok(Self { mapping, geometry, members })
    }

    /// The ranks that share it.
    #[inline]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Bytes of it that take memory, whoever of its ranks has touched them.
    pub fn used_bytes(&self) -> Result<usize> {
        self.mapping.used_bytes()
    }

    /// Bytes of what [`Self::give_back`] would give back now.
    pub fn idle_bytes(&self, rank: Rank) -> Result<usize> {
        self.idle_ranges(rank).map(|range| self.mapping.used_bytes_of(range)).sum()
    }

    /// Gives the memory back in which `rank` hands data to its peers: its staging area, and its rings but for what peers have not read. No call may
    /// be under way on any rank. It takes memory again as it is used.
    pub fn give_back(&self, rank: Rank) -> Result<()> {
        self.idle_ranges(rank).try_for_each(|range| self.mapping.give_back(range))
    }

    fn idle_ranges(&self, rank: Rank) -> impl Iterator<Item = Range<usize>> {
        let geometry = self.geometry;
        let staging_start = geometry.staging_start + self.members.slot(rank) * geometry.staging_bytes;
        let peers = (0..self.members.ranks()).filter(|peer| self.members.has(*peer));
        let rings = peers.flat_map(|peer| [Lane::Collective, Lane::PointToPoint].map(|lane| (peer, lane)));
        let free = rings.flat_map(move |(peer, lane)| {
            let (source, destination) = (self.members.slot(rank), self.members.slot(peer));
            let start = geometry.ring_start(source, destination, lane) + size_of::<RingControl>();
            let data = start..start + geometry.ring_bytes;
            // A look at the words of a ring that was never used would make memory of them.
            let used = self.mapping.used_bytes_of(data.clone()).is_ok_and(|bytes| bytes > 0);
            let parts = used.then(|| {
                let control = self.ring_control(rank, peer, lane);
                cursor::free_parts(&control.tail, &control.head, geometry.ring_bytes)
            });
            parts.into_iter().flatten().map(move |part| start + part.start..start + part.end)
        });
        std::iter::once(staging_start..staging_start + geometry.staging_bytes).chain(free)
    }

    /// The layout.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Says what the machine is like, and how many processors the ranks share; for the maker, before anybody else has
    /// the arena. All ranks choose by these figures, and so choose the same.
    pub fn set_machine(&self, machine: &Machine, cpus: usize) {
        let header = self.header();
        // Relaxed: whatever hands the arena to others also orders this.
        header.cpus.store(u32::try_from(cpus).unwrap_or(u32::MAX), Ordering::Relaxed);
        for (place, word) in header.machine.iter().zip(machine.words()) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// What the maker has said of the machine; the default if it has said nothing, or what cannot be true.
    pub fn machine(&self) -> Machine {
        let words = self.header().machine.each_ref().map(|word| word.load(Ordering::Relaxed));
        Machine::from_words(words).unwrap_or_default()
    }

    /// How many processors the ranks share, at least 1: as the maker says, else one for each.
    pub fn cpus(&self) -> usize {
        const MOST: u32 = 1 << 16;
        match self.header().cpus.load(Ordering::Relaxed) {
            cpus @ 1..=MOST => cpus as usize,
            // The same for all ranks, like all that is said here.
            _ => self.geometry.ranks,
        }
    }

    /// A rank's block.
    pub fn block(&self, rank: Rank) -> &RankBlock {
        self.block_at(self.members.slot(rank))
    }

    /// What any rank has said of itself, as far as this host knows: Absent if it is on another one that has told nothing.
    pub fn state_of(&self, rank: Rank) -> RankState {
        if self.members.has(rank) {
            return self.block(rank).state();
        }
        // Acquire: pairs with `set_told`.
        RankState::of(u32::from(self.told(rank).load(Ordering::Acquire)))
    }

    /// Another host tells how a rank of its has gone; the first word stays. Those who may wait for it are woken.
    pub fn set_told(&self, rank: Rank, state: RankState) {
        let told = self.told(rank);
        let unknown = RankState::Absent as u8;
        if told.compare_exchange(unknown, state as u8, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.ring_all();
        }
    }

    /// Asks other hosts what their ranks wait for; returns the question's number. Whoever carries what hosts tell each other sees it when it
    /// looks next.
    pub fn ask(&self) -> u64 {
        // Relaxed: it says nothing about other memory.
        self.header().asked.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many questions there were.
    pub fn asked(&self) -> u64 {
        self.header().asked.load(Ordering::Relaxed)
    }

    /// What was heard of a rank of another host since a question was asked.
    pub fn heard_of(&self, rank: Rank, question: u64) -> Word {
        self.heard(rank).since(question)
    }

    /// Another host tells what a rank of its waits for.
    pub fn set_heard(&self, rank: Rank, word: &Word) {
        self.heard(rank).set(word, self.asked());
    }

    fn heard(&self, rank: Rank) -> &Heard {
        assert!(rank < self.geometry.told_ranks);
        // SAFETY: the table has an entry for each rank; otherwise as in `block`.
        unsafe { &*self.at(self.geometry.heard_start() + rank * size_of::<Heard>()).cast() }
    }

    fn told(&self, rank: Rank) -> &AtomicU8 {
        assert!(rank < self.geometry.told_ranks);
        // SAFETY: the table has a byte for each rank; otherwise as in `block`.
        unsafe { &*self.at(self.geometry.told_start() + rank).cast() }
    }

    fn ring_all(&self) {
        for slot in 0..self.geometry.ranks {
            self.block_at(slot).bell.ring();
        }
    }

    fn block_at(&self, slot: usize) -> &RankBlock {
        assert!(slot < self.geometry.ranks);
        // SAFETY: the blocks lie between header and board heads for every slot below `ranks`; they consist of
        // atomics, for which all bytes are valid, and the mapping lives as long as `self`.
        unsafe { &*self.at(HEADER_BYTES + slot * size_of::<RankBlock>()).cast() }
    }

    /// Says that `reader` can read memory that `source` lends. Whether one process may read another depends on the
    /// direction, so the reader finds out and the lender has to be told.
    pub fn set_reads(&self, reader: Rank, source: Rank) {
        // Relaxed: it says nothing about other memory.
        self.reads_word(reader, source).store(1, Ordering::Relaxed);
    }

    /// True if `reader` has said so; until then nothing is lent to it.
    pub fn reads(&self, reader: Rank, source: Rank) -> bool {
        self.reads_word(reader, source).load(Ordering::Relaxed) != 0
    }

    fn reads_word(&self, reader: Rank, source: Rank) -> &AtomicU8 {
        let (reader, source) = (self.members.slot(reader), self.members.slot(source));
        assert!(reader < self.geometry.ranks && source < self.geometry.ranks);
        // SAFETY: the table has a byte for each pair of ranks; otherwise as in `block`.
        unsafe { &*self.at(self.geometry.reads_start + reader * self.geometry.ranks + source).cast() }
    }

    /// A rank's head on the board for an operation.
    pub(in crate::transport) fn board_head(&self, rank: Rank, sequence: u64) -> *mut u8 {
        self.board_head_at(self.members.slot(rank), sequence)
    }

    /// The same by the rank's slot.
    pub(in crate::transport) fn board_head_at(&self, slot: usize, sequence: u64) -> *mut u8 {
        debug_assert!(slot < self.geometry.ranks);
        self.at(self.geometry.head_start(slot, sequence))
    }

    /// A rank's data on the board for an operation.
    pub(in crate::transport) fn board_data(&self, rank: Rank, sequence: u64) -> *mut u8 {
        let slot = self.members.slot(rank);
        debug_assert!(slot < self.geometry.ranks);
        self.at(self.geometry.board_data_start(slot, sequence))
    }

    /// A rank's staging area, of [`Geometry::staging_bytes`].
    pub(super) fn staging(&self, rank: Rank) -> *mut u8 {
        let slot = self.members.slot(rank);
        assert!(slot < self.geometry.ranks);
        self.at(self.geometry.staging_start + slot * self.geometry.staging_bytes)
    }

    pub(super) fn ring_control(&self, source: Rank, destination: Rank, lane: Lane) -> &RingControl {
        let (source, destination) = (self.members.slot(source), self.members.slot(destination));
        assert!(source < self.geometry.ranks && destination < self.geometry.ranks);
        // SAFETY: the offset lies inside the rings for ranks below `ranks`; otherwise as in `block`.
        unsafe { &*self.at(self.geometry.ring_start(source, destination, lane)).cast() }
    }

    pub(super) fn ring_data(&self, source: Rank, destination: Rank, lane: Lane) -> *mut u8 {
        let (source, destination) = (self.members.slot(source), self.members.slot(destination));
        assert!(source < self.geometry.ranks && destination < self.geometry.ranks);
        self.at(self.geometry.ring_start(source, destination, lane) + size_of::<RingControl>())
    }

    /// Records the communicator's first failure and wakes everybody; later ones are ignored.
    pub fn fail(&self, error: &Error) {
        let text = &error.text()[..error.text().floor_char_boundary(FAILURE_TEXT_BYTES)];
        if !self.header().failure.set(u32::from(error.kind().code()), text.as_bytes()) {
            // Somebody else was first and may not be done writing; one that was killed meanwhile never will be.
            for _ in 0..1000 {
                if self.failure().is_some() {
                    break;
                }
                cpu::yield_now();
            }
            return;
        }
        self.ring_all();
    }

    /// What a rank leaves that dies while it records a failure.
    #[cfg(test)]
    pub(crate) fn begin_failure(&self) {
        self.header().failure.begin();
    }

    /// A rank goes: says how, and wakes the others, who may be waiting for it.
    pub fn part(&self, rank: Rank, how: RankState) {
        self.block(rank).set_state(how);
        self.ring_peers(rank);
    }

    /// Wakes those peers of `rank` that may be sleeping until it does something.
    pub fn ring_peers(&self, rank: Rank) {
        let own = self.members.slot(rank);
        for slot in (0..self.geometry.ranks).filter(|slot| *slot != own) {
            self.block_at(slot).bell.ring();
        }
    }

    /// True if there is a failure.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.header().failure.is_set()
    }

    /// The communicator's first failure, if there is one.
    pub fn failure(&self) -> Option<Error> {
        let (code, text) = self.header().failure.get()?;
        let kind = u8::try_from(code).ok().and_then(ErrorKind::from_code).unwrap_or(ErrorKind::Internal);
        Some(Error::new(kind, String::from_utf8_lossy(&text).into_owned()))
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header, which consists of atomics.
        unsafe { &*self.at(0).cast() }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.mapping.len_bytes());
        self.mapping.start().wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_aligned_and_bounded() {
        assert_eq!(size_of::<RingControl>() % 128, 0);
        for ranks in 1..=64 {
            let geometry = Geometry::for_ranks(ranks);
            assert!(geometry.total_bytes() < 320 << 20, "{ranks}: {}", geometry.total_bytes());
            assert_eq!(geometry.ring_start(ranks - 1, 0, Lane::PointToPoint) % 128, 0);
            assert_eq!(geometry.heads_start % 64, 0);
        }
    }

    #[test]
    fn all_who_map_it_read_what_the_maker_says_of_the_machine() {
        let (arena, file) = super::super::create(3).unwrap();
        let machine = Machine { handover_ps: 77_000, l3_kib: 4096, ..Machine::default() };
        arena.set_machine(&machine, 12);
        arena.fail(&Error::usage("beside it"));
        let other = super::super::open(std::os::fd::AsFd::as_fd(&file), 3).unwrap();
        assert_eq!((other.machine(), other.cpus()), (machine, 12));
        assert_eq!(other.failure(), Some(Error::usage("beside it")));
    }

    #[test]
    fn what_cannot_be_true_of_a_machine_is_not_believed() {
        let arena = super::super::super::mem::arena(5).unwrap();
        assert_eq!((arena.machine(), arena.cpus()), (Machine::default(), 5), "nothing was said");
        let header = arena.header();
        let said = Machine { handover_ps: 77_000, ..Machine::default() };
        for word in [0, 1, u32::MAX] {
            for (place, figure) in header.machine.iter().zip(FIGURES) {
                arena.set_machine(&said, usize::MAX);
                place.store(word, Ordering::Relaxed);
                assert_eq!(arena.machine(), Machine::default(), "{} is {word}", figure.name);
            }
        }
        assert_eq!(arena.cpus(), 5);
    }

    #[test]
    fn ranks_of_other_hosts_are_what_was_told_of_them_first() {
        let arena = super::super::super::mem::arena(Members::of(5, |rank| rank < 2)).unwrap();
        arena.block(1).set_state(RankState::Present);
        arena.set_told(4, RankState::Left);
        arena.set_told(4, RankState::Aborted);
        let states = [0, 1, 2, 3, 4].map(|rank| arena.state_of(rank));
        let absent = RankState::Absent;
        assert_eq!(states, [absent, RankState::Present, absent, absent, RankState::Left]);
    }

    #[test]
    fn the_first_failure_stays() {
        let arena = super::super::super::mem::arena(2).unwrap();
        assert_eq!(arena.failure(), None);
        arena.fail(&Error::usage("first"));
        arena.fail(&Error::remote("second"));
        assert_eq!(arena.failure(), Some(Error::usage("first")));
    }
}
