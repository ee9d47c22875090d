//! Encryption of connections with a key that all processes of a job were given beforehand (a *pre-shared key*).
//!
//! * [`key`](Key): from the pre-shared key, one key for each connection and direction. * `record`: bytes as sealed records.
//!   * [`Socket`]: a stream socket whose bytes are plain, or records.
//!
//! **What it gives.** Nobody without the key can read what passes, and nothing that was changed, cut, repeated, left out or
//! put in another order is taken for what the other end has sent. Both ends know that they have the same key before anything else is
//! said, and what passes one way cannot be sent back, or on another connection.
//!
//! **What it does not.** Whoever learns the key can read what was recorded before (no forward secrecy). A key that can be guessed
//! can be found by trying, from one recorded greeting. How much is sent when, and between whom, is visible. Who stands in
//! between can end a connection, which is an error of the ranks at its ends.
//!
//! No I/O but in `socket`, and no randomness: the numbers of chance are those of the greeting (`bootstrap`).

mod key;
mod record;
mod socket;

pub use key::{End, Key, KeyProof, Session};
pub use record::{MOST_SEALED_BYTES, Opener, RECORD_OVERHEAD_BYTES, Sealer};
pub use socket::Socket;
