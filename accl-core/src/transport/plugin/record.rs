//! What the two ends of a link tell each other over their TCP connection, as bytes.
//!
//! ```text
//! record:   0: "ACLN" | what u8 | zero [3]      8: bytes u32 | zero u32      16: a body of so many bytes
//! what: 1 hello     the handle by which this end is found [128]
//!       2 up        nothing
//!       3 down      why: text (at most 1024)
//!       4 segment   the bytes of an early message, with its head
//!       5 switch    nothing: what is sent from here on goes by who carries it now
//!       6 end       receives posted in all u64; segments sent in all u64
//!       7 failure   kind u32; text (at most 1024)
//! ```
//! Numbers are little-endian. A record has one form. No byte behind a record is read with it: after "switch" the connection may carry something else.

use super::EARLY_BYTES;
use crate::driver::network_plugin::{HANDLE_BYTES, Handle};
use crate::encryption::Socket;
use crate::error::{Error, Result};
use crate::transport::tcp::HEAD_BYTES;

/// Bytes in front of a record's body.
pub const RECORD_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"ACLN");
const TEXT_BYTES: usize = 1024;
/// The longest body.
const MOST_BYTES: usize = HEAD_BYTES + EARLY_BYTES;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// This end listens.
    Hello(Box<Handle>),
    /// This end is ready.
    Up,
    /// This end cannot use the plugin.
    Down(String),
    /// A message that is early.
    Segment(Vec<u8>),
    /// No more of those.
    Switch,
    /// No more comes and goes.
    End {
        /// Receives in all.
        posted: u64,
        /// Segments of messages in all.
        sent: u64,
    },
    /// Nothing more comes, and why.
    Failure {
        /// The kind of error.
        code: u32,
        /// In words.
        text: String,
    },
}

fn shortened(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES)]
}

impl Record {
    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&[0; RECORD_BYTES]);
        let what: u8 = match self {
            Self::Hello(handle) => {
                out.extend_from_slice(&**handle);
                1
            }
            Self::Up => 2,
            Self::Down(text) => {
                out.extend_from_slice(shortened(text));
                3
            }
            Self::Segment(bytes) => {
                out.extend_from_slice(bytes);
                4
            }
            Self::Switch => 5,
            Self::End { posted, sent } => {
                out.extend_from_slice(&posted.to_le_bytes());
                out.extend_from_slice(&sent.to_le_bytes());
                6
            }
            Self::Failure { code, text } => {
                out.extend_from_slice(&code.to_le_bytes());
                out.extend_from_slice(shortened(text));
                7
            }
        };
        let bytes = (out.len() - begin - RECORD_BYTES) as u32;
        out[begin..begin + 4].copy_from_slice(&MAGIC.to_le_bytes());
        out[begin + 4] = what;
        out[begin + 8..begin + 12].copy_from_slice(&bytes.to_le_bytes());
    }

    /// How many bytes the body has that follows this head; an error if it is none.
    fn body_bytes(head: &[u8; RECORD_BYTES]) -> Result<usize> {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let bytes = word(8) as usize;
        if word(0) != MAGIC || head[5..8] != [0; 3] || word(12) != 0 || bytes > MOST_BYTES {
            return Err(Error::remote("what it sends is no record"));
        }
        Ok(bytes)
    }

    /// The record of these bytes, all of them.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::remote("what it sends is no record");
        let (head, body) = bytes.split_first_chunk().ok_or_else(wrong)?;
        if Self::body_bytes(head)? != body.len() {
            return Err(wrong());
        }
        let text = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= TEXT_BYTES);
            text.map(str::to_string).ok_or_else(wrong)
        };
        match (head[4], body) {
            (1, _) if body.len() == HANDLE_BYTES => {
                let mut handle = Box::new([0; HANDLE_BYTES]);
                handle.copy_from_slice(body);
                Ok(Self::Hello(handle))
            }
            (2, []) => Ok(Self::Up),
            (3, _) => Ok(Self::Down(text(body)?)),
            (4, _) if body.len() >= HEAD_BYTES => Ok(Self::Segment(body.to_vec())),
            (5, []) => Ok(Self::Switch),
            (6, _) => {
                let (posted, sent) = body.split_first_chunk().ok_or_else(wrong)?;
                let sent = sent.try_into().map_err(|_| wrong())?;
                Ok(Self::End { posted: u64::from_le_bytes(*posted), sent: u64::from_le_bytes(sent) })
            }
            (7, _) => {
                let (code, body) = body.split_first_chunk().ok_or_else(wrong)?;
                Ok(Self::Failure { code: u32::from_le_bytes(*code), text: text(body)? })
            }
            _ => Err(wrong()),
        }
    }
}

/// Records that are coming and going.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// What has come of the next record.
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// What of the outbox has gone.
    gone: usize,
    /// Nothing more comes, or goes.
    pub(super) has_ended: bool,
}

impl Channel {
    /// Queues a record.
    pub(super) fn say(&mut self, record: &Record) {
        if !self.has_ended {
            record.encode(&mut self.outbox);
        }
    }

    /// True if everything has gone.
    pub(super) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self, socket: &Socket) {
        while self.gone < self.outbox.len() {
            match socket.write_some(&self.outbox[self.gone..], &[]) {
                Ok(Some(count)) => self.gone += count,
                Ok(None) => return,
                Err(_) => {
                    // Why is told by what can be read still.
                    self.has_ended = true;
                    break;
                }
            }
        }
        self.outbox.clear();
        self.gone = 0;
    }

    /// The next record, once all of it is there.
    pub(super) fn next(&mut self, socket: &Socket) -> Result<Option<Record>> {
        loop {
            let wanted = match self.inbox.first_chunk() {
                Some(head) => RECORD_BYTES + Record::body_bytes(head)?,
                None => RECORD_BYTES,
            };
            let have = self.inbox.len();
            if have == wanted && (wanted > RECORD_BYTES || self.is_bare()) {
                let record = Record::decode(&self.inbox)?;
                self.inbox.clear();
                return Ok(Some(record));
            }
            self.inbox.resize(wanted, 0);
            let found = socket.read_some(&mut self.inbox[have..]);
            let count = if let Ok(Some(count)) = found { count } else { 0 };
            self.inbox.truncate(have + count);
            match found {
                Ok(Some(0)) | Err(_) => {
                    self.has_ended = true;
                    return Ok(None);
                }
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
            }
        }
    }

    /// True if what has come is a head without a body.
    fn is_bare(&self) -> bool {
        self.inbox.len() == RECORD_BYTES && self.inbox[8..12] == [0; 4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    }

    #[test]
    fn records_come_out_as_they_went_in_and_in_one_form() {
        let all = [
            Record::Hello(Box::new(std::array::from_fn(|at| at as u8))),
            Record::Up,
            Record::Down("no device".to_string()),
            Record::Segment(vec![7; HEAD_BYTES + 3]),
            Record::Switch,
            Record::End { posted: 1 << 40, sent: 7 },
            Record::Failure { code: 6, text: "it broke".to_string() },
        ];
        for record in all {
            let bytes = encoded(&record);
            assert_eq!(Record::decode(&bytes), Ok(record));
            for length in 0..bytes.len() {
                assert!(Record::decode(&bytes[..length]).is_err(), "{length} of {bytes:?}");
            }
            for at in [0, 4, 5, 7, 8, 12, 15] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x40;
                assert!(Record::decode(&damaged).is_err(), "byte {at} of {bytes:?}");
            }
        }
        let long = encoded(&Record::Down("é".repeat(1024)));
        assert_eq!(Record::decode(&long), Ok(Record::Down("é".repeat(512))));
        assert!(Record::decode(&encoded(&Record::Segment(vec![0; HEAD_BYTES - 1]))).is_err());
        assert!(Record::decode(&encoded(&Record::Segment(vec![0; MOST_BYTES + 1]))).is_err());
    }
}
