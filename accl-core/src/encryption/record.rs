//! Bytes as records that cannot be read or changed without the key of their connection and direction.
//!
//! ```text
//! record:  0: bytes u32 (1 … 16384)      4: the bytes, encrypted      4 + bytes: tag [16]
//! nonce:   0: zero [4] | number of the record u64
//! ```
//! Numbers are little-endian. Encryption is AES-256-GCM: it covers the bytes, and authenticates them together with the head (the first four
//! bytes) and the record's number, which is not sent, since both ends count. So a record that was changed, repeated, left out or put
//! elsewhere does not open; and after one that does not, none does.
//!
//! Every 2^20 records, at most 16 GiB, both ends go on with the next key, from which this one cannot be found:
//! ```text
//! next sending = Expand(sending, "accl next")      sealing = Expand(next sending, "accl records")
//! ```
//! so that no key ever covers as many blocks as would weaken it.

use super::key::expand;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use std::io;

/// Bytes of a record's head.
pub(super) const HEAD_BYTES: usize = 4;
/// Bytes of a record besides those that it carries.
pub const RECORD_OVERHEAD_BYTES: usize = HEAD_BYTES + 16;
/// What a record carries at most: large enough that its overhead costs little, small enough to stay in the first cache
/// between copying and encrypting.
pub const MOST_SEALED_BYTES: usize = 16 << 10;
/// How many records have one key.
const RECORDS_OF_A_KEY: u64 = 1 << 20;

/// Makes the records of one direction.
#[derive(Debug)]
pub struct Sealer(Direction);

/// Opens them, in the same order.
#[derive(Debug)]
pub struct Opener {
    direction: Direction,
    /// A record did not open: whatever comes is not what was sent.
    has_failed: bool,
}

/// One direction of a connection, as both ends count it.
struct Direction {
    sending: Prk,
    sealing: LessSafeKey,
    /// Records so far.
    records: u64,
}

impl std::fmt::Debug for Direction {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Direction").field("records", &self.records).finish_non_exhaustive()
    }
}

impl Direction {
    fn new(sending: Prk) -> Self {
        let sealing = sealing_key(&sending);
        Self { sending, sealing, records: 0 }
    }

    /// The nonce of the next record, whose key this has from here on.
    fn step(&mut self) -> Nonce {
        if self.records > 0 && self.records.is_multiple_of(RECORDS_OF_A_KEY) {
            self.sending = expand(&self.sending, &[b"accl next"], HKDF_SHA256);
            self.sealing = sealing_key(&self.sending);
        }
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

fn sealing_key(sending: &Prk) -> LessSafeKey {
    LessSafeKey::new(expand::<_, UnboundKey>(sending, &[b"accl records"], &AES_256_GCM))
}

impl Sealer {
    pub(super) fn new(sending: Prk) -> Self {
        Self(Direction::new(sending))
    }

    /// Appends the record of the bytes of both pieces, at most [`MOST_SEALED_BYTES`] and at least one.
    pub fn seal(&mut self, pieces: [&[u8]; 2], records: &mut Vec<u8>) {
        let bytes = pieces[0].len() + pieces[1].len();
        debug_assert!((1..=MOST_SEALED_BYTES).contains(&bytes));
        let head = (bytes as u32).to_le_bytes();
        records.extend_from_slice(&head);
        let start = records.len();
        pieces.iter().for_each(|piece| records.extend_from_slice(piece));
        let nonce = self.0.step();
        #[expect(clippy::expect_used, reason = "it fails beyond 64 GiB, and a record is far below")]
        let tag = self
            .0
            .sealing
            .seal_in_place_separate_tag(nonce, Aad::from(head), &mut records[start..])
            .expect("a record can be sealed");
        records.extend_from_slice(tag.as_ref());
    }
}

impl Opener {
    pub(super) fn new(sending: Prk) -> Self {
        Self { direction: Direction::new(sending), has_failed: false }
    }

    /// How long the record is that `received` begins with, once its head is there. An error if there is no such record.
    pub fn record_bytes(&self, received: &[u8]) -> io::Result<Option<usize>> {
        if self.has_failed {
            return Err(not_sealed());
        }
        let Some(head) = received.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*head) as usize;
        if bytes == 0 || bytes > MOST_SEALED_BYTES {
            return Err(not_sealed());
        }
        Ok(Some(bytes + RECORD_OVERHEAD_BYTES))
    }

    /// Opens a record where it lies, and returns what it carries. An error if it is not the next one of the other end.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> io::Result<&'a mut [u8]> {
        let whole = self.record_bytes(record)?.is_some_and(|bytes| bytes == record.len());
        self.has_failed = true;
        let Some((head, sealed)) = record.split_first_chunk_mut::<HEAD_BYTES>().filter(|_| whole) else {
            return Err(not_sealed());
        };
        let nonce = self.direction.step();
        let opened = self.direction.sealing.open_in_place(nonce, Aad::from(*head), sealed);
        let opened = opened.map_err(|_| not_sealed())?;
        self.has_failed = false;
        Ok(opened)
    }
}

fn not_sealed() -> io::Error {
    let text = "what comes is not what the other end has encrypted: it was changed, cut or repeated on its way, or sent by somebody else";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
