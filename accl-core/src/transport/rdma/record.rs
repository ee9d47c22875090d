//! What the two ends of a link tell each other over their TCP connection, as bytes.
//!
//! ```text
//! record:   0: "ACLR" | what u8 | path u8 | zero u16       8: bytes u32 | epoch u32       16: a body of so many bytes
//! what: 1 hello     slots u32, slot bytes u32, pairs u8 (queue pairs for each pair of ports), ports u8, zero u16; for each port:
//!                   GID [16], LID u16, packet u8 (as verbs number it), kind u8 (1 InfiniBand, 2 RoCE v1, 3 RoCE v2)
//!       2 pair      number u32, first packet u32, ring u64, key of the ring u32, zero u32         (of a path and its epoch)
//!       3 ready     nothing                                                                       (the same)
//!       4 closed    segments consumed u64, arrived besides u64                                    (the same)
//!       5 credit    segments consumed u64
//!       6 segment   number u64; its bytes
//!       7 failure   kind u32; text (at most 1024)
//!       8 passed    nothing                                                                       (of a path and its epoch)
//!       9 useless   why: text (at most 1024)                                                      (of a path)
//! ```
//! Numbers are little-endian. A record has one form: path and epoch are 0 where they say nothing.

use super::window::Have;
use super::{MOST_PATHS, SLOT_BYTES};
use crate::driver::verbs::{Gid, GidKind};
use crate::error::{Error, Result};

/// Bytes in front of a record's body.
pub const RECORD_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"ACLR");
const TEXT_BYTES: usize = 1024;
const PORT_BYTES: usize = 20;
const HELLO_BYTES: usize = 12;
/// The longest body.
const MOST_BYTES: usize = 8 + SLOT_BYTES;
/// Ports of one end at most.
pub(super) const MOST_PORTS: usize = 32;

/// Where a port can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAddress {
    /// Its global address; zero where an InfiniBand port needs none.
    pub gid: Gid,
    /// Its number within an InfiniBand subnet.
    pub lid: u16,
    /// Bytes of its packets, as verbs number them.
    pub mtu: u8,
    /// What kind of packets it sends.
    pub kind: GidKind,
}

/// A queue pair, and the ring behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairAddress {
    /// Its number.
    pub number: u32,
    /// The number of its first packet.
    pub first_packet: u32,
    /// Where the receiver's ring begins.
    pub ring: u64,
    /// The ring's key at this port.
    pub key: u32,
}

/// One record; its bytes may lie elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The first one: what this end is like.
    Hello {
        /// Queue pairs for each pair of ports.
        pairs: u8,
        /// Its ports.
        ports: Vec<PortAddress>,
    },
    /// This end of a path.
    Pair {
        /// The path.
        path: u8,
        /// Its epoch.
        epoch: u32,
        /// The end.
        address: PairAddress,
    },
    /// This end is connected, and what is sent to it arrives.
    Ready {
        /// The path.
        path: u8,
        /// Its epoch.
        epoch: u32,
    },
    /// Nothing arrives at this end any more, and this is what has.
    Closed {
        /// The path.
        path: u8,
        /// Its epoch.
        epoch: u32,
        /// What this end has.
        have: Have,
    },
    /// This end has consumed so many segments.
    Credit(u64),
    /// A segment that goes by no path.
    Segment {
        /// Its number.
        number: u64,
        /// What it carries.
        data: Vec<u8>,
    },
    /// A packet of this end has passed.
    Passed {
        /// The path.
        path: u8,
        /// Its epoch.
        epoch: u32,
    },
    /// This end cannot use a path, and does not try it again.
    Useless {
        /// The path.
        path: u8,
        /// Why.
        text: String,
    },
    /// Nothing more comes, and why.
    Failure {
        /// The kind of error.
        code: u32,
        /// What is to be said.
        text: String,
    },
}

impl Record {
    /// Adds the record's bytes; a long text is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (what, path, epoch) = match self {
            Self::Hello { .. } => (1, 0, 0),
            Self::Pair { path, epoch, .. } => (2, *path, *epoch),
            Self::Ready { path, epoch } => (3, *path, *epoch),
            Self::Closed { path, epoch, .. } => (4, *path, *epoch),
            Self::Credit(_) => (5, 0, 0),
            Self::Segment { .. } => (6, 0, 0),
            Self::Failure { .. } => (7, 0, 0),
            Self::Passed { path, epoch } => (8, *path, *epoch),
            Self::Useless { path, .. } => (9, *path, 0),
        };
        out.extend(MAGIC.to_le_bytes());
        out.extend([what, path, 0, 0]);
        out.extend([0; 4]);
        out.extend(epoch.to_le_bytes());
        match self {
            Self::Hello { pairs, ports } => {
                out.extend((super::SLOTS as u32).to_le_bytes());
                out.extend((SLOT_BYTES as u32).to_le_bytes());
                out.extend([*pairs, ports.len() as u8, 0, 0]);
                for port in ports {
                    out.extend(port.gid.0);
                    out.extend(port.lid.to_le_bytes());
                    out.extend([port.mtu, kind_number(port.kind)]);
                }
            }
            Self::Pair { address, .. } => {
                out.extend(address.number.to_le_bytes());
                out.extend(address.first_packet.to_le_bytes());
                out.extend(address.ring.to_le_bytes());
                out.extend(address.key.to_le_bytes());
                out.extend([0; 4]);
            }
            Self::Ready { .. } | Self::Passed { .. } => {}
            Self::Closed { have, .. } => {
                out.extend(have.consumed.to_le_bytes());
                out.extend(have.arrived.to_le_bytes());
            }
            Self::Credit(consumed) => out.extend(consumed.to_le_bytes()),
            Self::Segment { number, data } => {
                out.extend(number.to_le_bytes());
                out.extend(data);
            }
            Self::Failure { code, text } => {
                out.extend(code.to_le_bytes());
                out.extend(cut(text));
            }
            Self::Useless { text, .. } => out.extend(cut(text)),
        }
        let bytes = (out.len() - start - RECORD_BYTES) as u32;
        out[start + 8..start + 12].copy_from_slice(&bytes.to_le_bytes());
    }

    /// The first record of `bytes` and its length, once all of it is there; an error (Remote) if it is none.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        let Some(head) = bytes.first_chunk::<RECORD_BYTES>() else { return Ok(None) };
        let mut reader = Reader(head);
        let (magic, what, path, zero) = (reader.u32()?, reader.u8()?, reader.u8()?, reader.u16()?);
        let (length, epoch) = (reader.u32()? as usize, reader.u32()?);
        let has_path = matches!(what, 2..=4 | 8 | 9);
        let stray = !has_path && (path != 0 || epoch != 0)
            || what == 9 && epoch != 0
            || usize::from(path) >= MOST_PATHS;
        if magic != MAGIC || zero != 0 || length > MOST_BYTES || stray {
            return Err(wrong());
        }
        let Some(body) = bytes.get(RECORD_BYTES..RECORD_BYTES + length) else { return Ok(None) };
        let record = Self::parse(what, path, epoch, body)?;
        Ok(Some((record, RECORD_BYTES + length)))
    }

    fn parse(what: u8, path: u8, epoch: u32, body: &[u8]) -> Result<Self> {
        let mut reader = Reader(body);
        let record = match what {
            1 => reader.hello(body.len())?,
            2 => {
                let (number, first_packet) = (reader.u32()?, reader.u32()?);
                let address = PairAddress { number, first_packet, ring: reader.u64()?, key: reader.u32()? };
                if reader.u32()? != 0 || number > 0xff_ffff || first_packet > 0xff_ffff {
                    return Err(wrong());
                }
                Self::Pair { path, epoch, address }
            }
            3 => Self::Ready { path, epoch },
            4 => Self::Closed { path, epoch, have: Have { consumed: reader.u64()?, arrived: reader.u64()? } },
            5 => Self::Credit(reader.u64()?),
            6 => {
                let number = reader.u64()?;
                if reader.0.is_empty() {
                    return Err(wrong());
                }
                Self::Segment { number, data: std::mem::take(&mut reader.0).to_vec() }
            }
            7 => {
                let code = reader.u32()?;
                Self::Failure { code, text: reader.text()? }
            }
            8 => Self::Passed { path, epoch },
            9 => Self::Useless { path, text: reader.text()? },
            _ => return Err(wrong()),
        };
        if reader.0.is_empty() { Ok(record) } else { Err(wrong()) }
    }
}

fn cut(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES)]
}

fn wrong() -> Error {
    Error::remote("what it sends is no record of an RDMA link")
}

fn kind_number(kind: GidKind) -> u8 {
    match kind {
        GidKind::InfiniBand => 1,
        GidKind::RoceV1 => 2,
        GidKind::RoceV2 => 3,
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or_else(wrong)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// What is left, as text.
    fn text(&mut self) -> Result<String> {
        let text = std::mem::take(&mut self.0);
        if text.len() > TEXT_BYTES {
            return Err(wrong());
        }
        std::str::from_utf8(text).map(str::to_string).map_err(|_| wrong())
    }

    fn hello(&mut self, bytes: usize) -> Result<Record> {
        let (slots, slot_bytes) = (self.u32()? as usize, self.u32()? as usize);
        let (pairs, count, zero) = (self.u8()?, usize::from(self.u8()?), self.u16()?);
        let fits = count <= MOST_PORTS && bytes == HELLO_BYTES + count * PORT_BYTES;
        if (slots, slot_bytes) != (super::SLOTS, SLOT_BYTES) || pairs == 0 || zero != 0 || !fits {
            return Err(wrong());
        }
        let ports = (0..count).map(|_| self.port()).collect::<Result<_>>()?;
        Ok(Record::Hello { pairs, ports })
    }

    fn port(&mut self) -> Result<PortAddress> {
        let (gid, lid, mtu) = (Gid(self.array()?), self.u16()?, self.u8()?);
        let kind = match self.u8()? {
            1 => GidKind::InfiniBand,
            2 => GidKind::RoceV1,
            3 => GidKind::RoceV2,
            _ => return Err(wrong()),
        };
        if (1..=5).contains(&mtu) { Ok(PortAddress { gid, lid, mtu, kind }) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Record> {
        let port = PortAddress { gid: Gid([7; 16]), lid: 3, mtu: 5, kind: GidKind::RoceV2 };
        let address = PairAddress { number: 0xff_fffe, first_packet: 9, ring: u64::MAX, key: 0xdead_beef };
        let have = Have { consumed: 1 << 40, arrived: 0b1011 };
        vec![
            Record::Hello { pairs: 4, ports: vec![port; 3] },
            Record::Hello { pairs: 1, ports: Vec::new() },
            Record::Pair { path: 15, epoch: u32::MAX, address },
            Record::Ready { path: 1, epoch: 2 },
            Record::Closed { path: 0, epoch: 7, have },
            Record::Credit(77),
            Record::Segment { number: 1 << 33, data: vec![5; SLOT_BYTES] },
            Record::Failure { code: 6, text: "what went wrong, é".to_string() },
            Record::Passed { path: 2, epoch: 9 },
            Record::Useless { path: 3, text: "no memory may be locked".to_string() },
        ]
    }

    #[test]
    fn records_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = Vec::new();
        all().iter().for_each(|record| record.encode(&mut bytes));
        let mut at = 0;
        for expected in all() {
            let mut end = at;
            let (record, length) = loop {
                match Record::decode(&bytes[at..end]).unwrap() {
                    Some(found) => break found,
                    None => end = (end + 977).min(bytes.len()),
                }
            };
            assert_eq!(record, expected);
            at += length;
        }
        assert_eq!(at, bytes.len());
    }

    proptest! {
        #[test]
        fn what_is_changed_is_another_record_or_none(which in 0usize..10, at in any::<u16>(), value in any::<u8>()) {
            let mut bytes = Vec::new();
            all()[which].encode(&mut bytes);
            let at = usize::from(at) % bytes.len();
            let changed = bytes[at] != value;
            bytes[at] = value;
            if let Ok(Some((record, length))) = Record::decode(&bytes) {
                let mut again = Vec::new();
                record.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..length], "a record has one form");
                prop_assert!(!changed || record != all()[which]);
            }
        }
    }
}
