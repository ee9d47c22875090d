//! Messages between a service and those who connect to it.
//!
//! A frame is `length u32 | kind u8 | body`, the length counting kind and body; numbers are little-endian, texts
//! and lists are preceded by a u32 count. Until the other side has proved that it knows the secret, nothing but
//! `Hello`, `Challenge`, `Proof` and `Failure` is accepted, and no frame above [`STRANGER_BYTES`].

use super::auth::{Nonce, Proof, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::topo::Place;

/// The largest frame that a stranger may send.
pub const STRANGER_BYTES: usize = 512;
/// The largest frame at all.
pub const MEMBER_BYTES: usize = 4 << 20;
const MAGIC: u32 = u32::from_le_bytes(*b"ACLB");

/// What one rank tells all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerRecord {
    /// Where it runs.
    pub place: Place,
    /// The local address of its process's service.
    pub service: String,
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
        /// The library's version.
        version: i32,
        /// How long it will wait, in milliseconds; 0 for ever.
        patience_ms: u64,
        /// What the others must know of it.
        record: PeerRecord,
    },
    /// All ranks are there: this is who they are.
    Roster(Vec<PeerRecord>),
    /// A rank has prepared everything, or could not.
    Ready(Option<(ErrorKind, String)>),
    /// All ranks are ready.
    Go,
    /// The verdict is a failure.
    Failure(ErrorKind, String),
    /// Somebody wants the shared memory that belongs to the token.
    Fetch,
    /// Here it is: a descriptor comes with this message.
    Grant,
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
                writer.u8(2).bytes(nonce).bytes(proof);
            }
            Self::Proof(proof) => {
                writer.u8(3).bytes(proof);
            }
            Self::Join { ranks, rank, version, patience_ms, record } => {
                writer.u8(4).u32(*ranks).u32(*rank).u32(*version as u32).u64(*patience_ms).record(record);
            }
            Self::Roster(records) => {
                writer.u8(5).u32(records.len() as u32);
                for record in records {
                    writer.record(record);
                }
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
            2 => Self::Challenge { nonce: reader.array()?, proof: reader.array()? },
            3 => Self::Proof(reader.array()?),
            4 => Self::Join {
                ranks: reader.u32()?,
                rank: reader.u32()?,
                version: reader.u32()? as i32,
                patience_ms: reader.u64()?,
                record: reader.record()?,
            },
            5 => {
                let count = reader.u32()?;
                Self::Roster((0..count).map(|_| reader.record()).collect::<Result<_>>()?)
            }
            6 => match reader.u8()? {
                0 => Self::Ready(None),
                code => Self::Ready(Some((kind_of(code)?, reader.text()?))),
            },
            7 => Self::Go,
            8 => Self::Failure(kind_of(reader.u8()?)?, reader.text()?),
            9 => Self::Fetch,
            10 => Self::Grant,
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

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u32(text.len() as u32).bytes(text.as_bytes())
    }

    fn record(&mut self, record: &PeerRecord) -> &mut Self {
        let place = &record.place;
        self.u64(place.kernel).u64(place.network).u64(place.pid_namespace).u32(place.pid).u64(place.process);
        self.text(&record.service)
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

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u32()? as usize;
        let Some((head, rest)) = self.0.split_at_checked(length) else {
            return Err(malformed("a text that ends too early"));
        };
        self.0 = rest;
        String::from_utf8(head.to_vec()).map_err(|_| malformed("a text that is not UTF-8"))
    }

    fn record(&mut self) -> Result<PeerRecord> {
        let place = Place {
            kernel: self.u64()?,
            network: self.u64()?,
            pid_namespace: self.u64()?,
            pid: self.u32()?,
            process: self.u64()?,
        };
        Ok(PeerRecord { place, service: self.text()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        any::<(u64, u64, u64, u32, u64)>().prop_map(|(kernel, network, pid_namespace, pid, process)| Place {
            kernel,
            network,
            pid_namespace,
            pid,
            process,
        })
    }

    fn record() -> impl Strategy<Value = PeerRecord> {
        (place(), ".{0,20}").prop_map(|(place, service)| PeerRecord { place, service })
    }

    fn failure() -> impl Strategy<Value = (ErrorKind, String)> {
        (prop::sample::select(&ErrorKind::ALL[..]), ".{0,50}")
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            any::<(u32, Token, Nonce)>().prop_map(|(protocol, token, nonce)| Message::Hello {
                protocol,
                token,
                nonce
            }),
            any::<(Nonce, Proof)>().prop_map(|(nonce, proof)| Message::Challenge { nonce, proof }),
            any::<Proof>().prop_map(Message::Proof),
            (any::<(u32, u32, i32, u64)>(), record()).prop_map(
                |((ranks, rank, version, patience_ms), record)| {
                    Message::Join { ranks, rank, version, patience_ms, record }
                }
            ),
            prop::collection::vec(record(), 0..9).prop_map(Message::Roster),
            prop::option::of(failure()).prop_map(Message::Ready),
            Just(Message::Go),
            failure().prop_map(|(kind, text)| Message::Failure(kind, text)),
            Just(Message::Fetch),
            Just(Message::Grant),
        ]
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(messages in prop::collection::vec(message(), 1..5), cut in 0usize..40) {
            let mut stream: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
            let held_back = stream.split_off(stream.len() - cut.min(stream.len()));
            let mut got = Vec::new();
            while let Some(message) = Message::decode(&mut stream, MEMBER_BYTES).unwrap() {
                got.push(message);
            }
            stream.extend(held_back);
            while let Some(message) = Message::decode(&mut stream, MEMBER_BYTES).unwrap() {
                got.push(message);
            }
            prop_assert_eq!(got, messages);
            prop_assert!(stream.is_empty());
        }

        #[test]
        fn garbage_is_refused_or_incomplete(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = bytes;
            while let Ok(Some(_)) = Message::decode(&mut buffer, STRANGER_BYTES) {}
        }

        #[test]
        fn damaged_frames_do_no_harm(message in message(), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut buffer = message.encode();
            let index = at.index(buffer.len());
            buffer[index] ^= flip;
            let _ = Message::decode(&mut buffer, MEMBER_BYTES);
        }
    }

    #[test]
    fn a_list_that_claims_to_be_endless_is_refused_at_once() {
        let mut frame = vec![5u8];
        frame.extend(u32::MAX.to_le_bytes());
        let mut buffer = (frame.len() as u32).to_le_bytes().to_vec();
        buffer.extend(frame);
        assert!(Message::decode(&mut buffer, MEMBER_BYTES).is_err());
    }
}
