//! Proof of the secret: both sides of a connection show that they know it, without showing it.
//!
//! `proof(role) = HMAC-SHA256(secret, role ‖ client nonce ‖ server nonce)`; the roles keep a proof from being
//! sent back. What a connection is about is named by a token, which is derived from the secret one way.

use crate::error::Result;
use crate::os::random;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

/// 128 bits that only the members of a job know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub(crate) [u8; 16]);

/// Names a secret without giving it away.
pub type Token = [u8; 16];

/// A random number used once.
pub type Nonce = [u8; 16];

/// Shows that the secret is known.
pub type Proof = [u8; 32];

/// Which side of a connection proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that listened.
    Server,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

impl Secret {
    /// A new one.
    pub fn random() -> Result<Self> {
        random::bytes().map(Self)
    }

    /// One that everybody can make who knows `text`.
    pub fn of_text(text: &str) -> Self {
        Self(first_half(Sha256::new().chain_update(b"accl text").chain_update(text).finalize().into()))
    }

    /// The name under which this secret is looked up.
    pub fn token(&self) -> Token {
        first_half(self.mac(&[b"accl token"]).finalize().into_bytes().into())
    }

    /// A secret for something that belongs to this one.
    #[must_use]
    pub fn derive(&self, what: &[u8]) -> Self {
        Self(first_half(self.mac(&[b"accl derived", what]).finalize().into_bytes().into()))
    }

    /// The proof of one side.
    pub fn prove(&self, role: Role, client: &Nonce, server: &Nonce) -> Proof {
        self.proof_mac(role, client, server).finalize().into_bytes().into()
    }

    /// True if `proof` is the other side's; takes the same time whatever it is.
    pub fn accepts(&self, proof: &Proof, role: Role, client: &Nonce, server: &Nonce) -> bool {
        self.proof_mac(role, client, server).verify_slice(proof).is_ok()
    }

    fn proof_mac(&self, role: Role, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
        let label: &[u8] = match role {
            Role::Client => b"accl client",
            Role::Server => b"accl server",
        };
        self.mac(&[label, client, server])
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any key length will do");
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

/// Detects damage, not malice.
pub fn checksum(bytes: &[u8]) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let mut sum = [0; 8];
    sum.copy_from_slice(&digest[..8]);
    sum
}

fn first_half(digest: [u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_depend_on_everything() {
        let (secret, other) = (Secret([1; 16]), Secret([2; 16]));
        let proof = secret.prove(Role::Client, &[3; 16], &[4; 16]);
        assert!(secret.accepts(&proof, Role::Client, &[3; 16], &[4; 16]));
        assert!(!other.accepts(&proof, Role::Client, &[3; 16], &[4; 16]));
        assert!(!secret.accepts(&proof, Role::Server, &[3; 16], &[4; 16]));
        assert!(!secret.accepts(&proof, Role::Client, &[4; 16], &[3; 16]));
        assert_ne!(secret.token(), other.token());
        assert_ne!(secret.derive(b"a"), secret.derive(b"b"));
        assert_ne!(Secret::of_text("a"), Secret::of_text("b"));
    }
}
