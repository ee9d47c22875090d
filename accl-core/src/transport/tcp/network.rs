//! One rank's connections to ranks of other hosts.

use super::control::{self, ControlHandle};
use super::wake::{self, Listened, Readiness, Watched};
use crate::bootstrap::{self, LinkExpectation, LinkRequest, LinkSink, PeerRecord, Secret};
use crate::config;
use crate::error::{Error, ErrorKind, Result};
use crate::os::process::Watch;
use crate::os::{clock, network, tcp};
use crate::transport::shm::{Arena, Lane, RankState};
use crate::types::{Rank, named_ranks};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long dialling may take at most.
const DIAL_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection's end waits to be explained: who ended it for a reason of its own has that told by the leaders of hosts,
/// and who was first to fail should be named, not who failed next.
const EXPLANATION_PATIENCE: Duration = Duration::from_secs(1);

/// Asked while something takes long: an error if it is not wanted any more.
pub type GiveUp = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// What is needed to connect with any peer.
pub struct Network {
    world: Arc<World>,
    secret: Secret,
    settings: config::Network,
    dial_patience: Duration,
    give_up: GiveUp,
    inbox: Arc<Inbox>,
    _expectation: LinkExpectation,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Network").field("rank", &self.world.rank).finish_non_exhaustive()
    }
}

/// Who there is.
#[derive(Debug)]
pub struct World {
    pub(super) rank: Rank,
    pub(super) peers: Arc<[PeerRecord]>,
    pub(super) arena: Arc<Arena>,
    /// How long a host may be silent.
    pub(super) patience: Option<Duration>,
}

impl World {
    /// `rank` among `peers`; `arena` is that of its host.
    pub fn new(rank: Rank, peers: &[PeerRecord], arena: &Arc<Arena>, patience: Option<Duration>) -> Self {
        Self { rank, peers: peers.into(), arena: arena.clone(), patience }
    }

    /// The first rank of each host.
    pub(super) fn leaders(&self) -> Vec<Rank> {
        let mut leaders: Vec<Rank> = Vec::new();
        for (rank, peer) in self.peers.iter().enumerate() {
            if !leaders.iter().any(|leader| self.peers[*leader].shares_host(peer)) {
                leaders.push(rank);
            }
        }
        leaders
    }

    /// Ranks for people: with their processes and hosts.
    pub(super) fn named(&self, ranks: &[Rank]) -> String {
        let mut processes: Vec<_> = ranks.iter().map(|rank| self.peers[*rank].describe()).collect();
        processes.dedup();
        format!("{} ({})", named_ranks(ranks), processes.join(", "))
    }
}

/// Connections that peers have dialled, until they are needed.
#[derive(Debug)]
struct Inbox {
    arrived: Mutex<HashMap<(u32, u8), OwnedFd>>,
    /// Those that are about to arrive: the dialler may already have sent all that it has to send.
    coming: Mutex<Vec<(u32, u8)>>,
    world: Arc<World>,
}

impl LinkSink for Inbox {
    fn accept(&self, request: LinkRequest, socket: OwnedFd) {
        self.arrived.lock().insert((request.from_rank, request.purpose), socket);
        self.forget(request);
        if request.purpose == control::PURPOSE {
            wake::tell(&self.world.arena);
        } else {
            self.world.arena.block(self.world.rank).bell.ring();
        }
    }

    fn expect(&self, request: LinkRequest) {
        self.coming.lock().push((request.from_rank, request.purpose));
    }

    fn forget(&self, request: LinkRequest) {
        let mut coming = self.coming.lock();
        let key = (request.from_rank, request.purpose);
        if let Some(index) = coming.iter().position(|one| *one == key) {
            coming.swap_remove(index);
        }
    }
}

impl Network {
    /// The network of the world's rank; from here on it can be dialled by those who know the communicator's `secret`. `give_up`
    /// is asked while this rank dials, which takes at most `timeout`.
    pub fn new(
        world: World,
        secret: Secret,
        settings: config::Network,
        timeout: Option<Duration>,
        give_up: GiveUp,
    ) -> Result<Arc<Self>> {
        let world = Arc::new(world);
        let secret = bootstrap::link_secret(secret);
        let inbox =
            Arc::new(Inbox { arrived: Mutex::default(), coming: Mutex::default(), world: world.clone() });
        let expectation = bootstrap::expect_links(secret, world.rank as u32, inbox.clone())?;
        let dial_patience = timeout.map_or(DIAL_PATIENCE, |timeout| timeout.min(DIAL_PATIENCE));
        let network =
            Self { world, secret, settings, dial_patience, give_up, inbox, _expectation: expectation };
        Ok(Arc::new(network))
    }

    /// Joins the ring of hosts, if this is the rank that does so for its host; `watches` are those of all ranks' processes.
    /// For as long as the handle lives, failures and deaths here are told to other hosts, and theirs to this one.
    pub fn join_hosts(self: &Arc<Self>, watches: Vec<Option<Arc<Watch>>>) -> Result<Option<ControlHandle>> {
        control::join(self, watches)
    }

    /// An error if this rank need not be connected any more.
    pub(super) fn still_wanted(&self) -> Result<()> {
        (self.give_up)()
    }

    pub(super) fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The connection that a peer has dialled, if it has.
    pub(super) fn arrived(&self, peer: Rank, purpose: u8) -> Option<OwnedFd> {
        self.inbox.arrived.lock().remove(&(peer as u32, purpose))
    }

    /// True if a connection has come from a peer, or is about to, and was not looked at.
    fn is_dialled(&self, peer: Rank, purpose: u8) -> bool {
        let key = (peer as u32, purpose);
        // In this order: a connection is in both for a moment, never in none.
        self.inbox.coming.lock().contains(&key) || self.inbox.arrived.lock().contains_key(&key)
    }

    /// The link to a peer for one kind of messages, not connected yet.
    pub fn link(self: &Arc<Self>, peer: Rank, lane: Lane) -> Arc<Link> {
        Arc::new(Link {
            network: self.clone(),
            peer,
            lane,
            connection: OnceLock::new(),
            end: OnceLock::new(),
        })
    }

    /// Connects with a peer, which takes as long as it takes, unless it is known to have gone.
    pub(super) fn dial(&self, peer: Rank, purpose: u8) -> Result<OwnedFd> {
        let world = &self.world;
        let request = LinkRequest { from_rank: world.rank as u32, to_rank: peer as u32, purpose, index: 0 };
        let deadline = clock::now() + self.dial_patience;
        let give_up = || {
            (self.give_up)()?;
            let how = match world.arena.state_of(peer) {
                RankState::Left => "has destroyed its communicator",
                RankState::Aborted => "has aborted the communicator",
                RankState::Absent | RankState::Present => return Ok(()),
            };
            let whom = world.named(&[peer]);
            Err(Error::remote(format!("{whom} {how}, and rank {} needs a connection to it", world.rank)))
        };
        bootstrap::dial_link(&world.peers[peer], self.secret, request, &self.settings, deadline, &give_up)
    }
}

/// One connection, or the intent to have it.
#[derive(Debug)]
pub struct Link {
    network: Arc<Network>,
    peer: Rank,
    lane: Lane,
    connection: OnceLock<Connection>,
    /// Why nothing more comes, and since when that is known.
    end: OnceLock<(Instant, Error)>,
}

#[derive(Debug)]
struct Connection {
    // Before the socket: it must not be watched when its number is given to another one.
    watched: Watched,
    socket: Arc<OwnedFd>,
}

impl Link {
    /// The socket. None as long as the peer has not dialled, where it is its turn to; otherwise this rank dials, which takes
    /// as long as it takes. None, too, for a moment after it has come to an end (see `lost`).
    pub fn socket(&self) -> Result<Option<BorrowedFd<'_>>> {
        if let Some((since, error)) = self.end.get() {
            return if clock::now() - *since < EXPLANATION_PATIENCE { Ok(None) } else { Err(error.clone()) };
        }
        if let Some(connection) = self.connection.get() {
            return Ok(Some(connection.socket.as_fd()));
        }
        let (network, purpose) = (&self.network, self.lane as u8);
        let socket = if network.world.rank < self.peer {
            match network.dial(self.peer, purpose) {
                Ok(socket) => socket,
                // The peer may have failed and closed its door a moment ago.
                Err(error) if error.kind() == ErrorKind::Remote && !network.world.arena.has_failed() => {
                    self.end_with(error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        } else {
            let Some(socket) = network.arrived(self.peer, purpose) else { return Ok(None) };
            socket
        };
        self.connect(socket).map(Some)
    }

    /// Gives the link its connection.
    pub(in crate::transport) fn connect(&self, socket: OwnedFd) -> Result<BorrowedFd<'_>> {
        let (socket, world) = (Arc::new(socket), &self.network.world);
        if let Some(patience) = world.patience {
            network::keep_alive(socket.as_fd(), patience);
        }
        let named = self.network.settings.congestion_control.as_deref();
        tcp::set_congestion_control(socket.as_fd(), named).map_err(|error| {
            let name = named.unwrap_or_default();
            Error::usage(format!(
                "the setting TCP_CONGESTION names {name}, which the kernel refuses: {error}"
            ))
        })?;
        let listened = Listened {
            socket: Arc::downgrade(&socket),
            peer: self.peer,
            whom: world.named(&[self.peer]),
            patience: world.patience,
        };
        let watched = Watched::new(socket.as_fd(), &world.arena, world.rank, listened)?;
        Ok(self.connection.get_or_init(|| Connection { watched, socket }).socket.as_fd())
    }

    /// The two ends of one, over this host's own addresses, between rank 0 and rank 1 of a communicator.
    #[cfg(test)]
    pub(in crate::transport) fn pair() -> [Arc<Self>; 2] {
        use crate::transport::{mem, shm::Members};
        let listener = network::listen_at((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let dialled = network::start_connect(listener.local_addr().unwrap()).unwrap();
        network::wait_any(&[(listener.as_fd(), false)], Duration::from_secs(20)).unwrap();
        let taken = OwnedFd::from(listener.accept().unwrap().0);
        let (secret, mut rank) = (Secret::random().unwrap(), 0);
        [dialled, taken].map(|socket| {
            let arena = mem::arena(Members::of(2, |other| other == rank)).unwrap();
            let peers = [PeerRecord::default(), PeerRecord::default()];
            let world = World::new(rank, &peers, &arena, None);
            let network = Network::new(world, secret, config::Network::default(), None, Box::new(|| Ok(())));
            let link = network.unwrap().link(1 - rank, Lane::Collective);
            link.connect(socket).unwrap();
            rank += 1;
            link
        })
    }

    /// True if something may still come on it, or has come and was not looked at.
    pub fn is_open(&self) -> bool {
        let dialled = || self.network.is_dialled(self.peer, self.lane as u8);
        self.end.get().is_none() && (self.connection.get().is_some() || dialled())
    }

    /// The same, if it is there.
    pub(super) fn connected(&self) -> Option<BorrowedFd<'_>> {
        self.connection.get().map(|connection| connection.socket.as_fd())
    }

    /// Has this rank's bell rung as soon as the socket is ready.
    pub fn ring_when(&self, readiness: Readiness) -> Result<()> {
        // What has ended is always ready.
        let connection = self.connection.get().filter(|_| self.end.get().is_none());
        connection.map_or(Ok(()), |connection| connection.watched.arm(&connection.socket, readiness))
    }

    /// The error of a connection that serves no more.
    pub(super) fn broken(&self, what: impl std::fmt::Display) -> Error {
        Error::remote(format!("{} is lost: {what}", self.network.world.named(&[self.peer])))
    }

    /// The connection has ended or failed: from here on there is no socket, and after a while, in which better reasons
    /// may come, an error.
    pub(super) fn lost(&self, what: impl std::fmt::Display) {
        self.end_with(self.broken(what));
    }

    fn end_with(&self, error: Error) {
        let _ = self.end.set((clock::now(), error));
    }
}
