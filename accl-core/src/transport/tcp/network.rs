//! One rank's connections to ranks of other hosts.

use super::wake::{Readiness, Watched};
use crate::bootstrap::{self, LinkExpectation, LinkRequest, LinkSink, PeerRecord, Secret};
use crate::config;
use crate::error::{Error, Result};
use crate::os::clock;
use crate::transport::shm::{Arena, Lane};
use crate::types::Rank;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long dialling may take.
const DIAL_PATIENCE: Duration = Duration::from_secs(30);

/// Asked while something takes long: an error if it is not wanted any more.
pub type GiveUp = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// What is needed to connect with any peer.
pub struct Network {
    rank: Rank,
    peers: Arc<[PeerRecord]>,
    secret: Secret,
    settings: config::Network,
    give_up: GiveUp,
    inbox: Arc<Inbox>,
    _expectation: LinkExpectation,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Network").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// Connections that peers have dialled, until they are needed.
#[derive(Debug)]
struct Inbox {
    arrived: Mutex<HashMap<(u32, u8), OwnedFd>>,
    arena: Arc<Arena>,
    rank: Rank,
}

impl LinkSink for Inbox {
    fn accept(&self, request: LinkRequest, socket: OwnedFd) {
        self.arrived.lock().insert((request.from_rank, request.purpose), socket);
        self.arena.block(self.rank).bell.ring();
    }
}

impl Network {
    /// The network of `rank`; from here on it can be dialled by those who know the communicator's `secret`. `give_up` is
    /// asked while this rank dials.
    pub fn new(
        rank: Rank,
        peers: Arc<[PeerRecord]>,
        secret: Secret,
        settings: config::Network,
        arena: Arc<Arena>,
        give_up: GiveUp,
    ) -> Result<Arc<Self>> {
        let secret = bootstrap::link_secret(secret);
        let inbox = Arc::new(Inbox { arrived: Mutex::default(), arena, rank });
        let expectation = bootstrap::expect_links(secret, rank as u32, inbox.clone())?;
        Ok(Arc::new(Self { rank, peers, secret, settings, give_up, inbox, _expectation: expectation }))
    }

    /// The link to a peer for one kind of messages, not connected yet.
    pub fn link(self: &Arc<Self>, peer: Rank, lane: Lane) -> Arc<Link> {
        Arc::new(Link { network: self.clone(), peer, lane, connection: OnceLock::new() })
    }

    fn dial(&self, peer: Rank, purpose: u8) -> Result<OwnedFd> {
        let request = LinkRequest { from_rank: self.rank as u32, to_rank: peer as u32, purpose, index: 0 };
        let deadline = clock::now() + DIAL_PATIENCE;
        bootstrap::dial_link(&self.peers[peer], self.secret, request, &self.settings, deadline, &self.give_up)
    }
}

/// One connection, or the intent to have it.
#[derive(Debug)]
pub struct Link {
    network: Arc<Network>,
    peer: Rank,
    lane: Lane,
    connection: OnceLock<Connection>,
}

#[derive(Debug)]
struct Connection {
    // Before the socket: it must not be watched when its number is given to another one.
    watched: Watched,
    socket: OwnedFd,
}

impl Link {
    /// The socket. None as long as the peer has not dialled, where it is its turn to; otherwise this rank dials, which takes
    /// as long as it takes.
    pub fn socket(&self) -> Result<Option<BorrowedFd<'_>>> {
        if let Some(connection) = self.connection.get() {
            return Ok(Some(connection.socket.as_fd()));
        }
        let (network, purpose) = (&self.network, self.lane as u8);
        let socket = if network.rank < self.peer {
            network.dial(self.peer, purpose)?
        } else {
            let arrived = network.inbox.arrived.lock().remove(&(self.peer as u32, purpose));
            let Some(socket) = arrived else { return Ok(None) };
            socket
        };
        let watched = Watched::new(socket.as_fd(), &network.inbox.arena, network.rank)?;
        let connection = self.connection.get_or_init(|| Connection { watched, socket });
        Ok(Some(connection.socket.as_fd()))
    }

    /// The same, if it is there.
    pub(super) fn connected(&self) -> Option<BorrowedFd<'_>> {
        self.connection.get().map(|connection| connection.socket.as_fd())
    }

    /// Has this rank's bell rung as soon as the socket is ready.
    pub fn ring_when(&self, readiness: Readiness) -> Result<()> {
        self.connection
            .get()
            .map_or(Ok(()), |connection| connection.watched.arm(&connection.socket, readiness))
    }

    /// The error of a connection that has ended or failed.
    pub(super) fn lost(&self, what: impl std::fmt::Display) -> Error {
        let peer = &self.network.peers[self.peer];
        Error::remote(format!("rank {} ({}) is lost: {what}", self.peer, peer.describe()))
    }
}
