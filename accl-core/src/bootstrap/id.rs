//! The unique id: 128 bytes that one process makes and all ranks are given.
//!
//! ```text
//!   0: "ACCLUID1"            8: secret [16]
//!  24: kernel u64           32: creator's process number u32
//!  36: name length u8       37: name of the creator's local service [75]
//! 112: zero [8]            120: checksum [8]
//! ```
//! Numbers are little-endian. Position and encoding of the 128 bytes do not matter to us.

use super::auth::{self, Secret};
use super::service::Service;
use crate::error::{Error, Result};
use crate::topo::Place;

const MAGIC: &[u8; 8] = b"ACCLUID1";
const NAME_AT: usize = 37;
const NAME_MOST: usize = 75;
const CHECKSUM_AT: usize = 120;

/// What the ranks of a new communicator have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// What a unique id says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Invitation {
    pub(super) secret: Secret,
    pub(super) kernel: u64,
    pub(super) creator: u32,
    pub(super) service: String,
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The whole of it would let readers of a log join the job.
        formatter.write_str("UniqueId(…)")
    }
}

impl UniqueId {
    /// A new id, whose root lives in this process until all ranks have come.
    pub fn create() -> Result<Self> {
        let secret = Secret::random()?;
        let service = Service::of_process()?;
        service.expect_ranks(secret)?;
        let place = Place::here()?;
        Self::encode(&Invitation {
            secret,
            kernel: place.kernel,
            creator: place.pid,
            service: service.name().to_string(),
        })
    }

    /// Says that nobody will join by this id: of several ids the first one gathers all ranks.
    pub fn retire(&self) -> Result<()> {
        let invitation = self.decode()?;
        let service = Service::of_process()?;
        if invitation.service == service.name() {
            service.expect_nobody(invitation.secret);
        }
        Ok(())
    }

    pub(crate) fn encode(invitation: &Invitation) -> Result<Self> {
        let name = invitation.service.as_bytes();
        if name.len() > NAME_MOST {
            return Err(Error::internal("the name of the local service is too long"));
        }
        let mut bytes = [0u8; 128];
        bytes[8..24].copy_from_slice(&invitation.secret.0);
        bytes[24..32].copy_from_slice(&invitation.kernel.to_le_bytes());
        bytes[32..36].copy_from_slice(&invitation.creator.to_le_bytes());
        bytes[36] = name.len() as u8;
        bytes[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
        Ok(Self(bytes).repaired())
    }

    /// The same with the magic and the checksum that belong to it.
    pub(crate) fn repaired(mut self) -> Self {
        self.0[..8].copy_from_slice(MAGIC);
        let sum = auth::checksum(&self.0[..CHECKSUM_AT]);
        self.0[CHECKSUM_AT..].copy_from_slice(&sum);
        self
    }

    /// Reads what the id says; damage is refused here.
    pub(crate) fn decode(&self) -> Result<Invitation> {
        let bytes = &self.0;
        let name_bytes = usize::from(bytes[36]);
        let sound = &bytes[..8] == MAGIC
            && bytes[CHECKSUM_AT..] == auth::checksum(&bytes[..CHECKSUM_AT])
            && name_bytes <= NAME_MOST;
        let name = std::str::from_utf8(&bytes[NAME_AT..NAME_AT + name_bytes.min(NAME_MOST)]);
        let (true, Ok(name)) = (sound, name) else {
            return Err(Error::argument(
                "not a valid unique id: it was not made by ncclGetUniqueId of this library, or was damaged on its way; \
                 hand all 128 bytes to every rank unchanged",
            ));
        };
        Ok(Invitation {
            secret: Secret(array(&bytes[8..24])),
            kernel: u64::from_le_bytes(array(&bytes[24..32])),
            creator: u32::from_le_bytes(array(&bytes[32..36])),
            service: name.to_string(),
        })
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out(secret: [u8; 16], kernel: u64, creator: u32, service in "[a-z0-9-]{0,75}") {
            let id = UniqueId::encode(&Invitation { secret: Secret(secret), kernel, creator, service: service.clone() });
            let back = id.unwrap().decode().unwrap();
            prop_assert_eq!((back.secret.0, back.kernel, back.creator, back.service), (secret, kernel, creator, service));
        }

        #[test]
        fn one_changed_bit_is_found(bit in 0usize..1024) {
            let invitation =
                Invitation { secret: Secret([7; 16]), kernel: 1, creator: 2, service: "accl-service".to_string() };
            let mut id = UniqueId::encode(&invitation).unwrap();
            id.0[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(id.decode().unwrap_err().kind(), crate::ErrorKind::InvalidArgument);
        }

        #[test]
        fn garbage_is_refused(bytes in prop::array::uniform32(any::<u32>())) {
            let mut id = UniqueId([0; 128]);
            for (place, word) in id.0.chunks_mut(4).zip(bytes) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            prop_assert!(id.decode().is_err());
        }
    }
}
