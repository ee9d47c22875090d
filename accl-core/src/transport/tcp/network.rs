//! One rank's connections to ranks of other hosts.

use super::control::{self, ControlHandle};
use super::link::{Link, MOST_STRIPES};
use super::wake;
use crate::bootstrap::{self, LinkExpectation, LinkRequest, LinkSink, PeerRecord, Secret};
use crate::config;
use crate::encryption::Socket;
use crate::error::{Error, Result};
use crate::os::clock;
use crate::os::process::Watch;
use crate::telemetry::{self, Paths, Recorder};
use crate::transport::plugin::Chosen;
use crate::transport::rdma::LocalPort;
use crate::transport::shm::{Arena, Lane, RankState};
use crate::types::{Rank, named_ranks};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long dialling may take at most.
const DIAL_PATIENCE: Duration = Duration::from_secs(30);

/// How long a rank dials one that has left.
const LEAVING_PATIENCE: Duration = Duration::from_secs(1);

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
    devices: Devices,
    _expectation: LinkExpectation,
}

/// What a rank has besides TCP.
#[derive(Debug, Default)]
pub struct Devices {
    /// By which RDMA goes; none without.
    pub ports: Vec<LocalPort>,
    /// The network plugin.
    pub plugin: Option<Chosen>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Network").field("rank", &self.world.rank).finish_non_exhaustive()
    }
}

/// Who there is.
#[derive(Debug)]
pub struct World {
    pub(in crate::transport) rank: Rank,
    pub(super) peers: Arc<[PeerRecord]>,
    pub(in crate::transport) arena: Arc<Arena>,
    /// How long a host may be silent.
    pub(super) patience: Option<Duration>,
    paths: Mutex<Paths>,
    /// Where they are written down. Not kept: its file goes with the communicator, whatever thread still has the world.
    recorder: OnceLock<Weak<Recorder>>,
}

impl World {
    /// `rank` among `peers`; `arena` is that of its host.
    pub fn new(rank: Rank, peers: &[PeerRecord], arena: &Arc<Arena>, patience: Option<Duration>) -> Self {
        Self {
            rank,
            peers: peers.into(),
            arena: arena.clone(),
            patience,
            paths: Mutex::default(),
            recorder: OnceLock::new(),
        }
    }

    /// Writes down in `recorder` what becomes of RDMA paths, from here on.
    pub fn record(&self, recorder: &Arc<Recorder>) {
        self.recorder.get_or_init(|| Arc::downgrade(recorder));
    }

    /// Something has become of a path.
    pub(in crate::transport) fn count_paths(&self, count: impl FnOnce(&mut Paths)) {
        let mut paths = self.paths.lock();
        count(&mut paths);
        if let Some(recorder) = self.recorder.get().and_then(Weak::upgrade) {
            recorder.paths(&paths);
        }
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
    pub(in crate::transport) fn named(&self, ranks: &[Rank]) -> String {
        let mut processes: Vec<_> = ranks.iter().map(|rank| self.peers[*rank].describe()).collect();
        processes.dedup();
        format!("{} ({})", named_ranks(ranks), processes.join(", "))
    }
}

/// Connections that peers have dialled, until they are needed.
#[derive(Debug)]
struct Inbox {
    arrived: Mutex<BTreeMap<Key, Socket>>,
    /// Those that are about to arrive: the dialler may already have sent all that it has to send.
    coming: Mutex<Vec<Key>>,
    world: Arc<World>,
}

/// The rank that has dialled, the purpose, and which of several it is.
type Key = (u32, u8, u16);

fn key_of(request: LinkRequest) -> Key {
    (request.from_rank, request.purpose, request.index)
}

impl Inbox {
    /// True if one of these connections has arrived, or is about to.
    fn has(&self, peer: Rank, purpose: u8, indices: RangeInclusive<u16>) -> bool {
        let keys = (peer as u32, purpose, *indices.start())..=(peer as u32, purpose, *indices.end());
        // In this order: a connection is in both for a moment, never in none.
        self.coming.lock().iter().any(|key| keys.contains(key))
            || self.arrived.lock().range(keys).next().is_some()
    }
}

impl LinkSink for Inbox {
    fn accept(&self, request: LinkRequest, socket: Socket) {
        if usize::from(request.index) < MOST_STRIPES {
            self.arrived.lock().insert(key_of(request), socket);
        }
        self.forget(request);
        if request.purpose == control::PURPOSE {
            wake::tell(&self.world.arena);
        } else {
            self.world.arena.block(self.world.rank).bell.ring();
        }
    }

    fn expect(&self, request: LinkRequest) {
        self.coming.lock().push(key_of(request));
    }

    fn forget(&self, request: LinkRequest) {
        let mut coming = self.coming.lock();
        let key = key_of(request);
        if let Some(index) = coming.iter().position(|one| *one == key) {
            coming.swap_remove(index);
        }
    }
}

impl Network {
    /// The network of the world's rank; from here on it can be dialled by those who know the communicator's `secret`. `devices`
    /// are what it has besides. `give_up` is asked while this rank dials, which takes at most `timeout`.
    pub fn new(
        world: World,
        secret: Secret,
        settings: config::Network,
        devices: Devices,
        timeout: Option<Duration>,
        give_up: GiveUp,
    ) -> Result<Arc<Self>> {
        static WARNED: Once = Once::new();
        if let (_, Some(warning)) = settings.sockets.connections() {
            WARNED.call_once(|| telemetry::warn(&warning));
        }
        let world = Arc::new(world);
        let secret = bootstrap::link_secret(secret);
        let inbox =
            Arc::new(Inbox { arrived: Mutex::default(), coming: Mutex::default(), world: world.clone() });
        let expectation = bootstrap::expect_links(secret, world.rank as u32, inbox.clone())?;
        let dial_patience = timeout.map_or(DIAL_PATIENCE, |timeout| timeout.min(DIAL_PATIENCE));
        let network = Self {
            world,
            secret,
            settings,
            dial_patience,
            give_up,
            inbox,
            devices,
            _expectation: expectation,
        };
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

    /// Who there is.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The connection that a peer has dialled, if it has: the first of its purpose.
    pub(super) fn arrived(&self, peer: Rank, purpose: u8) -> Option<Socket> {
        self.inbox.arrived.lock().remove(&(peer as u32, purpose, 0))
    }

    /// One of the further connections that a peer has dialled, and which.
    pub(super) fn arrived_further(&self, peer: Rank, purpose: u8) -> Option<(usize, Socket)> {
        let mut arrived = self.inbox.arrived.lock();
        let key = *arrived.range((peer as u32, purpose, 1)..=(peer as u32, purpose, u16::MAX)).next()?.0;
        arrived.remove(&key).map(|socket| (usize::from(key.2), socket))
    }

    /// True if a first connection has come from a peer, or is about to, and was not looked at.
    pub(super) fn is_dialled(&self, peer: Rank, purpose: u8) -> bool {
        self.inbox.has(peer, purpose, 0..=0)
    }

    /// The same for any further one.
    pub(super) fn is_dialled_further(&self, peer: Rank, purpose: u8) -> bool {
        self.inbox.has(peer, purpose, 1..=u16::MAX)
    }

    /// The link to a peer for one kind of messages, not connected yet.
    pub fn link(self: &Arc<Self>, peer: Rank, lane: Lane) -> Arc<Link> {
        Link::new(self.clone(), peer, lane)
    }

    /// By which ports RDMA is tried with a peer; none if it speaks TCP only. Both ends come to the same, by what all ranks know of each other,
    /// though the ports may have gone since.
    pub fn ports_towards(&self, peer: Rank) -> Option<&[LocalPort]> {
        let peers = &self.world.peers;
        (peers[peer].has_verbs && peers[self.world.rank].has_verbs).then_some(&self.devices.ports)
    }

    /// The network plugin that is tried with a peer, before everything else; none if the two do not have the same one.
    pub fn plugin_towards(&self, peer: Rank) -> Option<&Chosen> {
        let peers = &self.world.peers;
        self.devices.plugin.as_ref().filter(|_| peers[peer].plugin == peers[self.world.rank].plugin)
    }

    /// True if devices that the library waits for by looking at them lead to a peer.
    pub fn goes_by_devices(&self, peer: Rank) -> bool {
        self.ports_towards(peer).is_some() || self.plugin_towards(peer).is_some()
    }

    #[cfg(test)]
    pub(super) fn sink(&self) -> &dyn LinkSink {
        &*self.inbox
    }

    pub(super) fn secret(&self) -> Secret {
        self.secret
    }

    pub(super) fn settings(&self) -> &config::Network {
        &self.settings
    }

    /// Connects with a peer, which takes as long as it takes, unless it is known to have gone or `give_up` has an error.
    pub(super) fn dial(&self, peer: Rank, purpose: u8, give_up: &dyn Fn() -> Result<()>) -> Result<Socket> {
        let world = &self.world;
        let request = LinkRequest { from_rank: world.rank as u32, to_rank: peer as u32, purpose, index: 0 };
        let begin = clock::now();
        let deadline = begin + self.dial_patience;
        let give_up = || {
            give_up()?;
            self.dials_on(peer, begin)
        };
        bootstrap::dial_link(&world.peers[peer], self.secret, request, &self.settings, deadline, &give_up)
    }

    /// An error if a peer, dialled since `begin`, need not be dialled any longer. One that has left is for a while: it may have let
    /// this rank in, and sent its last, before that is heard here.
    pub(super) fn dials_on(&self, peer: Rank, begin: Instant) -> Result<()> {
        self.still_needed(peer).or_else(|error| {
            self.still_wanted()?;
            if clock::now() - begin < LEAVING_PATIENCE { Ok(()) } else { Err(error) }
        })
    }

    /// An error if a connection to a peer need not, or cannot be made any more.
    pub(super) fn still_needed(&self, peer: Rank) -> Result<()> {
        self.still_wanted()?;
        let world = &self.world;
        let how = match world.arena.state_of(peer) {
            RankState::Left => "has destroyed its communicator",
            RankState::Aborted => "has aborted the communicator",
            RankState::Absent | RankState::Present => return Ok(()),
        };
        let whom = world.named(&[peer]);
        Err(Error::remote(format!("{whom} {how}, and rank {} needs a connection to it", world.rank)))
    }
}
