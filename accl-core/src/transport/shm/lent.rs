//! Memory that all ranks lend to each other for one operation, read in place.
//!
//! The lender posts addresses on the board; who reads tells its progress when it is through, and the lender waits for
//! that before its memory changes. What guards a link's lent messages guards this, too: the lease of the ring from
//! lender to reader (`sync/lease.rs`).
//!
//! # Safety
//! A range that a peer has posted is valid for reads until this rank tells that it is through, or the lender ends
//! the lease: readers in the lender's process announce each reading; across processes the kernel does the reading.
#![allow(unsafe_code)]

use super::arena::{Arena, Lane};
use super::pull::{self, Reach};
use crate::device::UserPointer;
use crate::error::{Error, Result};
use crate::memory::regions::{Region, lies_in};
use crate::os::mapping::{self, Mapping};
use crate::os::process::Watch;
use crate::sync::lease::Lease;
use crate::transport::board::Regions;
use crate::types::Rank;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Tells of one operation are counted in the lower bits of a rank's progress.
const TELL_BITS: u32 = 16;

/// Where something lies that a peer lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At an address of the peer's process.
    At(u64),
    /// So many bytes behind the beginning of its staging area.
    Staged(usize),
}

impl Place {
    /// The place `bytes` further on.
    #[must_use]
    pub fn byte_add(self, bytes: usize) -> Self {
        match self {
            Self::At(address) => Self::At(address + bytes as u64),
            Self::Staged(offset) => Self::Staged(offset + bytes),
        }
    }
}

/// One rank's view of what its peers lend, and its own lending.
#[derive(Debug)]
pub struct LentMemory {
    arena: Arc<Arena>,
    rank: Rank,
    reach: Arc<[Reach]>,
    /// What is mapped of each peer's regions.
    mapped: Vec<Mapped>,
}

/// Regions of one peer's process.
#[derive(Debug, Default)]
struct Mapped {
    watch: Option<Arc<Watch>>,
    generation: u64,
    regions: Vec<(Region, Mapping)>,
    /// Memory of its device that this process can reach.
    window: Option<Window>,
}

/// Memory of a peer's device.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The peer's address of its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Where it lies for this process.
    pub here: UserPointer,
}

impl Mapped {
    /// Maps a region that the peer has described, unless that is done or cannot be done: then the kernel copies.
    fn add(&mut self, region: Region) -> Option<()> {
        if region.number == 0 || self.regions.iter().any(|(known, _)| known.number == region.number) {
            return None;
        }
        let mapping = map_region(self.watch.as_ref()?, &region, false)?;
        self.regions.push((region, mapping));
        None
    }

    /// Where `bytes` at the peer's `address` lie in this process.
    fn find(&self, address: u64, bytes: usize) -> Option<UserPointer> {
        if let Some(Window { start, bytes: length, here }) = self.window
            && lies_in((start, length), (address, bytes as u64))
        {
            return Some(here.byte_add((address - start) as usize));
        }
        let (region, mapping) =
            self.regions.iter().find(|(region, _)| region.holds(address, bytes as u64))?;
        let place = mapping.start().wrapping_add((address - region.start) as usize);
        // SAFETY: it lies in the mapping, whose file keeps its length; the lender keeps the content while it lends.
        Some(unsafe { UserPointer::new(place.cast_const().cast()) })
    }
}

/// Maps a region of another process, to be read only or to be `written`, too. None where that cannot be, or where its descriptor means
/// something else by now.
fn map_region(watch: &Watch, region: &Region, written: bool) -> Option<Mapping> {
    let file = watch.descriptor(region.file)?;
    let bytes = usize::try_from(region.bytes).ok()?;
    let end = region.offset.checked_add(region.bytes)?;
    let lasts = mapping::keeps_its_length(file.as_fd())
        && mapping::file_inode(&file).ok()? == region.inode
        && mapping::file_bytes(file.as_fd()).ok()? as u64 >= end;
    if !lasts {
        return None;
    }
    Mapping::of_foreign_file(file.as_fd(), region.offset, bytes, written).ok()
}

/// Memory of a peer that this process can write to for as long as this is there.
#[derive(Debug)]
pub struct PeerMemory {
    place: UserPointer,
    _mapping: Option<Mapping>,
}

impl PeerMemory {
    /// What a peer in this process has registered at `address`.
    pub fn of_own_process(address: u64) -> Self {
        // SAFETY: the peer vouches for it until it takes the registration back; ranks agree on who writes there when.
        Self { place: unsafe { UserPointer::new(address as usize as *const _) }, _mapping: None }
    }

    /// The `bytes` at `address` of the process that `watch` watches, if they lie in a region that can be mapped.
    pub fn of_process(watch: &Watch, region: &Region, address: u64, bytes: u64) -> Option<Self> {
        if region.number == 0 || !region.holds(address, bytes) {
            return None;
        }
        let mapping = map_region(watch, region, true)?;
        let place = mapping.start().wrapping_add((address - region.start) as usize);
        // SAFETY: it lies in the mapping, whose file keeps its length; ranks agree on who writes there when.
        Some(Self { place: unsafe { UserPointer::new(place.cast_const().cast()) }, _mapping: Some(mapping) })
    }

    /// Where it begins.
    pub fn place(&self) -> UserPointer {
        self.place
    }
}

impl LentMemory {
    /// The view of `rank`; `reach` says how it gets at each peer's memory.
    pub fn new(arena: Arc<Arena>, rank: Rank, reach: Arc<[Reach]>) -> Self {
        let mapped = reach.iter().map(|_| Mapped::default()).collect();
        Self { arena, rank, reach, mapped }
    }

    /// Says by what to get at the descriptors of each peer's process.
    pub fn set_watches(&mut self, watches: impl Iterator<Item = Option<Arc<Watch>>>) {
        for (mapped, watch) in self.mapped.iter_mut().zip(watches) {
            mapped.watch = watch;
        }
    }

    /// Makes memory of `peer`'s device known, until it is closed or this rank leaves.
    pub fn open_window(&mut self, peer: Rank, window: Window) {
        self.mapped[peer].window = Some(window);
    }

    /// Forgets the memory of peers' devices; where it lay for this process.
    pub fn close_windows(&mut self) -> Vec<UserPointer> {
        self.mapped.iter_mut().filter_map(|mapped| mapped.window.take()).map(|window| window.here).collect()
    }

    /// Lets go of `peer`'s regions if some have ended since they were mapped: their addresses may mean other memory now.
    pub fn keep_up(&mut self, peer: Rank, generation: u64) {
        let mapped = &mut self.mapped[peer];
        if mapped.generation != generation {
            mapped.generation = generation;
            mapped.regions.clear();
        }
    }

    /// Maps regions that `peer` has offered.
    pub fn map(&mut self, peer: Rank, regions: &Regions) {
        if let Reach::CrossProcess(_) = self.reach[peer] {
            for region in regions {
                let _ = self.mapped[peer].add(*region);
            }
        }
    }

    /// True if this rank can read every peer's memory.
    pub fn reads_all(&self) -> bool {
        let mut peers = self.reach.iter().enumerate().filter(|(peer, _)| *peer != self.rank);
        peers.all(|(_, reach)| *reach != Reach::None)
    }

    /// Tells the peers that this rank has come to point `tells` of operation `sequence`.
    pub fn tell(&self, sequence: u64, tells: u64) {
        self.arena.block(self.rank).set_progress(point(sequence, tells));
        self.arena.ring_peers(self.rank);
    }

    /// True if `peer` has come to point `tells` of operation `sequence`, or further.
    pub fn has_told(&self, peer: Rank, sequence: u64, tells: u64) -> bool {
        self.arena.block(peer).progress() >= point(sequence, tells)
    }

    /// Bytes of a staging area.
    pub fn staging_bytes(&self) -> usize {
        self.arena.geometry().staging_bytes()
    }

    /// The staging area of `rank`: this rank writes its own, and reads those of others. Plans say who does so when.
    pub fn staging(&self, rank: Rank) -> UserPointer {
        // SAFETY: it lies in the arena, which lives as long as `self`; a plan orders reads and writes by its tells.
        unsafe { UserPointer::new(self.arena.staging(rank).cast_const().cast()) }
    }

    /// True if [`LentMemory::view`] has to copy the `bytes` that `peer` lends at `place`.
    pub fn needs_scratch(&self, peer: Rank, place: Place, bytes: usize) -> bool {
        match place {
            Place::Staged(_) => false,
            Place::At(address) => {
                self.reach[peer] != Reach::SameProcess && self.mapped[peer].find(address, bytes).is_none()
            }
        }
    }

    /// The `bytes` that `peer` lends at `place`: in place, or copied to `scratch` where they are out of reach. Good
    /// until [`LentMemory::release`], which must follow, also after an error.
    pub fn view(&self, peer: Rank, place: Place, bytes: usize, scratch: UserPointer) -> Result<UserPointer> {
        let address = match place {
            Place::Staged(offset) => return Ok(self.staging(peer).byte_add(offset)),
            Place::At(address) => address,
        };
        if self.reach[peer] == Reach::SameProcess {
            if !self.lease_of(peer).begin_reading() {
                return Err(left(peer));
            }
            // SAFETY: the lender keeps the memory as it is until we tell that we are through, and its lease lasts.
            return Ok(unsafe { UserPointer::new(address as usize as *const _) });
        }
        if let Some(place) = self.mapped[peer].find(address, bytes) {
            return Ok(place);
        }
        pull::copy(self.reach[peer], address, scratch, bytes)
            .map_err(|error| error.within(format!("rank {peer}")))?;
        Ok(scratch)
    }

    /// Gives a view of `peer`'s memory back; an error if it was not lent any more while it was read. The staging area
    /// lasts as long as this rank's arena.
    pub fn release(&self, peer: Rank, place: Place) -> Result<()> {
        match (place, self.reach[peer]) {
            (Place::Staged(_), _) => Ok(()),
            (Place::At(_), Reach::SameProcess) => {
                self.lease_of(peer).end_reading();
                Ok(())
            }
            (Place::At(_), _) if self.lease_of(peer).lasts() => Ok(()),
            (Place::At(_), _) => Err(left(peer)),
        }
    }

    fn lease_of(&self, lender: Rank) -> &Lease {
        &self.arena.ring_control(lender, self.rank, Lane::Collective).lease
    }

    /// Lends no more: when this returns, no peer reads this rank's memory and none will.
    pub fn close(&self) {
        let members = self.arena.members();
        for peer in (0..self.reach.len()).filter(|peer| *peer != self.rank && members.has(*peer)) {
            let lease = &self.arena.ring_control(self.rank, peer, Lane::Collective).lease;
            lease.close(|| false, crate::os::cpu::yield_now);
        }
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        self.close();
    }
}

fn point(sequence: u64, tells: u64) -> u64 {
    debug_assert!(tells < 1 << TELL_BITS);
    sequence << TELL_BITS | tells
}

fn left(peer: Rank) -> Error {
    Error::remote(format!("rank {peer} left while its data was needed"))
}
