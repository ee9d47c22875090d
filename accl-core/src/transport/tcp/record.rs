//! What leaders of hosts tell each other, as bytes.
//!
//! ```text
//! record:  0: "ACLC" | what u8 | code u8 | bytes u16 | rank u32 | zero u32      16: text of so many bytes
//! what: 1 alive (nothing else is set) | 2 failure (code: its kind) | 3 gone (code: how; rank: who)
//!     | 4 word (code: 0 free, 1 stopped, 2 waits in a collective, 3 for a send, 4 for a receive; rank: whose; instead of a text:)
//! word:    0: number u64 (of the operation) | serial u32 | asks u32 (0 or 1)    16: needs, each u32, at most 16
//! ```
//! The peer of a send or a receive is the first of the needs.
//!
//! Numbers are little-endian.

use crate::error::{Error, ErrorKind, Result};
use crate::transport::shm::{MOST_NEEDS, RankState, Waiting, Word};
use crate::types::Rank;

const MAGIC: u32 = u32::from_le_bytes(*b"ACLC");
const HEAD_BYTES: usize = 16;
const TEXT_BYTES: usize = 1024;
const ALIVE: u8 = 1;
const FAILURE: u8 = 2;
const GONE: u8 = 3;
const WORD: u8 = 4;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Nothing is new.
    Alive,
    /// The communicator has failed.
    Failure(Error),
    /// A rank has left or aborted.
    Gone(u32, RankState),
    /// What a rank waits for.
    Word(Telling),
}

/// What the leader of its host tells of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Telling {
    /// Of whom.
    pub rank: u32,
    /// Later ones have higher serials.
    pub serial: u32,
    /// Its host wants to know the same of the others.
    pub asks: bool,
    /// What the rank says; never [`Word::Unheard`].
    pub word: Word,
}

impl Record {
    /// The record as bytes; a long text is cut.
    pub fn encode(&self) -> Vec<u8> {
        let (what, code, rank, text) = match self {
            Self::Alive => (ALIVE, 0, 0, Vec::new()),
            Self::Failure(error) => {
                let text = &error.text()[..error.text().floor_char_boundary(TEXT_BYTES)];
                (FAILURE, error.kind().code(), 0, text.as_bytes().to_vec())
            }
            Self::Gone(rank, state) => (GONE, *state as u8, *rank, Vec::new()),
            Self::Word(telling) => {
                let (code, text) = telling.encode();
                (WORD, code, telling.rank, text)
            }
        };
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([what, code]);
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(rank.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(text);
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
            (WORD, ..) => Self::Word(Telling::decode(rank, code, text).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        inbox.drain(..HEAD_BYTES + bytes);
        Ok(Some(record))
    }
}

impl Telling {
    /// The code, and what stands in the place of a text.
    fn encode(&self) -> (u8, Vec<u8>) {
        let (code, number, needs): (_, _, &[Rank]) = match &self.word {
            Word::Unheard | Word::Free => (0, 0, &[]),
            Word::Stopped => (1, 0, &[]),
            Word::Waits(Waiting::No, needs) => (2, 0, needs),
            Word::Waits(Waiting::Collective(number, _), needs) => (2, *number, needs),
            Word::Waits(Waiting::Send(_, number), needs) => (3, *number, needs),
            Word::Waits(Waiting::Recv(_, number), needs) => (4, *number, needs),
        };
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.extend(self.serial.to_le_bytes());
        bytes.extend(u32::from(self.asks).to_le_bytes());
        needs.iter().take(MOST_NEEDS).for_each(|need| bytes.extend((*need as u32).to_le_bytes()));
        (code, bytes)
    }

    fn decode(rank: u32, code: u8, bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (serial, rest) = rest.split_first_chunk()?;
        let (asks, rest) = rest.split_first_chunk()?;
        let (needs, odd) = rest.as_chunks();
        let needs: Vec<_> = needs.iter().map(|need| u32::from_le_bytes(*need) as Rank).collect();
        let (number, asks) = (u64::from_le_bytes(*number), u32::from_le_bytes(*asks));
        if !odd.is_empty() || needs.len() > MOST_NEEDS || asks > 1 {
            return None;
        }
        let word = match (code, needs.first(), number) {
            (0, None, 0) => Word::Free,
            (1, None, 0) => Word::Stopped,
            (2, first, _) => Word::Waits(Waiting::Collective(number, first.copied()), needs),
            (3, Some(peer), _) => Word::Waits(Waiting::Send(*peer, number), needs),
            (4, Some(peer), _) => Word::Waits(Waiting::Recv(*peer, number), needs),
            _ => return None,
        };
        Some(Self { rank, serial: u32::from_le_bytes(*serial), asks: asks == 1, word })
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

    #[test]
    fn words_come_out_as_they_went_in() {
        let words = [
            Word::Free,
            Word::Stopped,
            Word::Waits(Waiting::Collective(1 << 40, None), Vec::new()),
            Word::Waits(Waiting::Collective(3, Some(9)), vec![9, 1, 70_000]),
            Word::Waits(Waiting::Send(2, 8), vec![2]),
            Word::Waits(Waiting::Recv(5, 1), (5..5 + MOST_NEEDS).collect()),
        ];
        for (serial, word) in words.into_iter().enumerate() {
            let telling = Telling { rank: 4, serial: serial as u32, asks: serial % 2 == 1, word };
            let record = Record::Word(telling);
            let mut bytes = record.encode();
            assert_eq!(Record::take(&mut bytes).unwrap(), Some(record));
            assert!(bytes.is_empty());
        }
    }

    #[test]
    fn words_that_are_none_are_refused() {
        let needs = (0..MOST_NEEDS).collect();
        let word = Word::Waits(Waiting::Send(0, 1), needs);
        let good = Record::Word(Telling { rank: 0, serial: 7, asks: true, word }).encode();
        let changed = |changes: &[(usize, u8)], bytes: usize| {
            let mut record = good.clone();
            changes.iter().for_each(|(at, byte)| record[*at] = *byte);
            record.resize(HEAD_BYTES + bytes, 0);
            record[6] = bytes as u8;
            Record::take(&mut record)
        };
        let whole = good.len() - HEAD_BYTES;
        assert!(changed(&[], whole).is_ok());
        // An unknown code, asks that is neither, a number that does not belong there, no peer, cut, odd, too long.
        for (changes, bytes) in [
            (&[(5, 9)][..], whole),
            (&[(HEAD_BYTES + 12, 2)], whole),
            (&[(5, 0)], 16),
            (&[], 16),
            (&[], 12),
            (&[], whole - 1),
            (&[], whole + 4),
        ] {
            assert_eq!(changed(changes, bytes).unwrap_err().kind(), ErrorKind::Remote, "{changes:?} {bytes}");
        }
    }
}
