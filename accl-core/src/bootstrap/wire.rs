//! Messages between a service and those who connect to it.
//!
//! A frame is `length u32 | kind u8 | body`, the length counting kind and body; numbers are little-endian, texts
//! and lists are preceded by a u32 count. Until the other side has proved that it knows the secret, nothing but
//! `Hello`, `Challenge`, `Proof` and `Failure` is accepted, and no frame above [`STRANGER_BYTES`].
//!
//! What a rank says of itself is kept short, since it comes once for every rank:
//!
//! ```text
//! kernel u64 | network u64 | PID namespace u64 | process number u32 | process u64 | 0, or 1 and host id u64
//! port u16 | number of addresses u8, for each: 4 or 6 as u8, 4 or 16 bytes | length u8, host name
//! round trip to other hosts in microseconds u32 | speed of its interface in Mbit/s u32 | 1 if its memory is a device's, plus 2 if it has RDMA, u8
//! ```
//!
//! In the list of all ranks each says only in what it differs from the one before it; the way to other hosts is that of
//! the host's first one ([`share_uplinks`]):
//!
//! ```text
//! 0, all of the above | 1 (on the same host), process number u32, process u64, port u16 | 2 (of the same process)
//! ```

use super::auth::{Nonce, Proof, Token};
use super::links::LinkRequest;

use crate::error::{Error, ErrorKind, Result};
use crate::topo::{Place, Uplink};
use std::net::IpAddr;
use std::sync::Arc;

/// The largest frame that a stranger may send.
pub const STRANGER_BYTES: usize = 512;
/// The largest frame at all.
pub const MEMBER_BYTES: usize = 4 << 20;
/// Addresses that a rank tells at most.
pub const MOST_ADDRESSES: usize = 16;
/// Bytes of a host's name that a rank tells at most.
pub const HOST_BYTES: usize = 48;
/// Ranks in a list at most: a short list may stand for much memory.
pub const MOST_RANKS: usize = 1 << 17;
const NEW_HOST: u8 = 0;
const SAME_HOST: u8 = 1;
const SAME_PROCESS: u8 = 2;
const MAGIC: u32 = u32::from_le_bytes(*b"ACLB");

/// What one rank tells all others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerRecord {
    /// Where it runs.
    pub place: Place,
    /// A number for what the setting HOSTID says, if it says something.
    pub host_id: Option<u64>,
    /// The TCP port of its process; 0 if it has none.
    pub port: u16,
    /// Where that port can be reached, perhaps: best first.
    pub addresses: Vec<IpAddr>,
    /// What its host calls itself.
    pub host: String,
    /// Its way to other hosts.
    pub uplink: Uplink,
    /// Its calls are made in the memory of a device.
    pub on_device: bool,
    /// It has ports for RDMA.
    pub has_verbs: bool,
    /// A number for the network plugin that it can use; 0 for none.
    pub plugin: u64,
}

impl PeerRecord {
    /// The local address of its process's service.
    pub fn service(&self) -> String {
        self.place.service_name()
    }

    /// True if both may share memory: they could, and are not told to be on different hosts (HOSTID).
    pub fn shares_host(&self, other: &Self) -> bool {
        self.home() == other.home()
    }

    /// What is told of the addresses, and of the host's name.
    fn told(&self) -> (&[IpAddr], &str) {
        let addresses = &self.addresses[..self.addresses.len().min(MOST_ADDRESSES)];
        (addresses, &self.host[..self.host.floor_char_boundary(HOST_BYTES)])
    }

    /// True if it runs where the one before does.
    fn follows(&self, before: &Self) -> bool {
        let place = |record: &Self| Place { pid: 0, process: 0, ..record.place };
        let host = |record: &Self| (place(record), record.host_id);
        host(self) == host(before) && self.told() == before.told()
    }

    /// How a list says what follows `before`: see the head of this file.
    fn likeness(&self, before: Option<&Self>) -> u8 {
        let process = |record: &Self| (record.place.pid, record.place.process, record.port);
        let common = |record: &Self| (record.uplink, record.on_device, record.has_verbs, record.plugin);
        match before {
            Some(before) if self.follows(before) && common(self) == common(before) => {
                if process(self) == process(before) { SAME_PROCESS } else { SAME_HOST }
            }
            _ => NEW_HOST,
        }
    }

    /// Its host: equal for all who may share memory.
    pub fn home(&self) -> (u64, u64, Option<u64>) {
        (self.place.kernel, self.place.network, self.host_id)
    }

    /// Who that is, for people.
    pub fn describe(&self) -> String {
        format!("process {} on host {}", self.place.pid, if self.host.is_empty() { "?" } else { &self.host })
    }
}

/// Gives ranks that follow each other on a host the first one's way to other hosts, so that a list says it once.
pub fn share_uplinks(records: &mut [PeerRecord]) {
    for index in 1..records.len() {
        if let [before, record] = &mut records[index - 1..=index]
            && record.follows(before)
        {
            record.uplink = before.uplink;
        }
    }
}

/// Everything that is ever sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The first word of whoever connects.
    Hello {
        /// See [`super::PROTOCOL`].
        protocol: u32,
        /// What it wants to talk about.
        token: Token,
        /// For the proofs.
        nonce: Nonce,
    },
    /// The answer: the listener's proof.
    Challenge {
        /// For the proofs.
        nonce: Nonce,
        /// The listener's proof.
        proof: Proof,
    },
    /// The proof of whoever connected.
    Proof(Proof),
    /// A rank wants to join.
    Join {
        /// How many ranks it expects.
        ranks: u32,
        /// Which one it is.
        rank: u32,
        /// How many ids they have among them.
        ids: u32,
        /// It comes to the root of the first id to stand for its share of the ranks.
        stands: bool,
        /// The library's version.
        version: i32,
        /// How long it will wait, in milliseconds; 0 for ever.
        patience_ms: u64,
        /// What the others must know of it.
        record: PeerRecord,
    },
    /// All ranks are there: this is who they are.
    Roster(Arc<[PeerRecord]>),
    /// All ranks are there: their list is to be had from that process; from this one if none is said.
    Seek(Option<PeerRecord>),
    /// All ranks of a share are there.
    Share(Arc<[PeerRecord]>),
    /// A rank has prepared everything, or could not; a root says the same of its share.
    Ready(Option<(ErrorKind, String)>),
    /// All ranks are ready.
    Go,
    /// The verdict is a failure.
    Failure(ErrorKind, String),
    /// Somebody wants what belongs to the token: shared memory, or the list of ranks.
    Fetch,
    /// Here it is: a descriptor comes with this message.
    Grant,
    /// This connection is to carry data between two ranks.
    Link(LinkRequest),
    /// It will: what comes next on it is theirs.
    LinkAccepted,
}

impl Message {
    /// The frame of this message.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(vec![0; 4]);
        match self {
            Self::Hello { protocol, token, nonce } => {
                writer.u8(1).u32(MAGIC).u32(*protocol).bytes(token).bytes(nonce);
            }
            Self::Challenge { nonce, proof } => {
                writer.u8(2).bytes(nonce).proof(proof);
            }
            Self::Proof(proof) => {
                writer.u8(3).proof(proof);
            }
            Self::Join { ranks, rank, ids, stands, version, patience_ms, record } => {
                writer
                    .u8(4)
                    .u32(*ranks)
                    .u32(*rank)
                    .u32(*ids)
                    .u8((*stands).into())
                    .u32(*version as u32)
                    .u64(*patience_ms)
                    .record(record);
            }
            Self::Roster(records) => {
                writer.u8(5).roster(records);
            }
            Self::Ready(None) => {
                writer.u8(6).u8(0);
            }
            Self::Ready(Some((kind, text))) => {
                writer.u8(6).u8(kind.code()).text(text);
            }
            Self::Go => {
                writer.u8(7);
            }
            Self::Failure(kind, text) => {
                writer.u8(8).u8(kind.code()).text(text);
            }
            Self::Fetch => {
                writer.u8(9);
            }
            Self::Grant => {
                writer.u8(10);
            }
            Self::Link(LinkRequest { from_rank, to_rank, purpose, index }) => {
                writer.u8(11).u32(*from_rank).u32(*to_rank).u8(*purpose).u16(*index);
            }
            Self::LinkAccepted => {
                writer.u8(12);
            }
            Self::Share(records) => {
                writer.u8(14).roster(records);
            }
            Self::Seek(None) => {
                writer.u8(13).u8(0);
            }
            Self::Seek(Some(record)) => {
                writer.u8(13).u8(1).record(record);
            }
        }
        let length = (writer.0.len() - 4) as u32;
        writer.0[..4].copy_from_slice(&length.to_le_bytes());
        writer.0
    }

    /// Takes the first frame off `buffer`, once it is complete. Frames above `most` bytes are an error.
    pub fn decode(buffer: &mut Vec<u8>, most: usize) -> Result<Option<Self>> {
        let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length == 0 || length > most {
            return Err(malformed(format!("a frame of {length} bytes (at most {most} are allowed here)")));
        }
        let Some(frame) = buffer.get(4..4 + length) else { return Ok(None) };
        let message = Self::parse(frame)?;
        buffer.drain(..4 + length);
        Ok(Some(message))
    }

    fn parse(frame: &[u8]) -> Result<Self> {
        let mut reader = Reader(frame);
        let message = match reader.u8()? {
            1 => {
                if reader.u32()? != MAGIC {
                    return Err(malformed("a greeting of another kind of program"));
                }
                Self::Hello { protocol: reader.u32()?, token: reader.array()?, nonce: reader.array()? }
            }
            2 => Self::Challenge { nonce: reader.array()?, proof: reader.proof()? },
            3 => Self::Proof(reader.proof()?),
            4 => Self::Join {
                ranks: reader.u32()?,
                rank: reader.u32()?,
                ids: reader.u32()?,
                stands: match reader.u8()? {
                    0 => false,
                    1 => true,
                    other => return Err(malformed(format!("a rank that joins in the way {other}"))),
                },
                version: reader.u32()? as i32,
                patience_ms: reader.u64()?,
                record: reader.record()?,
            },
            5 => Self::Roster(reader.roster()?),
            6 => match reader.u8()? {
                0 => Self::Ready(None),
                code => Self::Ready(Some((kind_of(code)?, reader.text()?))),
            },
            7 => Self::Go,
            8 => Self::Failure(kind_of(reader.u8()?)?, reader.text()?),
            9 => Self::Fetch,
            10 => Self::Grant,
            11 => Self::Link(LinkRequest {
                from_rank: reader.u32()?,
                to_rank: reader.u32()?,
                purpose: reader.u8()?,
                index: reader.u16()?,
            }),
            12 => Self::LinkAccepted,
            13 => match reader.u8()? {
                0 => Self::Seek(None),
                1 => Self::Seek(Some(reader.record()?)),
                other => return Err(malformed(format!("a source of kind {other}"))),
            },
            14 => Self::Share(reader.roster()?),
            kind => return Err(malformed(format!("a message of kind {kind}"))),
        };
        if !reader.0.is_empty() {
            return Err(malformed(format!("{} bytes behind a message", reader.0.len())));
        }
        Ok(message)
    }
}

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::remote(format!("a connection sent something that is not ours: {what}"))
}

fn kind_of(code: u8) -> Result<ErrorKind> {
    ErrorKind::from_code(code).ok_or_else(|| malformed(format!("an error of kind {code}")))
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn proof(&mut self, proof: &Proof) -> &mut Self {
        self.bytes(&proof.secret);
        match &proof.key {
            Some(key) => self.u8(1).bytes(key),
            None => self.u8(0),
        }
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u32(text.len() as u32).bytes(text.as_bytes())
    }

    fn record(&mut self, record: &PeerRecord) -> &mut Self {
        let place = &record.place;
        self.u64(place.kernel).u64(place.network).u64(place.pid_namespace).u32(place.pid).u64(place.process);
        match record.host_id {
            Some(id) => self.u8(1).u64(id),
            None => self.u8(0),
        };
        let (addresses, host) = record.told();
        self.u16(record.port).u8(addresses.len() as u8);
        for ip in addresses {
            match ip {
                IpAddr::V4(ip) => self.u8(4).bytes(&ip.octets()),
                IpAddr::V6(ip) => self.u8(6).bytes(&ip.octets()),
            };
        }
        self.u8(host.len() as u8).bytes(host.as_bytes());
        let (has_verbs, has_plugin) = (u8::from(record.has_verbs), u8::from(record.plugin != 0));
        let facts = u8::from(record.on_device) | has_verbs << 1 | has_plugin << 2;
        self.u32(record.uplink.round_trip_us).u32(record.uplink.bandwidth_mbps).u8(facts);
        if record.plugin == 0 { self } else { self.u64(record.plugin) }
    }

    fn roster(&mut self, records: &[PeerRecord]) -> &mut Self {
        self.u32(records.len() as u32);
        let mut before = None;
        for record in records {
            self.entry(record, before);
            before = Some(record);
        }
        self
    }

    fn entry(&mut self, record: &PeerRecord, before: Option<&PeerRecord>) {
        let likeness = record.likeness(before);
        self.u8(likeness);
        match likeness {
            NEW_HOST => self.record(record),
            SAME_HOST => self.u32(record.place.pid).u64(record.place.process).u16(record.port),
            _ => self,
        };
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(malformed("a message that ends too early"));
        };
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

    fn proof(&mut self) -> Result<Proof> {
        let secret = self.array()?;
        let key = match self.u8()? {
            0 => None,
            1 => Some(self.array()?),
            other => return Err(malformed(format!("a proof of kind {other}"))),
        };
        Ok(Proof { secret, key })
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u32()? as usize;
        self.text_of(length)
    }

    fn text_of(&mut self, length: usize) -> Result<String> {
        let Some((head, rest)) = self.0.split_at_checked(length) else {
            return Err(malformed("a text that ends too early"));
        };
        self.0 = rest;
        String::from_utf8(head.to_vec()).map_err(|_| malformed("a text that is not UTF-8"))
    }

    fn roster(&mut self) -> Result<Arc<[PeerRecord]>> {
        let count = self.u32()? as usize;
        if count > MOST_RANKS {
            return Err(malformed(format!("a list of {count} ranks (at most {MOST_RANKS})")));
        }
        let mut roster: Vec<PeerRecord> = Vec::new();
        for _ in 0..count {
            let record = self.entry(roster.last())?;
            roster.push(record);
        }
        Ok(roster.into())
    }

    fn entry(&mut self, before: Option<&PeerRecord>) -> Result<PeerRecord> {
        let likeness = self.u8()?;
        let record = match (likeness, before) {
            (NEW_HOST, _) => self.record()?,
            (SAME_HOST, Some(before)) => {
                let place = Place { pid: self.u32()?, process: self.u64()?, ..before.place };
                PeerRecord { place, port: self.u16()?, ..before.clone() }
            }
            (SAME_PROCESS, Some(before)) => before.clone(),
            _ => return Err(malformed(format!("a rank of kind {likeness}"))),
        };
        // A list has one form, so that nothing can hide in another.
        if record.likeness(before) != likeness {
            return Err(malformed("a rank that is said at needless length"));
        }
        Ok(record)
    }

    fn record(&mut self) -> Result<PeerRecord> {
        let place = Place {
            kernel: self.u64()?,
            network: self.u64()?,
            pid_namespace: self.u64()?,
            pid: self.u32()?,
            process: self.u64()?,
        };
        let host_id = match self.u8()? {
            0 => None,
            1 => Some(self.u64()?),
            other => return Err(malformed(format!("a host id of kind {other}"))),
        };
        let port = self.u16()?;
        let count = usize::from(self.u8()?);
        if count > MOST_ADDRESSES {
            return Err(malformed(format!("{count} addresses of a rank (at most {MOST_ADDRESSES})")));
        }
        let addresses = (0..count).map(|_| self.address()).collect::<Result<_>>()?;
        let length = usize::from(self.u8()?);
        if length > HOST_BYTES {
            return Err(malformed(format!("a host name of {length} bytes (at most {HOST_BYTES})")));
        }
        let host = self.text_of(length)?;
        let uplink = Uplink { round_trip_us: self.u32()?, bandwidth_mbps: self.u32()? };
        let (on_device, has_verbs, has_plugin) = match self.u8()? {
            facts @ 0..=7 => (facts & 1 != 0, facts & 2 != 0, facts & 4 != 0),
            other => return Err(malformed(format!("memory of kind {other}"))),
        };
        let plugin = if has_plugin { self.u64()? } else { 0 };
        if has_plugin && plugin == 0 {
            return Err(malformed("a network plugin that is none"));
        }
        Ok(PeerRecord { place, host_id, port, addresses, host, uplink, on_device, has_verbs, plugin })
    }

    fn address(&mut self) -> Result<IpAddr> {
        match self.u8()? {
            4 => Ok(IpAddr::from(self.array::<4>()?)),
            6 => Ok(IpAddr::from(self.array::<16>()?)),
            family => Err(malformed(format!("an address of family {family}"))),
        }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
