//! The memory that the ranks of a communicator share: the process of the first rank makes it, the others fetch it.

use crate::bootstrap::{Offer, PeerRecord, Secret, Token, fetch};
use crate::error::{Error, Result};
use crate::os::cpu;
use crate::topo::{Machine, Place};
use crate::transport::shm::{Arena, Members};
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

/// The arena of those of `peers` that are `members` of this rank's host; `secret` is all peers' alone. Whoever makes it
/// asks for the figures of the `machine`, and says them to all.
pub(super) fn share_memory(
    peers: &[PeerRecord],
    members: &Members,
    secret: Secret,
    machine: &dyn Fn() -> Result<Machine>,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Sharing> {
    let local = || (0..peers.len()).filter(|rank| members.has(*rank));
    let first = local().next().ok_or_else(|| Error::internal("a host without ranks"))?;
    // Hosts that share a kernel, as by NCCL_HOSTID, must not take each other's memory for their own.
    let secret = secret.derive(format!("arena of rank {first}").as_bytes());
    let here = Place::here()?;
    let alone = local().all(|rank| peers[rank].place.shares_process(&here));
    let slot = slot(secret.token());
    let mut known = slot.lock();
    if let Some(arena) = known.upgrade() {
        return Ok(Sharing { arena, _offer: None });
    }
    let sharing = if alone {
        let arena = mem::arena(members.clone())?;
        arena.set_machine(&machine()?, cpu::shared_cores());
        Sharing { arena, _offer: None }
    } else if peers[first].place.shares_process(&here) {
        let (arena, file) = shm::create(members.clone())?;
        arena.set_machine(&machine()?, cpu::shared_cores());
        Sharing { arena, _offer: Some(Offer::new(secret, file)?) }
    } else {
        let file = fetch(&peers[first].service(), secret, give_up)?;
        Sharing { arena: shm::open(file.as_fd(), members.clone())?, _offer: None }
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
