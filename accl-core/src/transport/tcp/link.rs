//! A link: the connections between two ranks for one kind of messages.
//!
//! The first one is made when a message needs it, further ones (*stripes*) when a long message does: the lower rank dials, in the
//! background, and each end uses a stripe from when it has it. Links with one connection and with many differ in nothing else.

use super::dialler;
use super::network::{Network, World};
use super::wake::{Listened, Watched};
use crate::bootstrap::{self, LinkRequest};
use crate::config::subsystem;
use crate::encryption::Socket;
use crate::error::{Error, ErrorKind, Result};
use crate::os::fork::Withheld;
use crate::os::{clock, network, tcp};
use crate::sync::prim::{AtomicBool, AtomicUsize, Ordering};
use crate::telemetry::log;
use crate::topo::{self, interface_of, routes};
use crate::transport::Route;
use crate::transport::shm::Lane;
use crate::types::Rank;
use std::net::IpAddr;
use std::os::fd::AsFd;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Most connections of one link: as many as NCCL has at most, and as a word has bits.
pub const MOST_STRIPES: usize = 64;
/// How long a connection's end waits to be explained: who ended it for a reason of its own has that told by the leaders of hosts,
/// and who was first to fail should be named, not who failed next.
const EXPLANATION_PATIENCE: Duration = Duration::from_secs(1);
/// How long it is tried to make a further connection. It has some time, since nobody waits for it.
const STRIPE_PATIENCE: Duration = Duration::from_secs(5);
/// Up to which speed an interface is filled by one connection, and by two: what a core copies, with room to spare.
const SPEEDS_MBITS: (u32, u32) = (25_000, 100_000);

/// Connections with one peer, or the intent to have them.
#[derive(Debug)]
pub struct Link {
    network: Arc<Network>,
    peer: Rank,
    lane: Lane,
    stripes: Box<[OnceLock<Connection>]>,
    /// All connections have lower indices.
    width: AtomicUsize,
    /// The first connection is being made, or was; the same for the further ones.
    dialled: AtomicBool,
    widened: AtomicBool,
    /// How many further ones this rank is dialling, or finding out about.
    dialling: AtomicUsize,
    /// Why nothing more comes, and from when on that is told.
    end: OnceLock<(Instant, Error)>,
}

#[derive(Debug)]
struct Connection {
    // Before the socket: it must not be watched when its number is given to another one.
    watched: Watched,
    _withheld: Withheld,
    socket: Arc<Socket>,
}

impl Link {
    pub(super) fn new(network: Arc<Network>, peer: Rank, lane: Lane) -> Arc<Self> {
        Arc::new(Self {
            network,
            peer,
            lane,
            stripes: (0..MOST_STRIPES).map(|_| OnceLock::new()).collect(),
            width: AtomicUsize::new(0),
            dialled: AtomicBool::new(false),
            widened: AtomicBool::new(false),
            dialling: AtomicUsize::new(0),
            end: OnceLock::new(),
        })
    }

    /// The first connection. None as long as it is not there: this rank has it dialled, or waits until the peer has, and the
    /// rank's bell rings when it is. None, too, for a moment after it has come to an end (see `lost`).
    pub fn socket(self: &Arc<Self>) -> Result<Option<&Socket>> {
        if let Some((told_from, error)) = self.end.get() {
            return if clock::now() < *told_from { Ok(None) } else { Err(error.clone()) };
        }
        if let Some(socket) = self.stripe(0) {
            return Ok(Some(socket));
        }
        if !self.dials() {
            return match self.network.arrived(self.peer, self.lane as u8) {
                Some(socket) => self.connect(0, socket).map(|()| self.stripe(0)),
                None => Ok(None),
            };
        }
        if !self.dialled.swap(true, Ordering::Relaxed) {
            let link = Arc::downgrade(self);
            let (network, peer, purpose) = (self.network.clone(), self.peer, self.lane as u8);
            dialler::FIRST.submit(move || {
                let dialled = network.dial(peer, purpose, &|| wanted(&link).map(|_| ()));
                drop(network);
                if let Some(link) = link.upgrade() {
                    link.begin(dialled);
                }
            })?;
        }
        Ok(None)
    }

    /// True if this rank dials, the lower one of the two.
    pub(in crate::transport) fn dials(&self) -> bool {
        self.network.world().rank < self.peer
    }

    /// What has become of dialling.
    fn begin(&self, dialled: Result<Socket>) {
        let world = self.network.world();
        if let Err(error) = dialled.and_then(|socket| self.connect(0, socket)) {
            // The peer may have failed and closed its door a moment ago.
            let explained = error.kind() == ErrorKind::Remote && !world.arena.has_failed();
            let patience = if explained { EXPLANATION_PATIENCE } else { Duration::ZERO };
            let _ = self.end.set((clock::now() + patience, error));
        }
        world.arena.block(world.rank).bell.ring();
    }

    /// Who there is.
    pub(in crate::transport) fn world(&self) -> &Arc<World> {
        self.network.world()
    }

    pub(in crate::transport) fn peer(&self) -> Rank {
        self.peer
    }

    pub(in crate::transport) fn settings(&self) -> &crate::config::Network {
        self.network.settings()
    }

    /// One of the connections, if it is there and the link has not come to an end.
    pub(super) fn stripe(&self, index: usize) -> Option<&Socket> {
        let connection = self.stripes[index].get().filter(|_| self.end.get().is_none());
        connection.map(|connection| &*connection.socket)
    }

    /// Has further connections made if this rank dials, else takes in those that the peer has made; all that are there have lower
    /// indices than the result. To be called when there is a message that needs them.
    pub(super) fn widen(self: &Arc<Self>) -> usize {
        if !self.dials() {
            while let Some((index, socket)) = self.network.arrived_further(self.peer, self.lane as u8) {
                // The peer counts on it.
                if let Err(error) = self.connect(index, socket) {
                    self.end_at_once(error);
                }
            }
        } else if !self.widened.load(Ordering::Relaxed)
            && self.stripe(0).is_some()
            && !self.widened.swap(true, Ordering::Relaxed)
        {
            let dialling = Dialling::new(self);
            // Without them it works, too.
            let _ = dialler::FURTHER.submit(move || dial_further(&dialling.0));
        }
        self.width.load(Ordering::Acquire).max(1)
    }

    /// True if there may be more than `known` connections soon, or there are: the peer may have used, and even ended, those that
    /// this end does not have yet.
    pub(super) fn more_come(&self, known: usize) -> bool {
        // In this order: what has been dialled is there before it stops being dialled.
        self.dialling.load(Ordering::Acquire) > 0
            || self.network.is_dialled_further(self.peer, self.lane as u8)
            || self.width.load(Ordering::Acquire) > known
    }

    /// Gives the link one of its connections.
    pub(in crate::transport) fn connect(&self, index: usize, socket: Socket) -> Result<()> {
        let (socket, world) = (Arc::new(socket), self.network.world());
        if let Some(patience) = world.patience {
            network::keep_alive(socket.as_fd(), patience);
        }
        let named = self.network.settings().congestion_control.as_deref();
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
        self.say_connected(index, &socket);
        let _withheld = Withheld::new(socket.as_fd())?;
        let watched = Watched::new(socket.as_fd(), &world.arena, world.rank, listened)?;
        self.stripes[index].get_or_init(|| Connection { watched, _withheld, socket });
        self.width.fetch_max(index + 1, Ordering::Release);
        Ok(())
    }

    fn say_connected(&self, index: usize, socket: &Socket) {
        let subsystems = subsystem::INIT | subsystem::NET;
        if !log::shows(subsystems) {
            return;
        }
        let (world, lane) = (self.network.world(), self.lane as u8);
        let (own, peer, local) = (world.rank, self.peer, network::local_ip(socket.as_fd()));
        // The number that the address has where the log tells which ones are used.
        let device = world.peers[own].addresses.iter().position(|ip| Some(*ip) == local);
        let device = device.map_or_else(String::new, |device| format!("/{device}"));
        log::info(
            subsystems,
            format_args!("Channel {index:02}/{lane} : {own}[0] -> {peer}[0] [send] via NET/Socket{device}"),
        );
    }

    /// The two ends of one, over this host's own addresses, between rank 0 and rank 1 of a communicator.
    #[cfg(test)]
    pub(in crate::transport) fn pair(stripes: usize) -> [Arc<Self>; 2] {
        Self::pair_with(stripes, &crate::config::Network::default(), None)
    }

    #[cfg(test)]
    pub(in crate::transport) fn pair_with(
        stripes: usize,
        settings: &crate::config::Network,
        key: Option<&crate::encryption::Key>,
    ) -> [Arc<Self>; 2] {
        use crate::encryption::End;
        use crate::transport::{mem, shm::Members};
        let listener = network::listen_at((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let secret = bootstrap::Secret::random().unwrap();
        let links = [0, 1].map(|rank| {
            let arena = mem::arena(Members::of(2, |other| other == rank)).unwrap();
            let peers = [bootstrap::PeerRecord::default(), bootstrap::PeerRecord::default()];
            let world = World::new(rank, &peers, &arena, None);
            let network = Network::new(
                world,
                secret,
                settings.clone(),
                super::Devices::default(),
                None,
                Box::new(|| Ok(())),
            )
            .unwrap();
            let link = network.link(1 - rank, Lane::Collective);
            link.widened.store(true, Ordering::Relaxed);
            link
        });
        for index in 0..stripes {
            let mut dialled = Socket::from(network::start_connect(listener.local_addr().unwrap()).unwrap());
            network::wait_any(&[(listener.as_fd(), false)], Duration::from_secs(20)).unwrap();
            let mut taken = Socket::from(OwnedFd::from(listener.accept().unwrap().0));
            if let Some(key) = key {
                let context = index.to_le_bytes();
                dialled.seal(key.session(End::Dialler, &context), Vec::new());
                taken.seal(key.session(End::Listener, &context), Vec::new());
            }
            links[0].connect(index, dialled).unwrap();
            links[1].connect(index, taken).unwrap();
        }
        links
    }

    /// As if the first further connection was being dialled: by the peer, or by this rank until the result is dropped.
    #[cfg(test)]
    pub(super) fn expect_further(self: &Arc<Self>) -> Option<Dialling> {
        if self.dials() {
            return Some(Dialling::new(self));
        }
        self.network.sink().expect(self.further());
        None
    }

    /// As if that had been done.
    #[cfg(test)]
    pub(super) fn take_further(&self, socket: Socket) {
        if self.dials() {
            self.connect(1, socket).unwrap();
        } else {
            self.network.sink().accept(self.further(), socket);
        }
    }

    #[cfg(test)]
    fn further(&self) -> LinkRequest {
        let (from_rank, to_rank) = (self.peer as u32, self.network.world().rank as u32);
        LinkRequest { from_rank, to_rank, purpose: self.lane as u8, index: 1 }
    }

    /// Ends all connections, in both directions.
    pub(in crate::transport) fn shut(&self) {
        for connection in self.stripes.iter().filter_map(OnceLock::get) {
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
        }
    }

    /// The error of a link that serves no more.
    pub(in crate::transport) fn broken(&self, what: impl std::fmt::Display) -> Error {
        Error::remote(format!("{} is lost: {what}", self.network.world().named(&[self.peer])))
    }

    /// A connection has ended or failed: from here on there is no socket, and after a while, in which better reasons
    /// may come, an error.
    pub(in crate::transport) fn lost(&self, what: impl std::fmt::Display) {
        let _ = self.end.set((clock::now() + EXPLANATION_PATIENCE, self.broken(what)));
    }

    fn end_at_once(&self, error: Error) {
        let _ = self.end.set((clock::now(), error));
    }
}

impl Route for Link {
    fn ring_when(&self, reads: u64, writes: u64) -> Result<()> {
        // What has ended is always ready.
        if self.end.get().is_some() {
            return Ok(());
        }
        let mut either = reads | writes;
        while either != 0 {
            let index = either.trailing_zeros() as usize;
            let bit = 1 << index;
            either &= !bit;
            if let Some(connection) = self.stripes[index].get() {
                connection.watched.arm(&connection.socket, reads & bit != 0, writes & bit != 0)?;
                if reads & bit != 0 && connection.socket.has_waiting() {
                    // The kernel does not know of it.
                    let world = self.network.world();
                    world.arena.block(world.rank).bell.ring();
                }
            }
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        // What this rank dials may have been let in by the peer already.
        let coming =
            || self.dialled.load(Ordering::Relaxed) || self.network.is_dialled(self.peer, self.lane as u8);
        self.end.get().is_none() && (self.stripes[0].get().is_some() || coming())
    }
}

/// The link, if anybody still has it.
fn wanted(link: &Weak<Link>) -> Result<Arc<Link>> {
    link.upgrade().ok_or_else(|| Error::usage("nobody needs this connection any more"))
}

/// For as long as it lives, a further connection may come.
pub(super) struct Dialling(Weak<Link>);

impl Dialling {
    fn new(link: &Arc<Link>) -> Self {
        link.dialling.fetch_add(1, Ordering::Relaxed);
        Self(Arc::downgrade(link))
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        let Some(link) = self.0.upgrade() else { return };
        link.dialling.fetch_sub(1, Ordering::Release);
        let world = link.network.world();
        world.arena.block(world.rank).bell.ring();
    }
}

/// Finds out which further connections there could be, and has them dialled.
fn dial_further(link: &Weak<Link>) {
    let Some(strong) = link.upgrade() else { return };
    let Some(first) = strong.stripe(0) else { return };
    let (Some(from), Some(to)) = (network::local_ip(first.as_fd()), network::peer_ip(first.as_fd())) else {
        return;
    };
    let Ok(interfaces) = network::interfaces() else { return };
    let settings = strong.network.settings();
    let world = strong.network.world().clone();
    let addresses = &world.peers[strong.peer].addresses;
    let others = routes(addresses, (from, to), &interfaces, settings.interfaces.as_ref(), settings.family);
    let home = interfaces.iter().find(|one| Some(one.name.as_str()) == interface_of(&interfaces, from));
    let again = topo::Route { to, scope: home.map_or(0, |home| home.index), by: None };
    let connections = settings.sockets.connections().0;
    let plan =
        stripes(&again, home.map(|home| home.name.as_str()), &others, connections, network::speed_mbps);
    for (route, index) in plan.into_iter().zip(1..) {
        let job = Stripe {
            link: Dialling::new(&strong),
            world: world.clone(),
            secret: strong.network.secret(),
            request: LinkRequest {
                from_rank: world.rank as u32,
                to_rank: strong.peer as u32,
                purpose: strong.lane as u8,
                index,
            },
            // A number that was asked for is kept to, if need be by the way that is known.
            instead: (connections.is_some() && route.by.is_some()).then(|| again.clone()),
            route,
        };
        let _ = dialler::FURTHER.submit(move || job.dial());
    }
}

/// By which routes to make further connections, beside the first: `again` leads where that does, by the interface `home`, and
/// `others` by other ones.
fn stripes(
    again: &topo::Route,
    home: Option<&str>,
    others: &[topo::Route],
    connections: Option<usize>,
    speed_mbps: impl Fn(&str) -> Option<u32>,
) -> Vec<topo::Route> {
    let all = || std::iter::once(again).chain(others);
    if let Some(connections) = connections {
        return all().cycle().skip(1).take(connections - 1).cloned().collect();
    }
    let wanted = |route: &topo::Route| {
        let name = route.by.as_ref().map(|(name, _): &(String, IpAddr)| name.as_str()).or(home);
        match name.and_then(&speed_mbps).unwrap_or(0) {
            speed if speed < SPEEDS_MBITS.0 || speed > i32::MAX as u32 => 1,
            speed if speed <= SPEEDS_MBITS.1 => 2,
            _ => 4,
        }
    };
    // One by each interface, before any has two.
    let rounds = (0..4).flat_map(|round| all().filter(move |route| wanted(route) > round));
    rounds.skip(1).take(MOST_STRIPES - 1).cloned().collect()
}

/// A further connection that is to be made.
struct Stripe {
    link: Dialling,
    world: Arc<World>,
    secret: bootstrap::Secret,
    request: LinkRequest,
    route: topo::Route,
    instead: Option<topo::Route>,
}

impl Stripe {
    fn dial(&self) {
        let begin = clock::now();
        let give_up = || wanted(&self.link.0)?.network.dials_on(self.request.to_rank as Rank, begin);
        let peer = &self.world.peers[self.request.to_rank as usize];
        let by = |route: &topo::Route| {
            let deadline = clock::now() + STRIPE_PATIENCE;
            bootstrap::dial_route(peer, self.secret, self.request, route, deadline, &give_up)
        };
        let dialled = by(&self.route).or_else(|error| self.instead.as_ref().map_or(Err(error), by));
        // One that leads nowhere is not missed.
        let (Ok(socket), Some(link)) = (dialled, self.link.0.upgrade()) else { return };
        if let Err(error) = link.connect(usize::from(self.request.index), socket) {
            link.end_at_once(error);
        }
    }
}
