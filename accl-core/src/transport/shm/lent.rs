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
use crate::types::Rank;
use std::sync::Arc;

/// Tells of one operation are counted in the lower bits of a rank's progress.
const TELL_BITS: u32 = 16;

/// One rank's view of what its peers lend, and its own lending.
#[derive(Debug)]
pub struct LentMemory {
    arena: Arc<Arena>,
    rank: Rank,
    reach: Arc<[Reach]>,
}

impl LentMemory {
    /// The view of `rank`; `reach` says how it gets at each peer's memory.
    pub fn new(arena: Arc<Arena>, rank: Rank, reach: Arc<[Reach]>) -> Self {
        Self { arena, rank, reach }
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

    /// True if [`LentMemory::view`] has to copy what `peer` lends.
    pub fn needs_scratch(&self, peer: Rank) -> bool {
        self.reach[peer] != Reach::SameProcess
    }

    /// The `bytes` that `peer` lends at `address`: in place, or copied to `scratch` where they are out of reach. Good
    /// until [`LentMemory::release`], which must follow, also after an error.
    pub fn view(
        &self,
        peer: Rank,
        address: u64,
        bytes: usize,
        scratch: UserPointer,
    ) -> Result<UserPointer> {
        let lease = &self.arena.ring_control(peer, self.rank, Lane::Collective).lease;
        if !self.needs_scratch(peer) {
            if !lease.begin_reading() {
                return Err(left(peer));
            }
            // SAFETY: the lender keeps the memory as it is until we tell that we are through, and its lease lasts.
            return Ok(unsafe { UserPointer::new(address as usize as *const _) });
        }
        pull::copy(self.reach[peer], address, scratch, bytes)
            .map_err(|error| error.within(format!("rank {peer}")))?;
        if lease.lasts() { Ok(scratch) } else { Err(left(peer)) }
    }

    /// Gives a view of `peer`'s memory back.
    pub fn release(&self, peer: Rank) {
        if !self.needs_scratch(peer) {
            self.arena.ring_control(peer, self.rank, Lane::Collective).lease.end_reading();
        }
    }

    /// Lends no more: when this returns, no peer reads this rank's memory and none will.
    pub fn close(&self) {
        for peer in (0..self.reach.len()).filter(|peer| *peer != self.rank) {
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
