//! From the pre-shared key to those of one connection, by HKDF-SHA256 (RFC 5869).
//!
//! ```text
//! root     = Extract(salt: "accl pre-shared key", the key as it was given)
//! proving  = Expand(root, "accl key proof")             one for all connections, for HMAC-SHA256
//! sending  = Expand(root, "accl connection" | end | context)    one for each connection and direction
//! sealing  = Expand(sending, "accl records")            of the first records, for AES-256-GCM; see `record`
//! ```
//! `end` is the sender: "dialler" or "listener". `context` is what makes the connection different from all others: what it is about, and a fresh
//! random number of each end.

use super::record::{Opener, Sealer};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::hmac;

/// Shows that the key is known.
pub type KeyProof = [u8; 32];

/// The pre-shared key of a job. Its bytes are not kept.
#[derive(Clone)]
pub struct Key {
    root: Prk,
    proving: hmac::Key,
}

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The one that connected.
    Dialler,
    /// The one that listened.
    Listener,
}

/// What one end of a connection seals and opens with.
#[derive(Debug)]
pub struct Session {
    /// For what it sends.
    pub sealer: Sealer,
    /// For what it receives.
    pub opener: Opener,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key(…)")
    }
}

impl Key {
    /// The key of these bytes, which may be any.
    pub fn new(bytes: &[u8]) -> Self {
        let root = Salt::new(HKDF_SHA256, b"accl pre-shared key").extract(bytes);
        let proving = expand(&root, &[b"accl key proof"], hmac::HMAC_SHA256);
        Self { root, proving }
    }

    /// The proof of one end.
    pub fn prove(&self, end: End, context: &[u8]) -> KeyProof {
        let mut proof = [0; 32];
        proof.copy_from_slice(hmac::sign(&self.proving, &proven(end, context)).as_ref());
        proof
    }

    /// True if `proof` is that of the other end, and with this key; takes the same time whatever it is.
    pub fn accepts(&self, proof: &KeyProof, end: End, context: &[u8]) -> bool {
        hmac::verify(&self.proving, &proven(end, context), proof).is_ok()
    }

    /// What `end` seals and opens with. The context must never have been used before.
    pub fn session(&self, end: End, context: &[u8]) -> Session {
        let other = match end {
            End::Dialler => End::Listener,
            End::Listener => End::Dialler,
        };
        Session {
            sealer: Sealer::new(self.sending(end, context)),
            opener: Opener::new(self.sending(other, context)),
        }
    }

    fn sending(&self, end: End, context: &[u8]) -> Prk {
        expand(&self.root, &[b"accl connection", end.label(), context], HKDF_SHA256)
    }
}

impl End {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Dialler => b"dialler",
            Self::Listener => b"listener",
        }
    }
}

fn proven(end: End, context: &[u8]) -> Vec<u8> {
    [end.label(), context].concat()
}

/// One key out of another, for what `length` stands for.
pub(super) fn expand<L, K>(from: &Prk, info: &[&[u8]], length: L) -> K
where
    L: ring::hkdf::KeyType,
    K: for<'a> From<ring::hkdf::Okm<'a, L>>,
{
    #[expect(clippy::expect_used, reason = "HKDF gives up to 255 hashes, and one is asked for")]
    let expanded = from.expand(info, length).expect("one hash can be expanded");
    expanded.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_depend_on_key_end_and_context() {
        let (key, other) = (Key::new(b"one key of a job"), Key::new(b"two key of a job"));
        let proof = key.prove(End::Dialler, b"context");
        assert!(key.accepts(&proof, End::Dialler, b"context"));
        assert!(!other.accepts(&proof, End::Dialler, b"context"));
        assert!(!key.accepts(&proof, End::Listener, b"context"));
        assert!(!key.accepts(&proof, End::Dialler, b"contexT"));
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        assert_eq!(format!("{:?}", Key::new(b"a secret")), "Key(…)");
    }
}
