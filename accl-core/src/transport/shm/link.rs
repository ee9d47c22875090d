//! A link through a ring of bytes in shared memory.
//!
//! Records, each beginning at a multiple of 64 bytes, payload padded to 64:
//! ```text
//!  0: kind u32 (1 first, 2 more, 3 lent, 4 filler) | payload u32 bytes in this record
//!  8: message u64 bytes    16: tag u64
//! 24: address u64 (lent)   32: scale [8]   40: has scale u64   48: reserved
//! 64: payload
//! ```
//! A message is one `lent` record, or a `first` record and as many `more` records as it needs. Records do not
//! wrap: what does not fit before the end of the ring is preceded by a filler.
//!
//! # Safety
//! Bytes between head and tail belong to the consumer, the others to the producer (`sync/cursor.rs`). There is
//! one producer and one consumer per ring by construction: the endpoint of each rank makes its own halves once.
#![allow(unsafe_code)]

use super::arena::{Arena, Lane, RingControl};
use super::pull::{self, Reach};
use crate::device::{Device, UserPointer};
use crate::error::{Error, Result};
use crate::sync::cursor::{Consumer, Producer};
use crate::transport::{MessageHead, Outgoing, Progress, Receiver, Sender};
use crate::types::{Rank, Scalar};
use std::sync::Arc;

const RECORD_HEAD_BYTES: usize = 64;
const FIRST: u32 = 1;
const MORE: u32 = 2;
const LENT: u32 = 3;
const FILLER: u32 = 4;

/// The head of a record, as it lies in the ring.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct RecordHead {
    kind: u32,
    payload_bytes: u32,
    message_bytes: u64,
    tag: u64,
    address: u64,
    scale: [u8; 8],
    has_scale: u64,
}

/// Which ring, for both halves.
#[derive(Debug)]
struct Ring {
    arena: Arc<Arena>,
    source: Rank,
    destination: Rank,
    lane: Lane,
}

impl Ring {
    fn control(&self) -> &RingControl {
        self.arena.ring_control(self.source, self.destination, self.lane)
    }

    /// The address of the byte at a cursor position.
    fn at(&self, position: u64) -> *mut u8 {
        let offset = position as usize & (self.arena.geometry().ring_bytes() - 1);
        self.arena.ring_data(self.source, self.destination, self.lane).wrapping_add(offset)
    }

    fn bytes_to_end(&self, position: u64) -> usize {
        let capacity = self.arena.geometry().ring_bytes();
        capacity - (position as usize & (capacity - 1))
    }
}

/// The sending half.
#[derive(Debug)]
pub struct RingSender {
    ring: Ring,
    producer: Producer,
    lend_above: usize,
    messages: u64,
    lent: u64,
}

impl RingSender {
    /// The half of `source` on its way to `destination`. Messages of more than `lend_above` bytes are lent
    /// to a destination that can read them.
    pub fn new(arena: Arc<Arena>, source: Rank, destination: Rank, lane: Lane, lend_above: usize) -> Self {
        let producer = Producer::new(arena.geometry().ring_bytes() as u64);
        Self { ring: Ring { arena, source, destination, lane }, producer, lend_above, messages: 0, lent: 0 }
    }

    /// The most payload in one record: small enough that a ring holds several.
    fn fragment_bytes(&self) -> usize {
        (self.ring.arena.geometry().ring_bytes() / 4).min(64 << 10) - RECORD_HEAD_BYTES
    }

    /// Room for a record of `payload` bytes without a wrap, after a filler if need be.
    fn reserve(&mut self, payload: usize) -> bool {
        let need = RECORD_HEAD_BYTES + payload.next_multiple_of(RECORD_HEAD_BYTES);
        let to_end = self.ring.bytes_to_end(self.producer.position());
        let filler = if to_end < need { to_end } else { 0 };
        let total = (need + filler) as u64;
        if self.producer.free(&self.ring.control().head, total) < total {
            return false;
        }
        if filler > 0 {
            let head =
                RecordHead { kind: FILLER, payload_bytes: (filler - RECORD_HEAD_BYTES) as u32, ..NO_RECORD };
            self.write_head(head);
            self.producer.publish(&self.ring.control().tail, filler as u64);
        }
        true
    }

    fn write_head(&self, head: RecordHead) {
        // SAFETY: `reserve` found room for a head at the producer's position, which is a multiple of 64.
        unsafe { self.ring.at(self.producer.position()).cast::<RecordHead>().write(head) };
    }

    fn publish(&mut self, payload: usize) {
        let bytes = RECORD_HEAD_BYTES + payload.next_multiple_of(RECORD_HEAD_BYTES);
        self.producer.publish(&self.ring.control().tail, bytes as u64);
    }

    fn is_readable(&self) -> bool {
        self.ring.arena.reads(self.ring.destination, self.ring.source)
    }

    fn lend(&mut self, message: &mut Outgoing) -> bool {
        if !self.reserve(0) {
            return false;
        }
        let address = message.source.address() as u64;
        self.write_head(RecordHead { kind: LENT, address, ..record_of(&message.head) });
        self.publish(0);
        message.progress = Progress::Lent(self.messages);
        self.messages += 1;
        self.lent = self.messages;
        true
    }

    fn copy_piece(&mut self, device: &dyn Device, message: &mut Outgoing, copied: usize) -> bool {
        let payload = (message.head.bytes - copied).min(self.fragment_bytes());
        if !self.reserve(payload) {
            return false;
        }
        let kind = if copied == 0 { FIRST } else { MORE };
        self.write_head(RecordHead { kind, payload_bytes: payload as u32, ..record_of(&message.head) });
        let place = self.ring.at(self.producer.position() + RECORD_HEAD_BYTES as u64);
        // SAFETY: `reserve` found room for `payload` bytes behind the head; they are the producer's.
        let place = unsafe { UserPointer::new(place.cast()) };
        device.copy(place, message.source.byte_add(copied), payload);
        self.publish(payload);
        if copied + payload == message.head.bytes {
            message.progress = Progress::Done;
            self.messages += 1;
        } else {
            message.progress = Progress::Copied(copied + payload);
        }
        true
    }
}

const NO_RECORD: RecordHead = RecordHead {
    kind: 0,
    payload_bytes: 0,
    message_bytes: 0,
    tag: 0,
    address: 0,
    scale: [0; 8],
    has_scale: 0,
};

fn record_of(head: &MessageHead) -> RecordHead {
    RecordHead {
        message_bytes: head.bytes as u64,
        tag: head.tag,
        scale: head.scale.unwrap_or_default().0,
        has_scale: u64::from(head.scale.is_some()),
        ..NO_RECORD
    }
}

impl Sender for RingSender {
    fn offer(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool> {
        let mut moved = false;
        while let Progress::Copied(copied) = message.progress {
            let large = message.head.bytes > self.lend_above && !message.copied;
            let lend = copied == 0 && large && self.is_readable();
            let went = if lend { self.lend(message) } else { self.copy_piece(device, message, copied) };
            if !went {
                break;
            }
            moved = true;
            self.ring.arena.block(self.ring.destination).bell.ring();
        }
        Ok(moved)
    }

    fn messages_consumed(&self) -> u64 {
        self.ring.control().head.messages()
    }

    fn close(&mut self) {
        let unneeded = || self.lent <= self.messages_consumed();
        self.ring.control().lease.close(unneeded, crate::os::cpu::yield_now);
    }
}

impl Drop for RingSender {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the consumer knows of the message in sight.
#[derive(Clone, Copy, Debug)]
struct Current {
    head: MessageHead,
    consumed: usize,
    /// The lender's address, for a lent message.
    lent: Option<u64>,
    /// Payload bytes of the current record, and how many of them are consumed.
    record_bytes: usize,
    record_consumed: usize,
}

/// The receiving half.
#[derive(Debug)]
pub struct RingReceiver {
    ring: Ring,
    consumer: Consumer,
    reach: Reach,
    current: Option<Current>,
    consumed_bytes: u64,
    pinned: bool,
}

impl RingReceiver {
    /// The half of `destination` for what comes from `source`, whose lent memory can be reached by `reach`.
    pub fn new(arena: Arc<Arena>, source: Rank, destination: Rank, lane: Lane, reach: Reach) -> Self {
        let ring = Ring { arena, source, destination, lane };
        Self { ring, consumer: Consumer::new(), reach, current: None, consumed_bytes: 0, pinned: false }
    }

    /// The record at the consumer's position, past any filler; `None` if there is none yet.
    fn record(&mut self) -> Result<Option<RecordHead>> {
        while self.consumer.has_data(&self.ring.control().tail) {
            // SAFETY: a published record begins at the consumer's position, a multiple of 64.
            let record = unsafe { self.ring.at(self.consumer.position()).cast::<RecordHead>().read() };
            let room = self.ring.bytes_to_end(self.consumer.position());
            if record.payload_bytes as usize + RECORD_HEAD_BYTES > room {
                return Err(Error::internal(
                    "a record that is longer than its ring: shared memory was overwritten",
                ));
            }
            if record.kind != FILLER {
                return Ok(Some(record));
            }
            self.release(record.payload_bytes as usize);
        }
        Ok(None)
    }

    /// Gives the current record back to the producer.
    fn release(&mut self, payload: usize) {
        let bytes = RECORD_HEAD_BYTES + payload.next_multiple_of(RECORD_HEAD_BYTES);
        self.consumer.release(&self.ring.control().head, bytes as u64);
    }

    fn current(&mut self) -> Result<Option<&mut Current>> {
        if self.current.is_none() {
            let Some(record) = self.record()? else { return Ok(None) };
            let scale = (record.has_scale != 0).then_some(Scalar(record.scale));
            let head =
                MessageHead { bytes: record.message_bytes as usize, tag: record.tag, scale, call: None };
            let lent = (record.kind == LENT).then_some(record.address);
            let record_bytes = record.payload_bytes as usize;
            self.current = Some(Current { head, consumed: 0, lent, record_bytes, record_consumed: 0 });
        }
        Ok(self.current.as_mut())
    }

    /// Where the next unread byte of the current record lies.
    fn payload(&self, current: &Current) -> UserPointer {
        let position = self.consumer.position() + (RECORD_HEAD_BYTES + current.record_consumed) as u64;
        // SAFETY: the payload of a published record belongs to the consumer until it is released.
        unsafe { UserPointer::new(self.ring.at(position).cast_const().cast()) }
    }

    /// Announces that lent memory is about to be read in place; an error if the lender has taken it back.
    fn pin(&mut self) -> Result<()> {
        let lease = &self.ring.control().lease;
        if !self.pinned && !lease.begin_reading() {
            return Err(self.source_left());
        }
        self.pinned = true;
        Ok(())
    }

    /// An error if memory that has just been copied was lent no more while that went on.
    fn check_still_lent(&self) -> Result<()> {
        if self.ring.control().lease.lasts() { Ok(()) } else { Err(self.source_left()) }
    }

    fn source_left(&self) -> Error {
        Error::remote(format!("rank {} left while its data was needed", self.ring.source))
    }

    fn unpin(&mut self) {
        if self.pinned {
            self.pinned = false;
            self.ring.control().lease.end_reading();
        }
    }
}

impl Receiver for RingReceiver {
    fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }

    fn head(&mut self) -> Result<Option<MessageHead>> {
        Ok(self.current()?.map(|current| current.head))
    }

    fn contiguous(&mut self) -> Result<usize> {
        let Some(current) = self.current()?.copied() else { return Ok(0) };
        if current.lent.is_some() {
            return Ok(current.head.bytes - current.consumed);
        }
        if current.record_consumed < current.record_bytes || current.consumed == current.head.bytes {
            return Ok(current.record_bytes - current.record_consumed);
        }
        // The record was used up and released by `advance`; look for the next piece.
        let Some(record) = self.record()? else { return Ok(0) };
        if record.kind != MORE {
            return Err(Error::internal(
                "a message that another one interrupts: shared memory was overwritten",
            ));
        }
        if let Some(current) = self.current.as_mut() {
            current.record_bytes = record.payload_bytes as usize;
            current.record_consumed = 0;
        }
        Ok(record.payload_bytes as usize)
    }

    fn view(&mut self, bytes: usize, scratch: UserPointer) -> Result<UserPointer> {
        let Some(current) = self.current else { return Err(Error::internal("a view of no message")) };
        match (current.lent, self.reach) {
            (None, _) => Ok(self.payload(&current)),
            (Some(address), Reach::SameProcess) => {
                self.pin()?;
                // SAFETY: the lender keeps its memory until the message is finished, and cannot close while pinned.
                Ok(unsafe { UserPointer::new((address as usize + current.consumed) as *const _) })
            }
            (Some(address), reach) => {
                pull::copy(reach, address + current.consumed as u64, scratch, bytes)
                    .map_err(|error| error.within(format!("rank {}", self.ring.source)))?;
                self.check_still_lent()?;
                Ok(scratch)
            }
        }
    }

    fn copy_to(&mut self, device: &dyn Device, destination: UserPointer, bytes: usize) -> Result<()> {
        let Some(current) = self.current else { return Err(Error::internal("a copy of no message")) };
        if current.lent.is_none() || self.reach == Reach::SameProcess {
            let source = self.view(bytes, UserPointer::null())?;
            device.copy(destination, source, bytes);
        } else {
            self.view(bytes, destination)?;
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        self.unpin();
        let Some(current) = self.current.as_mut() else { return };
        if bytes == 0 && current.consumed < current.head.bytes {
            return;
        }
        self.consumed_bytes += bytes as u64;
        current.consumed += bytes;
        current.record_consumed += bytes;
        let done = current.consumed >= current.head.bytes;
        let lent = current.lent.is_some();
        let (record_bytes, record_done) =
            (current.record_bytes, current.record_consumed >= current.record_bytes);
        if done {
            self.current = None;
        }
        if if lent { done } else { record_done } {
            self.release(record_bytes);
        }
        if done {
            self.consumer.finish_message(&self.ring.control().head);
        }
        if done || record_done {
            self.ring.arena.block(self.ring.source).bell.ring();
        }
    }

    fn needs_scratch(&mut self) -> Result<bool> {
        let reach = self.reach;
        Ok(self.current()?.is_some_and(|current| current.lent.is_some()) && reach != Reach::SameProcess)
    }
}

impl Drop for RingReceiver {
    fn drop(&mut self) {
        self.unpin();
    }
}
