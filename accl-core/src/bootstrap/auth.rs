//! Proof of the secret: both sides of a connection show that they know it, without showing it; and with which key they encrypt, if
//! they do ([`crate::encryption`]).
//!
//! `proof(role) = HMAC-SHA256(secret, role ‖ client nonce ‖ server nonce ‖ key proof)`; the roles keep a proof from being
//! sent back. What a connection is about is named by a token, which is derived from the secret one way. Who has no key has an empty key
//! proof. Since the secret covers it, nobody but a member of the job can say that its keys differ.

use crate::encryption::{End, Key, KeyProof, Session};
use crate::error::{Error, Result};
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

/// Shows that the secret is known, and the encryption key, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Of the secret; covers the other one.
    pub secret: [u8; 32],
    /// Of the key. None without one.
    pub key: Option<KeyProof>,
}

/// How the keys of the two sides of a connection differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// This side has one, the other has none.
    OnlyOurs,
    /// The other way round.
    OnlyTheirs,
    /// Both have one, and they are not the same.
    Keys,
}

/// What both sides of one connection prove: that they know the secret, now. A nonce is a random number used once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// What it is about.
    pub secret: Secret,
    /// Of the side that connected.
    pub client: Nonce,
    /// Of the side that listened.
    pub server: Nonce,
}

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

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any key length will do");
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl Greeting {
    /// The proof of one side, which encrypts with `key`.
    pub fn prove(&self, role: Role, key: Option<&Key>) -> Proof {
        let key = key.map(|key| key.prove(role.end(), &self.context()));
        Proof { secret: self.proof_mac(role, key.as_ref()).finalize().into_bytes().into(), key }
    }

    /// True if `proof` is the other side's, whatever its key is; takes the same time whatever it is.
    pub fn accepts(&self, proof: &Proof, role: Role) -> bool {
        self.proof_mac(role, proof.key.as_ref()).verify_slice(&proof.secret).is_ok()
    }

    /// Compares the other side's key, by a proof that was accepted, with this side's. What this one encrypts with, if both have the same;
    /// none if neither has one.
    pub fn agree(
        &self,
        proof: &Proof,
        role: Role,
        key: Option<&Key>,
    ) -> std::result::Result<Option<Session>, Difference> {
        match (key, &proof.key) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(Difference::OnlyOurs),
            (None, Some(_)) => Err(Difference::OnlyTheirs),
            (Some(key), Some(proof)) if key.accepts(proof, role.end(), &self.context()) => {
                Ok(Some(key.session(role.other().end(), &self.context())))
            }
            (Some(_), Some(_)) => Err(Difference::Keys),
        }
    }

    fn proof_mac(&self, role: Role, key: Option<&KeyProof>) -> Hmac<Sha256> {
        let label: &[u8] = match role {
            Role::Client => b"accl client",
            Role::Server => b"accl server",
        };
        self.secret.mac(&[label, &self.client, &self.server, key.map_or(&[], |proof| proof)])
    }

    /// What makes this connection different from all others.
    fn context(&self) -> Vec<u8> {
        [self.secret.token(), self.client, self.server].concat()
    }
}

impl Role {
    fn end(self) -> End {
        match self {
            Self::Client => End::Dialler,
            Self::Server => End::Listener,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl Difference {
    /// What is wrong between this process and `whom`, and what can be done.
    pub fn between(self, whom: &str, here: &str) -> Error {
        let what = match self {
            Self::OnlyOurs => format!("{here} encrypts its connections, and {whom} has no encryption key"),
            Self::OnlyTheirs => format!("{whom} encrypts its connections, and {here} has no encryption key"),
            Self::Keys => format!("{whom} encrypts its connections with another key than {here}"),
        };
        Error::usage(format!(
            "{what}; give all processes of the job the same key (ncclSetEncryption, or a file that ACCL_ENCRYPTION_KEY_FILE names)"
        ))
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
        let greeting = Greeting { secret, client: [3; 16], server: [4; 16] };
        for key in [None, Some(Key::new(b"the key of a job"))] {
            let proof = greeting.prove(Role::Client, key.as_ref());
            assert!(greeting.accepts(&proof, Role::Client));
            assert!(!Greeting { secret: other, ..greeting }.accepts(&proof, Role::Client));
            assert!(!greeting.accepts(&proof, Role::Server));
            assert!(!Greeting { client: [4; 16], server: [3; 16], ..greeting }.accepts(&proof, Role::Client));
            // Another proof of the key, or none, or one where there is none.
            for changed in [None, Some([5; 32])] {
                assert!(
                    !greeting.accepts(&Proof { key: changed, ..proof }, Role::Client) || changed == proof.key
                );
            }
        }
        assert_ne!(secret.token(), other.token());
        assert_ne!(secret.derive(b"a"), secret.derive(b"b"));
        assert_ne!(Secret::of_text("a"), Secret::of_text("b"));
    }

    #[test]
    fn keys_are_compared_and_differences_are_told_to_both() {
        let greeting = Greeting { secret: Secret([1; 16]), client: [3; 16], server: [4; 16] };
        let (one, other) = (Key::new(b"the key of a job"), Key::new(b"the key of another"));
        for (client, server, expected) in [
            (None, None, None),
            (Some(&one), Some(&one), None),
            (Some(&one), None, Some((Difference::OnlyOurs, Difference::OnlyTheirs))),
            (Some(&one), Some(&other), Some((Difference::Keys, Difference::Keys))),
        ] {
            let (of_client, of_server) =
                (greeting.prove(Role::Client, client), greeting.prove(Role::Server, server));
            let at_client = greeting.agree(&of_server, Role::Server, client);
            let at_server = greeting.agree(&of_client, Role::Client, server);
            let found = at_client.as_ref().err().copied().zip(at_server.as_ref().err().copied());
            assert_eq!(found, expected);
            if let (Ok(Some(mut at_client)), Ok(Some(mut at_server))) = (at_client, at_server) {
                let mut record = Vec::new();
                at_client.sealer.seal([b"hello", b""], &mut record);
                assert_eq!(at_server.opener.open(&mut record).unwrap(), b"hello");
            }
        }
        let error = Difference::OnlyTheirs.between("process 7 on host a", "this process on host b");
        assert!(
            error.text().starts_with(
                "process 7 on host a encrypts its connections, and this process on host b has no"
            )
        );
    }
}
