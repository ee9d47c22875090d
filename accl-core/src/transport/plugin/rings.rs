//! The two directions of a link that a plugin carries: a ring of slots for each, and what is under way of them.

use super::{MOST_GROUP, SLOT_BYTES, SLOTS, TAGS};
use crate::device::UserPointer;
use crate::driver::network_plugin::{Inlet, Outlet, Piece, Properties, Registration, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Pages;

/// Bytes of a ring.
pub(super) const RING_BYTES: usize = SLOTS * SLOT_BYTES;

fn slot_of(number: u64) -> usize {
    (number % SLOTS as u64) as usize
}

fn tag_of(number: u64) -> i32 {
    (number % TAGS) as i32
}

/// Says that what cannot be given back is not.
fn say_failed(outcome: Result<()>) {
    if let Err(error) = outcome {
        crate::telemetry::warn(error.text());
    }
}

/// What this end sends. Numbers are those of segments.
#[derive(Debug)]
pub(super) struct Sending {
    outlet: Box<dyn Outlet>,
    registration: Registration,
    ring: Pages,
    bytes: [u32; SLOTS],
    requests: [Option<Request>; SLOTS],
    /// All below are in the ring, have been taken by the plugin, have ended.
    staged: u64,
    posted: u64,
    done: u64,
}

impl Sending {
    pub(super) fn new(mut outlet: Box<dyn Outlet>) -> Result<Self> {
        let mut ring = Pages::default();
        let start = ring.ensure(RING_BYTES)?.address();
        let registration = outlet.register(start, RING_BYTES)?;
        let (bytes, requests) = ([0; SLOTS], [None; SLOTS]);
        Ok(Self { outlet, registration, ring, bytes, requests, staged: 0, posted: 0, done: 0 })
    }

    pub(super) fn has_room(&self) -> bool {
        self.staged - self.done < SLOTS as u64
    }

    /// Where the next segment's bytes are to be put.
    pub(super) fn next_slot(&self) -> UserPointer {
        self.ring.start().byte_add(slot_of(self.staged) * SLOT_BYTES)
    }

    /// They are there.
    pub(super) fn stage(&mut self, bytes: usize) {
        self.bytes[slot_of(self.staged)] = bytes as u32;
        self.staged += 1;
    }

    /// True if the plugin has all of them.
    pub(super) fn has_gone(&self) -> bool {
        self.posted == self.staged
    }

    /// How many there are.
    pub(super) fn staged(&self) -> u64 {
        self.staged
    }

    /// True if something is left to do.
    pub(super) fn is_busy(&self) -> bool {
        self.done < self.staged
    }

    /// True if each receive that the peer has posted has got a segment, and all have gone.
    pub(super) fn has_filled(&self, posted_by_peer: u64) -> bool {
        !self.is_busy() && self.done >= posted_by_peer
    }

    /// Hands segments to the plugin, of which `most` are received in all, and sees which have ended; true if anything moved.
    pub(super) fn progress(&mut self, most: u64) -> Result<bool> {
        let before = (self.posted, self.done);
        while self.posted < self.staged.min(most) {
            let slot = slot_of(self.posted);
            let start = self.ring.start().address() + slot * SLOT_BYTES;
            let piece = Piece { start, bytes: self.bytes[slot] as usize, tag: tag_of(self.posted) };
            let Some(request) = self.outlet.send(piece, self.registration)? else { break };
            self.requests[slot] = Some(request);
            self.posted += 1;
        }
        // In any order: a plugin may need to be asked for one that came later. Sizes of sends are filled in by some plugins, and not by others.
        for number in self.done..self.posted {
            let slot = slot_of(number);
            if let Some(request) = self.requests[slot]
                && self.outlet.test(request, &mut [0])?
            {
                self.requests[slot] = None;
            }
        }
        while self.done < self.posted && self.requests[slot_of(self.done)].is_none() {
            self.done += 1;
        }
        Ok(before != (self.posted, self.done))
    }

    /// Sends what has no meaning for receives that are posted and would not end; true once these and all others have ended.
    pub(super) fn fill_up(&mut self, posted_by_peer: u64) -> Result<bool> {
        // What is staged and has no receive goes nowhere any more.
        self.staged = self.staged.min(posted_by_peer.max(self.posted));
        while self.staged < posted_by_peer && self.has_room() {
            self.stage(1);
        }
        self.progress(posted_by_peer)?;
        Ok(self.has_filled(posted_by_peer))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        say_failed(self.outlet.deregister(self.registration));
    }
}

/// A request to receive.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    first: u64,
    count: usize,
    request: Option<Request>,
    is_flushed: bool,
}

/// What this end receives.
#[derive(Debug)]
pub(super) struct Receiving {
    inlet: Box<dyn Inlet>,
    registration: Registration,
    ring: Pages,
    bytes: [u32; SLOTS],
    /// Requests that have not ended, oldest first.
    batches: [Batch; SLOTS],
    under_way: usize,
    /// All below are asked for, have come, are consumed.
    posted: u64,
    arrived: u64,
    consumed: u64,
    /// All below will come, whatever the peer does.
    promised: u64,
    most_receives: usize,
    forces_flush: bool,
    /// All that the peer sends, once that is known.
    peer_sent: Option<u64>,
    /// Nothing more is posted.
    is_ending: bool,
    /// Who it is, for errors.
    name: String,
}

impl Receiving {
    pub(super) fn new(mut inlet: Box<dyn Inlet>, properties: &Properties) -> Result<Self> {
        let mut ring = Pages::default();
        let start = ring.ensure(RING_BYTES)?.address();
        let registration = inlet.register(start, RING_BYTES)?;
        Ok(Self {
            inlet,
            registration,
            ring,
            bytes: [0; SLOTS],
            batches: [Batch::default(); SLOTS],
            under_way: 0,
            posted: 0,
            arrived: 0,
            consumed: 0,
            promised: 0,
            most_receives: properties.most_receives.clamp(1, MOST_GROUP),
            forces_flush: properties.forces_flush,
            peer_sent: None,
            is_ending: false,
            name: properties.name.clone(),
        })
    }

    /// How many bytes the oldest segment has, if it is there.
    pub(super) fn first(&self) -> Option<usize> {
        (self.consumed < self.arrived).then(|| self.bytes[slot_of(self.consumed)] as usize)
    }

    /// Where it lies.
    pub(super) fn first_slot(&self) -> UserPointer {
        self.ring.start().byte_add(slot_of(self.consumed) * SLOT_BYTES)
    }

    /// So many segments come, counted from the oldest.
    pub(super) fn promise(&mut self, segments: u64) {
        self.promised = self.consumed + segments;
    }

    /// The oldest segment is not needed any more.
    pub(super) fn consume(&mut self) {
        self.consumed += 1;
    }

    /// True if something is to be done that the peer may wait for.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_ending && !self.has_posted_all() && self.group().is_some()
    }

    /// How many slots the next request is for, if there is room for it.
    fn group(&self) -> Option<usize> {
        let free = SLOTS - (self.posted - self.consumed) as usize;
        let sure = self.promised.saturating_sub(self.posted) as usize;
        let count = self.most_receives.min(sure).max(1);
        (free >= count).then_some(count)
    }

    fn pieces(&self, batch: &Batch, is_received: bool) -> [Piece; MOST_GROUP] {
        let start = self.ring.start().address();
        let mut pieces = [Piece::default(); MOST_GROUP];
        for (piece, number) in pieces.iter_mut().zip(batch.first..batch.first + batch.count as u64) {
            let slot = slot_of(number);
            let bytes = if is_received { self.bytes[slot] as usize } else { SLOT_BYTES };
            *piece = Piece { start: start + slot * SLOT_BYTES, bytes, tag: tag_of(number) };
        }
        pieces
    }

    /// Posts receives for slots that are free, and sees what has come; true if anything moved.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let before = (self.posted, self.arrived);
        while !self.is_ending
            && !self.has_posted_all()
            && let Some(count) = self.group()
        {
            let batch = Batch { first: self.posted, count, ..Batch::default() };
            let pieces = self.pieces(&batch, false);
            let Some(request) = self.inlet.receive(&pieces[..count], self.registration)? else { break };
            self.batches[self.under_way] = Batch { request: Some(request), ..batch };
            self.under_way += 1;
            self.posted += count as u64;
        }
        while self.under_way > 0 && self.see_first()? {
            self.arrived += self.batches[0].count as u64;
            self.batches.copy_within(1..self.under_way, 0);
            self.under_way -= 1;
        }
        Ok(before != (self.posted, self.arrived))
    }

    /// True once the oldest request has ended, and what has come by it can be seen.
    fn see_first(&mut self) -> Result<bool> {
        let batch = self.batches[0];
        if let Some(request) = batch.request {
            let mut sizes = [-1; MOST_GROUP];
            if !self.inlet.test(request, &mut sizes[..batch.count])? {
                return Ok(false);
            }
            self.batches[0].request = None;
            if !batch.is_flushed {
                for (number, size) in (batch.first..).zip(&sizes[..batch.count]) {
                    self.bytes[slot_of(number)] = self.check_size(*size)?;
                }
            }
        }
        if !self.forces_flush || self.batches[0].is_flushed {
            return Ok(true);
        }
        self.batches[0].is_flushed = true;
        let pieces = self.pieces(&batch, true);
        self.batches[0].request = self.inlet.flush(&pieces[..batch.count], self.registration)?;
        Ok(self.batches[0].request.is_none())
    }

    fn check_size(&self, size: i32) -> Result<u32> {
        u32::try_from(size).ok().filter(|size| *size as usize <= SLOT_BYTES).ok_or_else(|| {
            let name = &self.name;
            Error::new(
                ErrorKind::System,
                format!(
                    "the network plugin's test() says that {size} bytes have come by device {name} where at most {SLOT_BYTES} were asked for; its memory cannot be \
                     relied on: see its own log, use another version of it, or set NCCL_NET_PLUGIN=none"
                ),
            )
        })
    }

    /// The peer sends so many segments in all.
    pub(super) fn expect(&mut self, sent: u64) {
        self.peer_sent = Some(sent);
    }

    /// True if there are receives for all of these.
    pub(super) fn has_posted_all(&self) -> bool {
        self.peer_sent.is_some_and(|sent| self.posted >= sent)
    }

    /// Posts no more; how many receives are posted in all.
    pub(super) fn end(&mut self) -> u64 {
        self.is_ending = true;
        self.posted
    }

    /// True once all of them have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.is_ending && self.under_way == 0
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        say_failed(self.inlet.deregister(self.registration));
    }
}
