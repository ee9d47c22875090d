//! Calls as one word, and in words.
//!
//! `what` of a call: kind u8 | dtype u8 | op u8 | how u8 | root u32. Ranks make the same call exactly if this word and the count are
//! the same: it is the fingerprint that they compare on the board. `how` says how it is carried out.

use crate::types::{Collective, DataType, Rank, ReduceOp};
use std::fmt::Write;

/// The place of "not applicable" in a word.
pub const NONE: u64 = 0xff;
/// Kinds beside the collectives: the rank to send to, or to receive from, stands in the root's place; the count is of bytes.
pub const SEND: u64 = 32;
/// As [`SEND`].
pub const RECV: u64 = 33;

/// The word of a send or a receive.
#[inline]
pub fn transfer(send: bool, peer: Rank) -> u64 {
    (if send { SEND } else { RECV }) | NONE << 8 | NONE << 16 | (peer as u64) << 32
}

/// A call in words.
pub fn describe(what: u64, count: u64) -> String {
    let byte = |shift: u32| (what >> shift & 0xff) as u8;
    match what & 0xff {
        SEND => return format!("Send({count} bytes, to rank {})", what >> 32),
        RECV => return format!("Recv({count} bytes, from rank {})", what >> 32),
        _ => {}
    }
    let Some(kind) = Collective::from_code(byte(0)) else { return "an unknown call".to_string() };
    let mut text = match DataType::from_abi(i32::from(byte(8))) {
        Some(dtype) => format!("{kind}({count} × {dtype}"),
        None => format!("{kind}({count} bytes"),
    };
    if let Some(op) = ReduceOp::ALL.iter().find(|op| **op as u8 == byte(16)) {
        let _ = write!(text, ", {op}");
    }
    if kind.has_root() {
        let _ = write!(text, ", root {}", what >> 32);
    }
    text.push(')');
    text
}

/// Bytes of a call's count.
pub fn bytes(what: u64, count: u64) -> u64 {
    let dtype = DataType::from_abi((what >> 8 & 0xff) as i32);
    count.saturating_mul(dtype.map_or(1, |dtype| dtype.size_bytes() as u64))
}

/// The call without how it is carried out.
pub fn without_how(what: u64) -> u64 {
    what & !(0xff << 24)
}
