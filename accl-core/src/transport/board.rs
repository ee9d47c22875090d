//! The board: where every rank of a host posts each collective call, and small data with it.
//!
//! One head of 64 bytes per rank and operation, D operations deep (data beyond the head: d operations deep):
//! ```text
//!  0: sequence u64 (stored last)
//!  8: kind u8 | dtype u8 | op u8 | algorithm u8 | root u32
//! 16: count u64
//! 24: scale [8]
//! 32: up to 32 bytes of data; longer data lies in the rank's data area for that operation
//! ```
//! A rank that lends its buffers posts an offer in place of data:
//! ```text
//! 32: address of the input u64 | address of the output u64 | flags u64 | generation of regions u64
//! ```
//! Its data, if it has any, are two `Region`s: those that its input and its output lie in.
//!
//! A rank may post up to [`BOARD_AHEAD`] operations before it is done with the first, but none behind one with data beyond
//! the heads (of any rank) that it is not done with. Such data is therefore kept for fewer operations.
//!
//! The sequence number of a head says which operation it describes, so peers know that it is complete when they
//! see the number they expect; when a place may be used again is the rule of [`crate::sync::postings`].
//!
//! The board is what makes calls comparable: ranks that disagree see it before any data moves.
//!
//! # Safety
//! A head is written by its rank alone, before it stores the sequence number, and read by others only after they
//! have seen that number; the rule above keeps it unchanged until they have all moved on.
#![allow(unsafe_code)]

use super::shm::{Arena, BOARD_AHEAD, BOARD_BYTES, BOARD_DATA_DEPTH, BOARD_DEPTH, BOARD_INLINE_BYTES};
use crate::device::{Device, UserPointer};
use crate::memory::regions::{self, Region};
use crate::sync::postings::Postings;
use crate::sync::prim::{AtomicU64, Ordering};
use crate::types::{Rank, Scalar};
use std::ops::Range;
use std::sync::Arc;

/// A call as it stands on the board: two words that are equal exactly if the calls agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostedCall {
    /// kind, dtype, op, algorithm and root, packed by the engine.
    pub what: u64,
    /// The call's count of elements.
    pub count: u64,
}

/// What a rank posts for an operation.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// The first byte.
    pub start: UserPointer,
    /// How many there are.
    pub bytes: usize,
    /// Of these, what only this rank itself will look at, in its own memory: it is left out.
    pub own: Range<usize>,
}

impl Contribution {
    /// All of `bytes` from `start` on.
    pub fn whole(start: UserPointer, bytes: usize) -> Self {
        Self { start, bytes, own: 0..0 }
    }
}

/// What a rank lends for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Offer {
    /// Where its input lies, in its own memory.
    pub input: u64,
    /// Where its output lies.
    pub output: u64,
    /// Bits that the engine gives a meaning to.
    pub flags: u64,
    /// Changes when regions of the rank's process end: see [`crate::memory::regions`].
    pub generation: u64,
}

/// The regions that an offer's input and output lie in; number 0 for none.
pub type Regions = [Region; 2];

impl Offer {
    /// An offer of these buffers.
    pub fn new(input: UserPointer, output: UserPointer, flags: u64) -> Self {
        let (input, output) = (input.address() as u64, output.address() as u64);
        Self { input, output, flags, generation: regions::generation() }
    }
}

const _: () = assert!(size_of::<Offer>() == BOARD_INLINE_BYTES);

/// One head.
#[repr(C)]
struct PostHead {
    sequence: AtomicU64,
    what: u64,
    count: u64,
    scale: [u8; 8],
    inline: [u8; BOARD_INLINE_BYTES],
}

/// A rank's view of the board.
#[derive(Debug)]
pub struct Board {
    arena: Arc<Arena>,
    rank: Rank,
    postings: Postings,
}

impl Board {
    /// The view of `rank`.
    pub fn new(arena: Arc<Arena>, rank: Rank) -> Self {
        let members = arena.members();
        let postings = Postings::new(members.slot(rank), members.local());
        Self { arena, rank, postings }
    }

    /// How many ranks there are, those of other hosts included.
    pub fn ranks(&self) -> usize {
        self.arena.members().ranks()
    }

    /// True if `rank` posts on this board.
    #[inline]
    pub fn has(&self, rank: Rank) -> bool {
        self.arena.members().has(rank)
    }

    /// True if the place of operation `sequence` is free, for `bytes` of data.
    #[inline]
    pub fn can_post(&mut self, sequence: u64, bytes: usize) -> bool {
        let Self { arena, postings, .. } = self;
        postings.can_post(sequence, lead_for(bytes), |slot, sequence| number(arena, slot, sequence))
    }

    /// Posts a call with data (at most [`BOARD_BYTES`]).
    /// Only after [`Board::can_post`] has said so.
    #[inline]
    pub fn post(
        &mut self,
        device: &dyn Device,
        sequence: u64,
        call: PostedCall,
        scale: Scalar,
        data: Contribution,
    ) {
        let Contribution { start, bytes, own } = data;
        debug_assert!(bytes <= BOARD_BYTES && own.start <= own.end && own.end <= bytes);
        if bytes > 0 {
            let place = self.data(self.rank, sequence, bytes);
            device.copy(place, start, own.start);
            device.copy(place.byte_add(own.end), start.byte_add(own.end), bytes - own.end);
        }
        self.publish(sequence, call, scale);
    }

    /// Posts a call with an offer in place of data; otherwise as [`Board::post`], with as many bytes as the regions
    /// have, if there are any.
    pub fn post_offer(
        &mut self,
        sequence: u64,
        call: PostedCall,
        scale: Scalar,
        offer: Offer,
        regions: Option<&Regions>,
    ) {
        if let Some(regions) = regions {
            let place = self.arena.board_data(self.rank, sequence).cast::<Regions>();
            // SAFETY: the place is ours to write until the sequence number is stored, and a page's beginning.
            unsafe { place.write(*regions) };
        }
        let head = self.head(self.rank, sequence);
        // SAFETY: the head is ours to write until the sequence number is stored; an offer is as long as the field,
        // which begins at a multiple of 8.
        unsafe { (&raw mut (*head).inline).cast::<Offer>().write(offer) };
        self.publish(sequence, call, scale);
    }

    #[inline]
    fn publish(&mut self, sequence: u64, call: PostedCall, scale: Scalar) {
        let head = self.head(self.rank, sequence);
        // SAFETY: the head is ours to write until the sequence number is stored, and lies in the arena.
        unsafe {
            (&raw mut (*head).what).write(call.what);
            (&raw mut (*head).count).write(call.count);
            (&raw mut (*head).scale).write(scale.0);
        }
        let slot = self.arena.members().slot(self.rank);
        self.postings.post(sequence, number(&self.arena, slot, sequence));
    }

    /// Wakes those peers that may be sleeping until this rank posts.
    #[inline]
    pub fn ring_peers(&self) {
        self.arena.ring_peers(self.rank);
    }

    /// True if `rank` has posted operation `sequence`.
    #[inline]
    pub fn has_posted(&mut self, rank: Rank, sequence: u64) -> bool {
        let Self { arena, postings, .. } = self;
        let slot = arena.members().slot(rank);
        postings.has_posted(slot, sequence, |slot, sequence| number(arena, slot, sequence))
    }

    /// The latest operation that `rank`, one of this host, has posted; 0 for none. Looks at every place: for explanations.
    pub fn latest(&self, rank: Rank) -> u64 {
        let slot = self.arena.members().slot(rank);
        let number = |place| number(&self.arena, slot, place).load(Ordering::Acquire);
        (0..BOARD_DEPTH as u64).map(number).max().unwrap_or(0)
    }

    /// The call that `rank` has posted; only after [`Board::has_posted`], and before this rank is done with the
    /// operation.
    #[inline]
    pub fn call(&self, rank: Rank, sequence: u64) -> PostedCall {
        let head = self.head(rank, sequence);
        // SAFETY: posted, hence complete, and unchanged until this rank is done with it.
        unsafe {
            PostedCall { what: (&raw const (*head).what).read(), count: (&raw const (*head).count).read() }
        }
    }

    /// What `rank` offers, if it has posted an offer; when as for [`Board::call`].
    pub fn offer(&self, rank: Rank, sequence: u64) -> Offer {
        let head = self.head(rank, sequence);
        // SAFETY: as in `call`; all bytes are a valid offer.
        unsafe { (&raw const (*head).inline).cast::<Offer>().read() }
    }

    /// The regions that `rank` has posted with its offer; when as for [`Board::call`].
    pub fn regions(&self, rank: Rank, sequence: u64) -> Regions {
        // SAFETY: as in `call`; all bytes are valid regions.
        unsafe { self.arena.board_data(rank, sequence).cast::<Regions>().read() }
    }

    /// The factor that `rank` has posted; when as for [`Board::call`].
    pub fn scale(&self, rank: Rank, sequence: u64) -> Scalar {
        let head = self.head(rank, sequence);
        // SAFETY: as in `call`.
        Scalar(unsafe { (&raw const (*head).scale).read() })
    }

    /// Where the data lies that `rank` has posted, `bytes` in all; when as for [`Board::call`].
    #[inline]
    pub fn data(&self, rank: Rank, sequence: u64, bytes: usize) -> UserPointer {
        let start = if bytes <= BOARD_INLINE_BYTES {
            let head = self.head(rank, sequence);
            // SAFETY: the field lies inside the head; only its address is taken.
            unsafe { (&raw mut (*head).inline).cast::<u8>() }
        } else {
            self.arena.board_data(rank, sequence)
        };
        // SAFETY: heads and data areas hold what the board's rule says, for as long as it says.
        unsafe { UserPointer::new(start.cast()) }
    }

    #[inline]
    fn head(&self, rank: Rank, sequence: u64) -> *mut PostHead {
        self.arena.board_head(rank, sequence).cast()
    }
}

/// The lead that one rank may have over another when it posts an operation with `bytes` of data: see [`Postings`].
pub fn lead_for(bytes: usize) -> usize {
    if bytes <= BOARD_INLINE_BYTES { BOARD_DEPTH - BOARD_AHEAD + 1 } else { BOARD_DATA_DEPTH }
}

/// The sequence number of a slot's place for an operation.
fn number(arena: &Arena, slot: usize, sequence: u64) -> &AtomicU64 {
    // SAFETY: an atomic inside the arena, which all ranks may touch at any time.
    unsafe { &(*arena.board_head_at(slot, sequence).cast::<PostHead>()).sequence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Host;
    use crate::transport::mem;

    const CALL: PostedCall = PostedCall { what: 7, count: 3 };

    fn pointer(bytes: &[u8]) -> UserPointer {
        // SAFETY: the slice outlives its use in these tests.
        unsafe { UserPointer::new(bytes.as_ptr().cast()) }
    }

    fn read(at: UserPointer, bytes: usize) -> Vec<u8> {
        // SAFETY: the board vouches for posted data.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) }.to_vec()
    }

    #[test]
    fn short_and_long_data_arrive() {
        let arena = mem::arena(2).unwrap();
        let (mut a, mut b) = (Board::new(arena.clone(), 0), Board::new(arena, 1));
        for (sequence, bytes) in [(1, 0), (2, 8), (3, 32), (4, 33), (5, BOARD_BYTES)] {
            let data: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            assert!(!b.has_posted(0, sequence));
            assert!(a.can_post(sequence, bytes));
            a.post(&Host, sequence, CALL, Scalar([9; 8]), Contribution::whole(pointer(&data), bytes));
            assert!(b.has_posted(0, sequence));
            assert_eq!(b.call(0, sequence), CALL);
            assert_eq!(b.scale(0, sequence), Scalar([9; 8]));
            assert_eq!(read(b.data(0, sequence, bytes), bytes), data);
        }
    }

    #[test]
    fn what_only_its_owner_looks_at_is_left_out() {
        let arena = mem::arena(2).unwrap();
        let (mut a, mut b) = (Board::new(arena.clone(), 0), Board::new(arena, 1));
        let data: Vec<u8> = (1..=100).collect();
        assert!(a.can_post(1, 100));
        let contribution = Contribution { own: 30..60, ..Contribution::whole(pointer(&data), 100) };
        a.post(&Host, 1, CALL, Scalar::default(), contribution);
        assert!(b.has_posted(0, 1));
        let posted = read(b.data(0, 1, 100), 100);
        assert_eq!([&posted[..30], &posted[60..]], [&data[..30], &data[60..]]);
        assert!(posted[30..60].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn offers_arrive() {
        let arena = mem::arena(2).unwrap();
        let (mut a, mut b) = (Board::new(arena.clone(), 0), Board::new(arena, 1));
        let offer = Offer { input: 1, output: u64::MAX, flags: 5, generation: 6 };
        let regions = [Region { number: 7, ..Region::default() }, Region { inode: 8, ..Region::default() }];
        assert!(a.can_post(1, 0));
        a.post_offer(1, CALL, Scalar([3; 8]), offer, Some(&regions));
        assert!(b.has_posted(0, 1));
        assert_eq!((b.call(0, 1), b.scale(0, 1), b.offer(0, 1)), (CALL, Scalar([3; 8]), offer));
        assert_eq!(b.regions(0, 1), regions);
    }

    #[test]
    fn nobody_runs_further_ahead_than_the_board_is_deep() {
        let data = [0; 100];
        for (bytes, lead) in [(0, 65), (32, 65), (33, 8)] {
            let arena = mem::arena(2).unwrap();
            let (mut a, mut b) = (Board::new(arena.clone(), 0), Board::new(arena, 1));
            let mut sequence = 1;
            while a.can_post(sequence, bytes) {
                a.post(&Host, sequence, CALL, Scalar::default(), Contribution::whole(pointer(&data), bytes));
                sequence += 1;
            }
            assert_eq!(sequence, lead);
            assert!(b.can_post(1, 0));
            b.post(&Host, 1, CALL, Scalar::default(), Contribution::whole(UserPointer::null(), 0));
            assert!(a.can_post(sequence, bytes) && !a.can_post(sequence + 1, bytes));
        }
    }
}
