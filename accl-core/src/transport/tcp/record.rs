//! What leaders of hosts tell each other, as bytes.
//!
//! ```text
//! record:  0: "ACLC" | what u8 | code u8 | bytes u16 | rank u32 | zero u32      16: text of so many bytes
//! what: 1 alive (nothing else is set) | 2 failure (code: its kind) | 3 gone (code: how; rank: who)
//! ```
//! Numbers are little-endian.

use crate::error::{Error, ErrorKind, Result};
use crate::transport::shm::RankState;

const MAGIC: u32 = u32::from_le_bytes(*b"ACLC");
const HEAD_BYTES: usize = 16;
const TEXT_BYTES: usize = 1024;
const ALIVE: u8 = 1;
const FAILURE: u8 = 2;
const GONE: u8 = 3;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Nothing is new.
    Alive,
    /// The communicator has failed.
    Failure(Error),
    /// A rank has left or aborted.
    Gone(u32, RankState),
}

impl Record {
    /// The record as bytes; a long text is cut.
    pub fn encode(&self) -> Vec<u8> {
        let (what, code, rank, text) = match self {
            Self::Alive => (ALIVE, 0, 0, ""),
            Self::Failure(error) => (
                FAILURE,
                error.kind().code(),
                0,
                &error.text()[..error.text().floor_char_boundary(TEXT_BYTES)],
            ),
            Self::Gone(rank, state) => (GONE, *state as u8, *rank, ""),
        };
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([what, code]);
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(rank.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(text.as_bytes());
        bytes
    }

    /// Takes the first record off, once all of it is there; an error (Remote) if it is none.
    pub fn take(inbox: &mut Vec<u8>) -> Result<Option<Self>> {
        let Some(head) = inbox.first_chunk::<HEAD_BYTES>().copied() else { return Ok(None) };
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (what, code, rank) = (head[4], head[5], number(8));
        let bytes = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let wrong = || Error::remote("a record between hosts that is none");
        if number(0) != MAGIC || bytes > TEXT_BYTES || number(12) != 0 {
            return Err(wrong());
        }
        let Some(text) = inbox.get(HEAD_BYTES..HEAD_BYTES + bytes) else { return Ok(None) };
        let record = match (what, code, rank, bytes) {
            (ALIVE, 0, 0, 0) => Self::Alive,
            (FAILURE, _, 0, _) => {
                let kind = ErrorKind::from_code(code).ok_or_else(wrong)?;
                let text = std::str::from_utf8(text).map_err(|_| wrong())?;
                Self::Failure(Error::new(kind, text))
            }
            (GONE, 2, _, 0) => Self::Gone(rank, RankState::Left),
            (GONE, 3, _, 0) => Self::Gone(rank, RankState::Aborted),
            _ => return Err(wrong()),
        };
        inbox.drain(..HEAD_BYTES + bytes);
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in() {
        let failure = Record::Failure(Error::usage("ranks disagree: ä"));
        let records =
            [Record::Alive, failure, Record::Gone(7, RankState::Left), Record::Gone(0, RankState::Aborted)];
        let mut bytes: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        let end = bytes.pop().unwrap();
        for record in &records[..3] {
            assert_eq!(Record::take(&mut bytes).unwrap().as_ref(), Some(record));
        }
        assert_eq!(Record::take(&mut bytes).unwrap(), None);
        bytes.push(end);
        assert_eq!(Record::take(&mut bytes).unwrap().as_ref(), Some(&records[3]));
        assert!(bytes.is_empty());
        let long = Record::Failure(Error::remote("é".repeat(5000)));
        let Record::Failure(cut) = Record::take(&mut long.encode()).unwrap().unwrap() else { panic!() };
        assert_eq!(cut.text().len(), TEXT_BYTES);
        for wrong in [[0; 16], *b"ACLC\x09\0\0\0\0\0\0\0\0\0\0\0", *b"ACLC\x01\0\xff\xff\0\0\0\0\0\0\0\0"] {
            assert_eq!(Record::take(&mut wrong.to_vec()).unwrap_err().kind(), ErrorKind::Remote);
        }
    }
}
