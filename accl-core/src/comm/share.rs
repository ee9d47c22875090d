//! The memory that the ranks of a communicator share: the process of the first rank makes it, the others fetch it.

use crate::bootstrap::{Offer, PeerRecord, Secret, Token, fetch};
use crate::error::{Error, Result};
use crate::os::cpu;
use crate::topo::{Machine, Place};
use crate::transport::shm::Arena;
use crate::transport::{mem, shm};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

/// An arena, and the offer by which other processes get it; keep both until all of them have it.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) arena: Arc<Arena>,
    _offer: Option<Offer>,
}

type Slot = Arc<Mutex<Weak<Arena>>>;

/// The arenas of this process: ranks that are threads of it map the memory once.
static ARENAS: Mutex<Option<HashMap<Token, Slot>>> = Mutex::new(None);

/// The arena of `peers`, of which this rank is one; `secret` is theirs alone. Whoever makes it asks for the figures of
/// the `machine`, and says them to all.
pub(super) fn share_memory(
    peers: &[PeerRecord],
    secret: Secret,
    allowed: bool,
    machine: &dyn Fn() -> Result<Machine>,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Sharing> {
    let secret = secret.derive(b"arena");
    let here = Place::here()?;
    let alone = peers.iter().all(|peer| peer.place.shares_process(&here));
    if !alone {
        check(peers, &here, allowed)?;
    }
    let slot = slot(secret.token());
    let mut known = slot.lock();
    if let Some(arena) = known.upgrade() {
        return Ok(Sharing { arena, _offer: None });
    }
    let sharing = if alone {
        let arena = mem::arena(peers.len())?;
        arena.set_machine(&machine()?, cpu::shared_cores());
        Sharing { arena, _offer: None }
    } else if peers[0].place.shares_process(&here) {
        let (arena, file) = shm::create(peers.len())?;
        arena.set_machine(&machine()?, cpu::shared_cores());
        Sharing { arena, _offer: Some(Offer::new(secret, file)?) }
    } else {
        let file = fetch(&peers[0].service(), secret, give_up)?;
        Sharing { arena: shm::open(file.as_fd(), peers.len())?, _offer: None }
    };
    *known = Arc::downgrade(&sharing.arena);
    Ok(sharing)
}

fn slot(token: Token) -> Slot {
    let mut arenas = ARENAS.lock();
    let arenas = arenas.get_or_insert_default();
    // A slot that nobody else holds is not locked by anybody either.
    arenas.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
    arenas.entry(token).or_default().clone()
}

/// Where the transports between processes are chosen: memory, which must be allowed, and needs one host. What carries
/// data between hosts belongs here.
fn check(peers: &[PeerRecord], here: &Place, allowed: bool) -> Result<()> {
    let own = peers.iter().find(|peer| peer.place.shares_process(here));
    let own = own.ok_or_else(|| Error::internal("a rank that is not in its own list"))?;
    if let Some(rank) = peers.iter().position(|peer| !peer.shares_host(own)) {
        return Err(Error::usage(format!(
            "rank {rank} ({}) is on another host than {}, in another network namespace, or has another NCCL_HOSTID: they \
             have found each other, but this version carries no data between hosts; run all ranks on one",
            peers[rank].describe(),
            own.describe()
        )));
    }
    if !allowed {
        return Err(Error::usage(
            "SHM_DISABLE=1 forbids memory shared between processes, and this version has no other transport between \
             processes; unset it",
        ));
    }
    Ok(())
}
