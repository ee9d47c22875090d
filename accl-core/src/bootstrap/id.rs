//! The unique id: 128 bytes that one process makes and all ranks are given.
//!
//! ```text
//!   0: "ACCLUID2"            8: secret [16]
//!  24: kind u8              25: length u8            26: port u16
//!  28: process number u32   32: neighbourhood u64    40: process u64
//!  48: addresses or text [72]                       120: checksum [8]
//! ```
//! Kind 1 was made by a process: its number and its number of chance, which name its local socket; the number of those
//! who can reach that ([`Place::neighbourhood`]); its TCP port (0 for none), and the addresses where that may be
//! reached, best first: 4 or 6, then 4 or 16 bytes, as many as there is room for. Kind 2 was agreed upon beforehand
//! (`COMM_ID`): the text, of that length. What is not used is zero. Numbers are little-endian. Position and encoding
//! of the 128 bytes do not matter to us.

use super::auth::{self, Secret};
use super::pre_shared;
use super::presence::Presence;
use super::service::{Door, Service};
use crate::config::{Network, RootAddress};
use crate::error::{Error, Result};
use crate::topo::Place;
use std::net::IpAddr;

const MAGIC: &[u8; 8] = b"ACCLUID2";
const CREATED: u8 = 1;
const AGREED: u8 = 2;
const ROOM_AT: usize = 48;
const CHECKSUM_AT: usize = 120;

/// What the ranks of a new communicator have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// What a unique id says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Invitation {
    pub(super) secret: Secret,
    pub(super) meeting: Meeting,
}

/// Where the ranks meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Meeting {
    /// In the process that made the id.
    Created(Creator),
    /// In rank 0's process, at this address (see [`RootAddress`]).
    Agreed(RootAddress),
    /// In rank 0's process, which all know already. Nothing that is handed around.
    Known(Creator),
}

/// A process that made an id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Creator {
    pub(super) neighbourhood: u64,
    pub(super) pid: u32,
    pub(super) process: u64,
    pub(super) port: u16,
    pub(super) addresses: Vec<IpAddr>,
}

impl Invitation {
    /// True if ranks of other hosts cannot have been invited.
    pub(super) fn is_local(&self) -> bool {
        matches!(&self.meeting, Meeting::Created(creator) | Meeting::Known(creator) if creator.port == 0)
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The whole of it would let readers of a log join the job.
        formatter.write_str("UniqueId(…)")
    }
}

impl UniqueId {
    /// A new id, whose root lives in this process until all ranks have come; or, with the setting COMM_ID, the id that
    /// every rank makes of it.
    pub fn create() -> Result<Self> {
        let network = Network::load()?;
        pre_shared::read_key(&network)?;
        if let Some(address) = network.comm_id {
            let secret = Secret::of_text(&address.text);
            return Self::encode(&Invitation { secret, meeting: Meeting::Agreed(address) });
        }
        let presence = Presence::of(&network)?;
        presence.check_resources()?;
        Self::open(Door::Open, presence.port(), presence.addresses().to_vec())
    }

    /// A new id for ranks of this process alone.
    pub fn create_local() -> Result<Self> {
        Self::open(Door::Local, 0, Vec::new())
    }

    /// A number for the log: the same for all who hold the id, and nothing by which one could join.
    pub fn number(&self) -> Result<u64> {
        let token = self.decode()?.secret.token();
        Ok(token[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn open(door: Door, port: u16, addresses: Vec<IpAddr>) -> Result<Self> {
        let secret = Secret::random()?;
        Service::of_process()?.expect_ranks(secret, door)?;
        let place = Place::here()?;
        let creator = Creator {
            neighbourhood: place.neighbourhood(),
            pid: place.pid,
            process: place.process,
            port,
            addresses,
        };
        Self::encode(&Invitation { secret, meeting: Meeting::Created(creator) })
    }

    pub(crate) fn encode(invitation: &Invitation) -> Result<Self> {
        let mut bytes = [0u8; 128];
        bytes[8..24].copy_from_slice(&invitation.secret.0);
        match &invitation.meeting {
            Meeting::Created(creator) => {
                bytes[24] = CREATED;
                bytes[26..28].copy_from_slice(&creator.port.to_le_bytes());
                bytes[28..32].copy_from_slice(&creator.pid.to_le_bytes());
                bytes[32..40].copy_from_slice(&creator.neighbourhood.to_le_bytes());
                bytes[40..48].copy_from_slice(&creator.process.to_le_bytes());
                pack(&creator.addresses, &mut bytes[ROOM_AT..CHECKSUM_AT]);
            }
            Meeting::Agreed(address) => {
                let text = address.text.as_bytes();
                if text.len() > CHECKSUM_AT - ROOM_AT {
                    return Err(Error::internal("the address of rank 0 is too long for a unique id"));
                }
                (bytes[24], bytes[25]) = (AGREED, text.len() as u8);
                bytes[ROOM_AT..ROOM_AT + text.len()].copy_from_slice(text);
            }
            Meeting::Known(_) => return Err(Error::internal("an invitation that needs no unique id")),
        }
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
        let sound = &bytes[..8] == MAGIC && bytes[CHECKSUM_AT..] == auth::checksum(&bytes[..CHECKSUM_AT]);
        let invitation = if sound { self.parse() } else { None };
        // Each id has one form, so that nothing can hide in what is not read.
        let invitation = invitation.filter(|invitation| Self::encode(invitation).as_ref() == Ok(self));
        invitation.ok_or_else(|| {
            Error::argument(
                "not a valid unique id: it was not made by ncclGetUniqueId of this library, or was damaged on its way; \
                 hand all 128 bytes to every rank unchanged",
            )
        })
    }

    fn parse(&self) -> Option<Invitation> {
        let bytes = &self.0;
        let room = &bytes[ROOM_AT..CHECKSUM_AT];
        let meeting = match bytes[24] {
            CREATED => Meeting::Created(Creator {
                port: u16::from_le_bytes(array(&bytes[26..28])),
                pid: u32::from_le_bytes(array(&bytes[28..32])),
                neighbourhood: u64::from_le_bytes(array(&bytes[32..40])),
                process: u64::from_le_bytes(array(&bytes[40..48])),
                addresses: unpack(room)?,
            }),
            AGREED => {
                let text = std::str::from_utf8(room.get(..usize::from(bytes[25]))?).ok()?;
                Meeting::Agreed(RootAddress::parse(text).ok()?)
            }
            _ => return None,
        };
        Some(Invitation { secret: Secret(array(&bytes[8..24])), meeting })
    }
}

/// As many addresses as there is room for.
fn pack(addresses: &[IpAddr], mut room: &mut [u8]) {
    for ip in addresses {
        let (family, bytes): (u8, &[u8]) = match ip {
            IpAddr::V4(ip) => (4, &ip.octets()),
            IpAddr::V6(ip) => (6, &ip.octets()),
        };
        if room.len() > bytes.len() {
            room[0] = family;
            room[1..=bytes.len()].copy_from_slice(bytes);
            room = &mut room[1 + bytes.len()..];
        }
    }
}

fn unpack(mut room: &[u8]) -> Option<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    while let Some((family, rest)) = room.split_first() {
        let (ip, rest) = match family {
            0 => break,
            4 => rest.split_first_chunk::<4>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
            6 => rest.split_first_chunk::<16>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
            _ => return None,
        };
        addresses.push(ip);
        room = rest;
    }
    Some(addresses)
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

    fn invitation() -> impl Strategy<Value = Invitation> {
        let created = (any::<(u64, u32, u64, u16)>(), prop::collection::vec(any::<IpAddr>(), 0..4)).prop_map(
            |((neighbourhood, pid, process, port), addresses)| {
                Meeting::Created(Creator { neighbourhood, pid, process, port, addresses })
            },
        );
        let agreed = ("[a-z0-9.-]{1,60}", 1u16..)
            .prop_map(|(host, port)| Meeting::Agreed(RootAddress::parse(&format!("{host}:{port}")).unwrap()));
        (any::<[u8; 16]>(), prop_oneof![created, agreed])
            .prop_map(|(secret, meeting)| Invitation { secret: Secret(secret), meeting })
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(invitation in invitation()) {
            let back = UniqueId::encode(&invitation).unwrap().decode().unwrap();
            prop_assert_eq!(back, invitation);
        }

        #[test]
        fn one_changed_bit_is_found(invitation in invitation(), bit in 0usize..1024) {
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

    #[test]
    fn addresses_that_do_not_fit_are_left_out() {
        let v6: Vec<IpAddr> = (1..=5u128).map(|bits| IpAddr::V6(bits.into())).collect();
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let addresses = [&v6[..3], &[v4], &v6[3..], &[v4; 2]].concat();
        let meeting = Meeting::Created(Creator { addresses, ..Creator::default() });
        let id = UniqueId::encode(&Invitation { secret: Secret([1; 16]), meeting }).unwrap();
        let Meeting::Created(creator) = id.decode().unwrap().meeting else { panic!() };
        assert_eq!(creator.addresses, [&v6[..3], &[v4; 3]].concat());
    }
}
