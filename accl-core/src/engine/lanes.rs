//! One rank's links: a lane to each peer for collectives, and another for point-to-point messages.

use super::Poll;
use crate::device::{Device, UserPointer};
use crate::error::{Error, Result};
use crate::os::process::Watch;
use crate::transport::board::Board;
use crate::transport::plugin::{PluginLink, PluginReceiver, PluginSender};
use crate::transport::rdma::{RdmaLink, RdmaReceiver, RdmaSender};
use crate::transport::shm::{self, Arena, Lane, LentMemory, Reach, RingReceiver, RingSender};
use crate::transport::tcp::{Network, TcpReceiver, TcpSender};
use crate::transport::{MessageHead, Outgoing, Receiver, Route, Sender, mem};
use crate::types::Rank;
use std::collections::VecDeque;
use std::sync::Arc;

/// Point-to-point messages up to this size are copied through the ring, so that a send returns before the
/// receiver comes, as long as the ring has room. The documented eager limit.
pub(crate) const EAGER_BYTES: usize = 64 << 10;

/// Most bytes that an operation moves between two looks at everything else.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Both halves of the link to one peer, and what is under way on it.
#[derive(Debug)]
pub(crate) struct PeerLane {
    pub(crate) sender: Box<dyn Sender>,
    pub(crate) receiver: Box<dyn Receiver>,
    /// Messages in order; the first `handed_over` of them only wait for the peer.
    outbound: VecDeque<Outgoing>,
    handed_over: usize,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Of messages, as far as they have gone.
    sent_bytes: u64,
    /// The connection, to a rank of another host.
    link: Option<Arc<dyn Route>>,
}

impl PeerLane {
    /// Queues a message and offers it at once.
    pub(crate) fn send(&mut self, device: &dyn Device, source: UserPointer, head: MessageHead) -> Result<()> {
        self.queue(device, Outgoing::new(source, head))
    }

    /// The same for any message.
    pub(crate) fn queue(&mut self, device: &dyn Device, message: Outgoing) -> Result<()> {
        self.sent += 1;
        self.outbound.push_back(message);
        self.pump(device).map(|_| ())
    }

    /// Offers what waits, forgets what is done; true if anything moved.
    pub(crate) fn pump(&mut self, device: &dyn Device) -> Result<bool> {
        let mut moved = false;
        while let Some(message) = self.outbound.get_mut(self.handed_over) {
            let gone = message.gone_bytes();
            moved |= self.sender.offer(device, message)?;
            self.sent_bytes += (message.gone_bytes() - gone) as u64;
            if !message.is_handed_over() {
                break;
            }
            self.handed_over += 1;
        }
        while self.handed_over > 0 && self.outbound.front().is_some_and(|first| first.is_done(&*self.sender))
        {
            self.outbound.pop_front();
            self.handed_over -= 1;
            moved = true;
        }
        Ok(moved)
    }

    /// How many of the messages that were sent are over: the peer needs nothing more for them.
    pub(crate) fn finished(&self) -> u64 {
        self.sent - self.outbound.len() as u64
    }

    /// True if the peer needs none of our memory any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.outbound.is_empty()
    }
}

/// The lanes of one kind to all peers, made when first needed.
#[derive(Debug)]
pub(crate) struct Lanes {
    arena: Arc<Arena>,
    rank: Rank,
    kind: Lane,
    reach: Arc<[Reach]>,
    /// The way to ranks of other hosts, where there are some.
    network: Option<Arc<Network>>,
    lanes: Vec<Option<Box<PeerLane>>>,
}

impl Lanes {
    fn new(
        arena: Arc<Arena>,
        rank: Rank,
        kind: Lane,
        reach: Arc<[Reach]>,
        network: Option<Arc<Network>>,
    ) -> Self {
        let lanes = reach.iter().map(|_| None).collect();
        Self { arena, rank, kind, reach, network, lanes }
    }

    /// The lane to a peer.
    pub(crate) fn to(&mut self, peer: Rank) -> &mut PeerLane {
        let (arena, rank, kind, reach) = (&self.arena, self.rank, self.kind, self.reach[peer]);
        let network = self.network.as_ref().filter(|_| !arena.members().has(peer));
        self.lanes[peer].get_or_insert_with(|| {
            let mut route: Option<Arc<dyn Route>> = None;
            let (sender, receiver): (Box<dyn Sender>, Box<dyn Receiver>) = if let Some(network) = network {
                let link = network.link(peer, kind);
                if let Some(chosen) = network.plugin_towards(peer) {
                    let link = PluginLink::new(link, chosen);
                    route = Some(link.clone());
                    (Box::new(PluginSender::new(link.clone())), Box::new(PluginReceiver::new(link)))
                } else if let Some(ports) = network.ports_towards(peer) {
                    let link = RdmaLink::new(link, ports);
                    route = Some(link.clone());
                    (Box::new(RdmaSender::new(link.clone())), Box::new(RdmaReceiver::new(link)))
                } else {
                    route = Some(link.clone());
                    (Box::new(TcpSender::new(link.clone())), Box::new(TcpReceiver::new(link)))
                }
            } else {
                let lend_above = lend_above(reach, kind, arena.geometry().ring_bytes());
                (
                    Box::new(RingSender::new(arena.clone(), rank, peer, kind, lend_above)),
                    Box::new(RingReceiver::new(arena.clone(), peer, rank, kind, reach)),
                )
            };
            let outbound = VecDeque::new();
            Box::new(PeerLane {
                sender,
                receiver,
                outbound,
                handed_over: 0,
                sent: 0,
                received: 0,
                sent_bytes: 0,
                link: route,
            })
        })
    }

    /// What has been sent to a peer and received from it, in bytes.
    fn traffic(&self, peer: Rank) -> Option<(u64, u64)> {
        self.lanes[peer].as_ref().map(|lane| (lane.sent_bytes, lane.receiver.consumed_bytes()))
    }

    /// Before this rank sleeps: has its bell rung when a connection is ready that it may wait for.
    fn ring_when_ready(&self) -> Result<()> {
        if self.network.is_none() {
            return Ok(());
        }
        for lane in self.lanes.iter().flatten() {
            if let Some(link) = &lane.link {
                let sends = lane.handed_over < lane.outbound.len();
                link.ring_when(lane.receiver.waits_for(), if sends { lane.sender.waits_for() } else { 0 })?;
            }
        }
        Ok(())
    }

    /// True if something may still come from a peer on another host.
    fn is_open(&self, peer: Rank) -> bool {
        let link = self.lanes[peer].as_ref().and_then(|lane| lane.link.as_ref());
        link.is_some_and(|link| link.is_open())
    }

    fn buffer_bytes(&self) -> usize {
        self.lanes.iter().flatten().map(|lane| lane.receiver.buffer_bytes()).sum()
    }

    /// Tells the peers that can hear it why nothing more will come.
    fn close_failed(&mut self, error: &Error) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.sender.close_failed(error);
        }
    }

    /// True if a rank has gone in good order.
    pub(crate) fn has_left(&self, peer: Rank) -> bool {
        self.arena.state_of(peer) == shm::RankState::Left
    }

    /// Pumps every lane.
    pub(crate) fn pump(&mut self, device: &dyn Device) -> Result<bool> {
        let mut moved = false;
        for lane in self.lanes.iter_mut().flatten().filter(|lane| !lane.outbound.is_empty()) {
            moved |= lane.pump(device)?;
        }
        Ok(moved)
    }

    /// Done once no peer needs our memory any more.
    pub(crate) fn poll_drained(&mut self, device: &dyn Device) -> Result<Poll> {
        let moved = self.pump(device)?;
        if self.lanes.iter().flatten().all(|lane| lane.is_drained()) {
            return Ok(Poll::Done);
        }
        Ok(if moved { Poll::Advanced } else { Poll::Blocked })
    }

    /// The peers that still need our memory.
    pub(crate) fn undrained(&self) -> impl Iterator<Item = Rank> {
        let busy = |lane: &Option<Box<PeerLane>>| lane.as_ref().is_some_and(|lane| !lane.is_drained());
        self.lanes.iter().enumerate().filter(move |(_, lane)| busy(lane)).map(|(peer, _)| peer)
    }
}

fn lend_above(reach: Reach, kind: Lane, ring_bytes: usize) -> usize {
    let eager = if kind == Lane::PointToPoint { EAGER_BYTES.min(ring_bytes / 2) } else { 0 };
    match reach {
        Reach::SameProcess => mem::LEND_ABOVE_BYTES.max(eager),
        Reach::CrossProcess(_) => shm::LEND_ABOVE_BYTES.max(eager),
        Reach::None => usize::MAX,
    }
}

/// Everything that connects one rank with its peers.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) board: Board,
    /// Buffers that are read in place, without a link.
    pub(crate) lent: LentMemory,
    /// Whether every rank can read every other's memory, once all have said so.
    pub(crate) everyone_reads: Option<bool>,
    pub(crate) collective: Lanes,
    pub(crate) point_to_point: Lanes,
}

impl Fabric {
    /// Says by what to get at each peer's process, none where that cannot be.
    pub fn watch_peers(&mut self, watches: impl Iterator<Item = Option<Arc<Watch>>>) {
        self.lent.set_watches(watches);
    }

    /// Memory of this rank's own that its links keep.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.collective.buffer_bytes() + self.point_to_point.buffer_bytes()
    }

    /// True if `peer` is a rank of this host.
    #[inline]
    pub(crate) fn is_local(&self, peer: Rank) -> bool {
        self.board.has(peer)
    }

    /// The peers that messages were exchanged with, and how many bytes of them were sent and received.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = (Rank, u64, u64)> {
        (0..self.collective.lanes.len()).filter_map(|peer| {
            let of = [self.collective.traffic(peer), self.point_to_point.traffic(peer)];
            let (sent, received) =
                of.into_iter().flatten().reduce(|all, lane| (all.0 + lane.0, all.1 + lane.1))?;
            Some((peer, sent, received))
        })
    }

    /// True if what a rank of another host has sent before it left may still be on its way, in messages of this kind.
    pub(crate) fn hears(&self, peer: Rank, kind: Lane) -> bool {
        match kind {
            Lane::Collective => self.collective.is_open(peer),
            Lane::PointToPoint => self.point_to_point.is_open(peer),
        }
    }

    /// Before this rank sleeps: has its bell rung when a connection is ready that it may wait for.
    pub(crate) fn ring_when_ready(&self) -> Result<()> {
        self.collective.ring_when_ready()?;
        self.point_to_point.ring_when_ready()
    }

    /// Takes everything down after a failure, of which peers on other hosts hear.
    pub(crate) fn close_failed(mut self, error: &Error) {
        self.collective.close_failed(error);
        self.point_to_point.close_failed(error);
    }

    /// The connections of `rank`; `reach` says how it gets at each peer's lent memory, `network` leads to those of other
    /// hosts.
    pub fn new(arena: &Arc<Arena>, rank: Rank, reach: &[Reach], network: Option<Arc<Network>>) -> Self {
        for (source, _) in reach.iter().enumerate().filter(|(_, reach)| **reach != Reach::None) {
            arena.set_reads(rank, source);
        }
        let reach: Arc<[Reach]> = Arc::from(reach);
        Self {
            board: Board::new(arena.clone(), rank),
            lent: LentMemory::new(arena.clone(), rank, reach.clone()),
            everyone_reads: None,
            collective: Lanes::new(arena.clone(), rank, Lane::Collective, reach.clone(), network.clone()),
            point_to_point: Lanes::new(arena.clone(), rank, Lane::PointToPoint, reach, network),
        }
    }
}
