//! How a message begins on a connection.
//!
//! ```text
//!  0: "ACLM" | flags u32 (1: factor, 2: call)       8: bytes u64      16: tag u64
//! 24: factor [8]      32: call: what u64, count u64      48: the bytes
//! ```
//! Numbers are little-endian; what is not there is zero. A rank that has failed sends, in place of a message, why:
//! ```text
//!  0: "ACLF" | kind u32      8: bytes u64 (at most 1024)      16: zero [32]      48: text
//! ```

use crate::transport::MessageHead;
use crate::transport::board::PostedCall;
use crate::types::Scalar;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 48;
const MESSAGE: u32 = u32::from_le_bytes(*b"ACLM");
const FAILURE: u32 = u32::from_le_bytes(*b"ACLF");
const HAS_SCALE: u32 = 1;
const HAS_CALL: u32 = 2;
/// How long the text of a failure may be.
pub(super) const FAILURE_TEXT_BYTES: usize = 1024;

/// What a head says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Head {
    /// A message comes.
    Message(MessageHead),
    /// No more messages come: a text of so many bytes says why.
    Failure {
        /// The kind of error.
        code: u32,
        /// Bytes of the text.
        bytes: usize,
    },
}

impl Head {
    /// The head as bytes.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut words = [0; HEAD_BYTES / 8];
        match self {
            Self::Message(head) => {
                let flags = if head.scale.is_some() { HAS_SCALE } else { 0 }
                    | if head.call.is_some() { HAS_CALL } else { 0 };
                let call = head.call.unwrap_or(PostedCall { what: 0, count: 0 });
                let scale = u64::from_le_bytes(head.scale.unwrap_or_default().0);
                let first = u64::from(MESSAGE) | u64::from(flags) << 32;
                words = [first, head.bytes as u64, head.tag, scale, call.what, call.count];
            }
            Self::Failure { code, bytes } => {
                words[0] = u64::from(FAILURE) | u64::from(*code) << 32;
                words[1] = *bytes as u64;
            }
        }
        let mut bytes = [0; HEAD_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// None if it is not one. A head has one form: nothing can be hidden in another.
    pub fn decode(head: &[u8; HEAD_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let word = |at: usize| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        let bytes = usize::try_from(word(8)).ok()?;
        let decoded = match (number(0), number(4)) {
            (MESSAGE, flags) if flags <= HAS_SCALE | HAS_CALL => Self::Message(MessageHead {
                bytes,
                tag: word(16),
                scale: (flags & HAS_SCALE != 0).then(|| Scalar(word(24).to_le_bytes())),
                call: (flags & HAS_CALL != 0).then(|| PostedCall { what: word(32), count: word(40) }),
            }),
            (FAILURE, code) if bytes <= FAILURE_TEXT_BYTES => Self::Failure { code, bytes },
            _ => return None,
        };
        (decoded.encode() == *head).then_some(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_out_as_they_went_in() {
        let call = PostedCall { what: 0x0102_0304_0506_0708, count: u64::MAX };
        for scale in [None, Some(Scalar([1, 2, 3, 4, 5, 6, 7, 8]))] {
            for call in [None, Some(call)] {
                let head = Head::Message(MessageHead { bytes: 1 << 40, tag: 77, scale, call });
                assert_eq!(Head::decode(&head.encode()), Some(head));
            }
        }
        let failure = Head::Failure { code: 6, bytes: FAILURE_TEXT_BYTES };
        assert_eq!(Head::decode(&failure.encode()), Some(failure));
        let long = Head::Failure { code: 6, bytes: FAILURE_TEXT_BYTES + 1 };
        assert_eq!(Head::decode(&long.encode()), None);
        let mut damaged = Head::Message(MessageHead::default()).encode();
        damaged[4] = 4;
        assert_eq!(Head::decode(&damaged), None);
        (damaged[4], damaged[25]) = (0, 1);
        assert_eq!(Head::decode(&damaged), None, "a factor that is not there");
        assert_eq!(Head::decode(&[0; HEAD_BYTES]), None);
    }
}
