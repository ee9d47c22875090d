//! How a communicator comes to be: its ranks join, share memory, and take their seats.

use super::announce::{Maker, Making, Part, say_network, say_ports};
use super::describe::Way;
use super::messages::Messages;
use super::share::{Sharing, share_memory};
use super::windows::Windows;
use super::{CommConfig, Communicator, Joined, device, group};
use crate::algo::{Facts, Layout, Pull, Shape};
use crate::bootstrap::{self, PeerRecord, Secret, UniqueId};
use crate::config::{self, Settings};
use crate::engine::{Dock, Endpoint, Fabric, Limits, Peer, Seat};
use crate::error::{Error, Result};
use crate::os::clock;
use crate::os::process::{self, Watch};
use crate::sync::prim::Ordering;
use crate::sync::wait::Patience;
use crate::telemetry::{self, Head, Recorder, records};
use crate::topo::{Machine, Place, Wire, fnv1a, probe_word};
use crate::transport::rdma::local_ports;
use crate::transport::shm::{Arena, Members, RankState, Reach, can_read};
use crate::transport::tcp::{ControlHandle, Devices, Network, World};
use crate::tune;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the log calls [`Communicator::init`], behind the face's prefix.
const INIT_RANK: &str = "CommInitRank";

impl Communicator {
    /// Joins the ranks that hold the same ids, at most as many as there are ranks: each gathers a share of them.
    ///
    /// In a group the joining happens when the outermost group ends, and `failed` is called if it fails; with
    /// `config.blocking` false it happens in the background; otherwise it is done on return.
    pub fn init(
        ids: &[UniqueId],
        ranks: usize,
        rank: usize,
        config: CommConfig,
        failed: Option<Box<dyn FnOnce() + Send>>,
    ) -> Result<Self> {
        if ids.is_empty() {
            return Err(Error::argument("no unique id; need at least one from ncclGetUniqueId"));
        }
        if ranks == 0 || rank >= ranks {
            return Err(Error::argument(format!(
                "rank {rank} of {ranks}; need a rank from 0 to below the number of ranks"
            )));
        }
        let settings = config.settings()?;
        telemetry::log::configure(&settings, config.face);
        if rank == 0 {
            telemetry::version(config.face);
        }
        let config = config.overridden(&settings);
        let device = if config.in_host_memory { None } else { device::current(&settings)? };
        let communicator = Self::new(ranks, rank, config, device);
        let blocking = communicator.shared.config.blocking;
        if group::is_open() || !blocking {
            let background = communicator.begin_background();
            let ids = ids.to_vec();
            let job = move |dropped: Option<Error>| {
                let joining = &background.0;
                let outcome = dropped
                    .map_or_else(|| joining.join(INIT_RANK, &ids, &settings), |error| joining.refuse(error));
                if let (Err(_), true, Some(failed)) = (&outcome, blocking, failed) {
                    failed();
                }
                outcome
            };
            group::defer_or_spawn(&communicator, blocking, "accl-init", Box::new(job))?;
        } else {
            communicator.join(INIT_RANK, ids, &settings)?;
        }
        Ok(communicator)
    }

    /// All ranks of a new communicator in this process; the result's index is the rank. `devices` are the numbers of their
    /// devices, where the process uses such; without them it is rank by rank.
    pub fn init_all(ranks: usize, devices: Option<&[i32]>, config: &CommConfig) -> Result<Vec<Self>> {
        let settings = Settings::load()?;
        let devices = device::listed(&settings, ranks, devices)?;
        let id = UniqueId::create_local()?;
        let checks_pointers = settings.driver.checks_pointers;
        let make =
            |(rank, device)| Self::new(ranks, rank, CommConfig { checks_pointers, ..config.clone() }, device);
        let communicators: Vec<_> = devices.into_iter().enumerate().map(make).collect();
        telemetry::log::configure(&settings, config.face);
        telemetry::version(config.face);
        let jobs = communicators.iter().map(|communicator| {
            let (joining, settings) = (communicator.clone(), settings.clone());
            let join = move |dropped: Option<Error>| {
                dropped.map_or_else(|| joining.join("CommInitAll", &[id], &settings), Err)
            };
            Box::new(join) as group::Job
        });
        group::run_jobs(jobs.collect())?;
        Ok(communicators)
    }

    /// Makes a failure the communicator's before it has joined.
    fn refuse(&self, error: Error) -> Result<()> {
        self.store_error(&error);
        Err(error)
    }

    /// Joins, and makes a failure the communicator's; `function` is what the log calls it, behind the face's prefix.
    pub(super) fn join(&self, function: &'static str, ids: &[UniqueId], settings: &Settings) -> Result<()> {
        let outcome = self.try_join(function, ids, settings);
        if let Err(error) = &outcome {
            self.store_error(error);
        }
        outcome
    }

    fn try_join(&self, function: &'static str, ids: &[UniqueId], settings: &Settings) -> Result<()> {
        let give_up = || self.check_abort().and_then(|()| bootstrap::check_service());
        let number = ids.first().map_or(Ok(0), UniqueId::number)?;
        let making = self.say_start(Maker::Id(function, number));
        let membership =
            bootstrap::join(ids, self.request(settings, self.open_plugin(settings, number)), &give_up)?;
        self.settle(membership, settings, making, &give_up)
    }

    /// What a rank asks for that joins, with this network plugin.
    pub(super) fn request<'a>(&self, settings: &'a Settings, plugin: u64) -> bootstrap::Request<'a> {
        bootstrap::Request {
            ranks: self.ranks(),
            rank: self.rank(),
            version: crate::VERSION_CODE,
            patience: self.shared.config.init_limit.or(settings.init_timeout),
            on_device: self.has_device(),
            // Why there are none, where they are required, is told when all can hear it.
            has_verbs: self.ranks() > 1
                && local_ports(&settings.network.verbs).is_ok_and(|ports| !ports.is_empty()),
            plugin,
            network: &settings.network,
        }
    }

    /// Sets this rank up among those who have met, and takes its seat when all have.
    pub(super) fn settle(
        &self,
        membership: bootstrap::Membership<'_>,
        settings: &Settings,
        mut making: Making,
        give_up: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        making.ends(Part::Bootstrap);
        let (peers, secret) = (membership.peers.to_vec(), membership.secret);
        let still_wanted = || give_up().and_then(|()| membership.check_verdict());
        // Data that must cross hosts needs all of them within reach: this is the rank's own part of that.
        let alone = peers.iter().all(|peer| peer.shares_host(&peers[self.rank()]));
        if let Some((one, other)) = named_alike(&peers).filter(|_| self.rank() == 0) {
            crate::telemetry::warn(&format!(
                "NCCL_HOSTID is the same for rank {one} ({}) and rank {other} ({}), which cannot share memory: they go by the network; \
                 give each host a name of its own, or none",
                peers[one].describe(),
                peers[other].describe()
            ));
        }
        let reachable = if alone { Ok(()) } else { membership.check_reachable() };
        let prepared = reachable.and_then(|()| self.prepare(&peers, secret, settings, &still_wanted));
        making.ends(Part::Alloc);
        let outcome = prepared.as_ref().map(|_| ()).map_err(Clone::clone);
        membership.confirm(outcome)?;
        making.ends(Part::Allgathers);
        self.take_seat(prepared?, peers, secret, settings)?;
        making.ends(Part::Connections);
        self.say_complete(&making);
        Ok(())
    }

    /// Gets everything for the seat that can fail: maps what the ranks share and says so in it, and begins to watch
    /// the other processes, so that none of them can die unseen from here on.
    pub(super) fn prepare(
        &self,
        peers: &[PeerRecord],
        secret: Secret,
        settings: &Settings,
        give_up: &dyn Fn() -> Result<()>,
    ) -> Result<Prepared> {
        let rank = self.rank();
        device::check_alike(peers)?;
        let watches = watch(peers, rank)?;
        let dock = self.shared.device.map(Dock::new).transpose()?;
        let machine = || tune::machine(&settings.tune);
        if peers.len() == 1 {
            return Ok(Prepared { rank, sharing: None, network: None, machine: machine()?, watches, dock });
        }
        let members = Members::of(peers.len(), |peer| peers[peer].shares_host(&peers[rank]));
        let sharing = share_memory(peers, &members, secret, &machine, give_up)?;
        let block = sharing.arena.block(rank);
        block.probe().store(std::ptr::from_ref(probe_word()?) as u64, Ordering::Release);
        let network = if members.local() < peers.len() {
            say_network(&peers[rank]);
            Some(self.network(peers, secret, settings, &sharing.arena)?)
        } else {
            self.forgo_plugin();
            None
        };
        block.set_state(RankState::Present);
        let machine = sharing.arena.machine();
        Ok(Prepared { rank, sharing: Some(sharing), network, machine, watches, dock })
    }

    /// The way to ranks of other hosts.
    fn network(
        &self,
        peers: &[PeerRecord],
        secret: Secret,
        settings: &Settings,
        arena: &Arc<Arena>,
    ) -> Result<Arc<Network>> {
        // The network is a part of what it asks about.
        let (shared, failed) = (Arc::downgrade(&self.shared), arena.clone());
        let give_up = move || {
            let aborted = shared.upgrade().is_none_or(|shared| shared.aborted.load(Ordering::Acquire));
            if aborted {
                return Err(Error::usage(
                    "the communicator was aborted while ranks were being connected; make another one to go on",
                ));
            }
            failed.failure().map_or(Ok(()), Err)
        };
        let network = settings.network.clone();
        let ports = local_ports(&network.verbs)?;
        check_required(&network.verbs, peers, self.rank())?;
        say_ports(&ports);
        let plugin = self.choose_plugin(peers, &secret, settings)?;
        let world = World::new(self.rank(), peers, arena, network.peer_timeout);
        let devices = Devices { ports, plugin };
        Network::new(world, secret, network, devices, settings.timeout, Box::new(give_up))
    }

    /// Takes the seat, once all ranks have prepared.
    pub(super) fn take_seat(
        &self,
        mut prepared: Prepared,
        peers: Vec<PeerRecord>,
        secret: Secret,
        settings: &Settings,
    ) -> Result<()> {
        let watches = std::mem::take(&mut prepared.watches);
        let arena = prepared.sharing.take().map(|sharing| sharing.arena);
        let here = Place::here()?;
        // All ranks must come to the same, whatever each of them can read: that they learn with the first calls.
        let together = peers.iter().all(|peer| peer.place.shares_process(&here));
        let pull = if together { Pull::InPlace } else { Pull::Kernel };
        let cpus = arena.as_ref().map_or(1, |arena| arena.cpus());
        let local = arena.as_ref().map_or(1, |arena| arena.members().local());
        let shape = Shape { ranks: self.ranks(), cpus, pull };
        let network = prepared.network.take();
        let control = join_hosts(network.as_ref(), &watches)?;
        let others = (0..self.ranks()).filter(|rank| *rank != self.rank());
        let by_devices = network
            .as_ref()
            .is_some_and(|network| others.into_iter().any(|peer| network.goes_by_devices(peer)));
        let usual = Patience::for_ranks(local, cpus);
        let world = network.as_ref().map(|network| network.world().clone());
        let facts = if network.is_some() {
            let hosts: Vec<_> = peers.iter().map(PeerRecord::home).collect();
            let near = peers.iter().all(|peer| peer.place.shares_host(&peers[0].place));
            let usual = if near { Wire::LOOPBACK } else { Wire::UNKNOWN };
            let wire = Wire::of(peers.iter().map(|peer| peer.uplink), usual);
            Facts::between_hosts(settings, Layout::of(&hosts), wire, shape, &prepared.machine)
        } else {
            Facts::of(settings, shape, &prepared.machine)
        };
        let mut ways = vec![Way::Itself; peers.len()];
        let fabric = arena.as_ref().map(|arena| {
            let reach: Vec<_> =
                (0..peers.len()).map(|rank| reach(arena, rank, &peers[rank], &here, settings)).collect();
            for (rank, way) in ways.iter_mut().enumerate().filter(|(rank, _)| *rank != self.rank()) {
                *way = Way::of(reach[rank], &peers[rank], &peers[self.rank()], settings);
            }
            let mut fabric = Fabric::new(arena, self.rank(), &reach, network);
            fabric.watch_peers(watches.iter().map(|peer| peer.watch.clone()));
            fabric
        });
        let recorder = Arc::new(self.recorder(&peers, &secret, &here, settings)?);
        if let Some(world) = world {
            world.record(&recorder);
        }
        let (segment_bytes, own) = (settings.segment_bytes, facts.clone());
        let endpoint = Endpoint::new(self.rank(), self.ranks(), fabric, own, segment_bytes, recorder);
        let limits = Limits {
            timeout: settings.timeout,
            warn_after: settings.warn_after,
            patience: if by_devices { usual.for_devices() } else { usual },
        };
        let seat = Seat::new(self.rank(), endpoint, arena, watches, limits);
        let seat = Arc::new(seat.with_dock(prepared.dock.take()));
        let messages = Messages::default();
        let joined = Joined {
            seat,
            peers,
            secret,
            facts,
            ways,
            messages,
            windows: Windows::default(),
            _control: control,
        };
        self.shared
            .joined
            .set(joined)
            .map_err(|_| Error::internal("a communicator that was joined twice"))?;
        // An abort that came meanwhile found no seat to abort.
        if let (Err(error), Ok(joined)) = (self.check_abort(), self.joined()) {
            joined.seat.abort();
            return Err(error);
        }
        self.open_windows(settings.driver.apart)
    }

    /// The flight recorder of this rank.
    fn recorder(
        &self,
        peers: &[PeerRecord],
        secret: &Secret,
        here: &Place,
        settings: &Settings,
    ) -> Result<Recorder> {
        let mut hosts: Vec<String> = Vec::new();
        let mut places = Vec::new();
        for peer in peers {
            let known = hosts.iter().position(|host| *host == peer.host);
            let host = known.unwrap_or(hosts.len());
            if known.is_none() {
                hosts.push(peer.host.clone());
            }
            places.push((peer.place.pid, host as u32));
        }
        let head = Head {
            communicator: public_number(peers, secret),
            parent: self.shared.parent,
            rank: self.rank(),
            ranks: self.ranks(),
            pid: here.pid,
            start: process::look_at(here.pid).map_or(0, |sight| sight.start),
            boot: here.kernel,
            pid_namespace: here.pid_namespace,
            made_ns: clock::wall_ns(),
            library: crate::VERSION_CODE as u32,
            name: self.shared.config.name.clone().unwrap_or_default(),
            host: peers[self.rank()].host.clone(),
            hosts,
            peers: places,
        };
        records::start(&settings.recorder, &head)
    }

    /// The number under which others may know this communicator; 0 before it has joined.
    pub(super) fn public_number(&self) -> u64 {
        self.shared.joined.get().map_or(0, |joined| public_number(&joined.peers, &joined.secret))
    }

    pub(super) fn check_abort(&self) -> Result<()> {
        if self.shared.aborted.load(Ordering::Acquire) {
            return Err(Error::usage(
                "the communicator was aborted while it was being made; make another one to go on",
            ));
        }
        Ok(())
    }
}

/// A number for a communicator that is the same for all of its ranks, and says nothing of their secret: it is derived one way.
/// Ids made of NCCL_COMM_ID have the same secret each time, so the processes count, too.
fn public_number(peers: &[PeerRecord], secret: &Secret) -> u64 {
    let mut bytes = secret.derive(b"flight recorder").token().to_vec();
    bytes.extend(peers.iter().flat_map(|peer| peer.place.process.to_le_bytes()));
    fnv1a(&bytes)
}

/// What a rank holds of a new communicator before it has its seat.
#[derive(Debug)]
pub(super) struct Prepared {
    rank: usize,
    /// None for a rank alone.
    sharing: Option<Sharing>,
    /// None if all ranks are on one host.
    network: Option<Arc<Network>>,
    /// The figures that choices are made by.
    machine: Machine,
    watches: Vec<Peer>,
    /// Where streams of its device come to it, if it has one.
    dock: Option<Dock>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // Peers may have heard that all is well and wait for this rank, which will not come.
        if let Some(sharing) = &self.sharing {
            sharing.arena.part(self.rank, RankState::Aborted);
        }
    }
}

/// Has failures and deaths told between hosts.
fn join_hosts(network: Option<&Arc<Network>>, watches: &[Peer]) -> Result<Option<ControlHandle>> {
    let watches = || watches.iter().map(|peer| peer.watch.clone()).collect();
    network.map_or(Ok(None), |network| network.join_hosts(watches()))
}

/// How this rank gets at memory that `peer` lends.
fn reach(arena: &Arena, rank: usize, peer: &PeerRecord, here: &Place, settings: &Settings) -> Reach {
    if !arena.members().has(rank) {
        return Reach::None;
    }
    if peer.place.shares_process(here) {
        return Reach::SameProcess;
    }
    let address = arena.block(rank).probe().load(Ordering::Acquire);
    let allowed = settings.cross_memory && peer.place.shares_pids(here);
    if allowed && can_read(peer.place.pid, address, peer.place.process) {
        Reach::CrossProcess(peer.place.pid)
    } else {
        Reach::None
    }
}

/// An error if RDMA is required (REQUIRE_PATH) with a rank that has none.
fn check_required(settings: &config::Verbs, peers: &[PeerRecord], own: usize) -> Result<()> {
    let other = |peer: &&PeerRecord| !peer.has_verbs && !peer.shares_host(&peers[own]);
    match peers.iter().enumerate().find(|(_, peer)| settings.is_required && other(peer)) {
        None => Ok(()),
        Some((rank, peer)) => Err(Error::remote(format!(
            "ACCL_REQUIRE_PATH=rdma, but rank {rank} ({}) speaks only TCP: it has no RDMA port that it may use; see accl doctor there, or unset it",
            peer.describe()
        ))),
    }
}

/// Two ranks whose hosts were given one name, though they are two.
fn named_alike(peers: &[PeerRecord]) -> Option<(usize, usize)> {
    let mut firsts: BTreeMap<u64, usize> = BTreeMap::new();
    peers.iter().enumerate().find_map(|(rank, peer)| {
        let first = *firsts.entry(peer.host_id?).or_insert(rank);
        (!peers[first].shares_host(peer)).then_some((first, rank))
    })
}

/// A watch on each other process of this host, shared by all of its ranks. The end of another host's process says nothing, even where
/// it can be seen: what it has sent may still be on its way, and its connections end after that.
fn watch(peers: &[PeerRecord], own: usize) -> Result<Vec<Peer>> {
    let here = Place::here()?;
    let mut watches: BTreeMap<u32, Option<Arc<Watch>>> = BTreeMap::new();
    let (mut watched, mut speakers) = (Vec::new(), BTreeMap::new());
    let one_host = peers.iter().all(|peer| peer.shares_host(&peers[0]));
    for (rank, peer) in peers.iter().enumerate() {
        let pid = peer.place.pid;
        let foreign = !peer.place.shares_process(&here)
            && peer.place.shares_pids(&here)
            && peer.shares_host(&peers[own]);
        if foreign && !watches.contains_key(&pid) {
            let watch =
                Watch::open(pid, peer.place.process).map_err(|error| error.within(format!("rank {rank}")))?;
            watches.insert(pid, watch.map(Arc::new));
        }
        let name = if one_host { format!("process {pid}") } else { peer.describe() };
        let watch = foreign.then(|| watches[&pid].clone()).flatten();
        let speaker = *speakers.entry(peer.home()).or_insert(rank);
        watched.push(Peer { pid, name, watch, speaker });
    }
    Ok(watched)
}
