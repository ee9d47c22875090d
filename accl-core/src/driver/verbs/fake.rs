//! Verbs for tests of this crate: queue pairs within the process, whose writes take their time, complete out of order across pairs, and fail
//! when they are told to.
//!
//! Time passes when anybody looks for completions. What is random comes from a seed. As with real devices, writes of one pair stay in
//! order, a write may arrive whose sender never hears so, and what a pair in error had in hand comes back flushed.
//!
//! It is longer than most files since a network is one thing: what a pair does shows at the other one.
//!
//! # Safety
//! Copies stay within memory that was registered with the same fake, and whoever registers keeps it until the registration is dropped.
#![allow(unsafe_code)]

use super::{
    Completion, Completions, Connection, Device, FLUSHED, Gid, GidEntry, GidKind, Limits, PairShape, Port,
    QueuePair, Registration, Verbs, Write, refused,
};
use crate::error::Result;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

const RETRY_EXCEEDED: u32 = 12;
const ACCESS_REFUSED: u32 = 10;
const NOT_READY: u32 = 13;
/// How long a write is under way at most.
const MOST_DELAY: u64 = 8;

/// A pair: its device, and its number there.
type Place = (usize, u32);

/// What can be made to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The next write from this port on gets lost, and its pair fails.
    Lost { port: usize },
    /// It arrives, but its sender is told that it did not.
    Unacknowledged { port: usize },
}

/// Everything that the fake's devices share: the network.
#[derive(Debug)]
pub(crate) struct Fake(Arc<World>);

#[derive(Debug)]
struct World {
    devices: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    random: u64,
    now: u64,
    next: u32,
    regions: BTreeMap<u32, (usize, usize)>,
    queues: BTreeMap<u32, Queue>,
    /// Each device numbers its pairs for itself.
    pairs: BTreeMap<Place, PairState>,
    last_pair: BTreeMap<usize, u32>,
    faults: VecDeque<Fault>,
    /// Ports that are down.
    down: Vec<usize>,
    /// Nothing passes, and nobody is told so.
    is_silent: bool,
    /// Calls that fail: the function, and how many of its calls are to pass before.
    refusals: BTreeMap<&'static str, u64>,
    counts: Counts,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) writes: [u64; 4],
    pub(crate) inline: u64,
    pub(crate) signalled: u64,
    pub(crate) not_ready: u64,
    pub(crate) failed_pairs: u64,
}

#[derive(Debug)]
struct Queue {
    found: VecDeque<Completion>,
    capacity: usize,
    armed: bool,
    event: Arc<OwnedFd>,
}

#[derive(Debug)]
struct PairState {
    queue: u32,
    port: usize,
    peer: Option<Place>,
    has_failed: bool,
    room: u32,
    sends: u32,
    /// Writes under way, in order: when they arrive.
    under_way: VecDeque<(u64, Write, Option<Vec<u8>>)>,
    /// Arrived ones whose completions are under way.
    acknowledged: VecDeque<(u64, Write)>,
    unreported: u32,
}

impl Fake {
    /// One with so many devices of one port each.
    pub(crate) fn new(devices: usize, seed: u64) -> Self {
        let state = State { random: seed | 1, next: 100, ..State::default() };
        Self(Arc::new(World { devices, state: Mutex::new(state) }))
    }

    /// Has something go wrong, behind what is to go wrong already.
    pub(crate) fn inject(&self, fault: Fault) {
        self.0.state.lock().faults.push_back(fault);
    }

    /// Takes a port down, or up again.
    pub(crate) fn set_down(&self, port: usize, down: bool) {
        let mut state = self.0.state.lock();
        state.down.retain(|one| *one != port);
        if down {
            state.down.push(port);
        }
    }

    /// Has the network let nothing through from now on, or everything again.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.0.state.lock().is_silent = silent;
    }

    /// Has one call of a function refused, after so many that are not.
    pub(crate) fn refuse(&self, function: &'static str, after: u64) {
        self.0.state.lock().refusals.insert(function, after);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.state.lock().counts
    }

    /// What is alive: registrations, completion queues, pairs.
    pub(crate) fn live(&self) -> (usize, usize, usize) {
        let state = self.0.state.lock();
        (state.regions.len(), state.queues.len(), state.pairs.len())
    }
}

impl Verbs for Fake {
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let make = |port| Arc::new(FakeDevice { world: self.0.clone(), port, name: format!("fake{port}") });
        Ok((0..self.0.devices).map(|port| make(port) as Arc<dyn Device>).collect())
    }
}

impl State {
    fn random(&mut self, below: u64) -> u64 {
        // Xorshift, by Marsaglia.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn may(&mut self, function: &'static str) -> Result<()> {
        match self.refusals.get_mut(function) {
            None => Ok(()),
            Some(0) => {
                self.refusals.remove(function);
                Err(refused(function, "fake", libc::ENOMEM))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn report(&mut self, queue: u32, completion: Completion) {
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        assert!(queue.found.len() < queue.capacity, "a completion queue that runs over");
        queue.found.push_back(completion);
        if std::mem::take(&mut queue.armed) {
            let _ = rustix::io::write(&queue.event, &1u64.to_ne_bytes());
        }
    }

    fn delay(&mut self) -> u64 {
        self.now + self.random(MOST_DELAY)
    }

    /// Takes a fault that concerns this port.
    fn fault(&mut self, port: usize) -> Option<Fault> {
        let concerns = |fault: &Fault| match fault {
            Fault::Lost { port: of } | Fault::Unacknowledged { port: of } => *of == port,
        };
        let index = self.faults.iter().position(concerns)?;
        self.faults.remove(index)
    }

    /// Lets time pass.
    fn advance(&mut self) {
        self.now += 1;
        if self.is_silent {
            return;
        }
        let places: Vec<Place> = self.pairs.keys().copied().collect();
        for place in places {
            self.deliver(place);
            self.acknowledge(place);
        }
    }

    fn deliver(&mut self, number: Place) {
        loop {
            let Some(pair) = self.pairs.get_mut(&number).filter(|pair| !pair.has_failed) else { return };
            let Some((due, ..)) = pair.under_way.front() else { return };
            if *due > self.now {
                return;
            }
            let port = pair.port;
            let Some((_, write, carried)) = pair.under_way.pop_front() else { return };
            let peer = pair.peer.and_then(|peer| Some((peer, self.pairs.get(&peer)?)));
            let gone = peer.is_none_or(|(_, peer)| peer.has_failed || self.down.contains(&peer.port));
            let peer = peer.map_or((0, 0), |(number, _)| number);
            let fault = self.fault(port);
            if gone || self.down.contains(&port) || matches!(fault, Some(Fault::Lost { .. })) {
                self.end(number, Some((write, RETRY_EXCEEDED)));
                return;
            }
            let status = self.arrive(peer, &write, carried);
            if status != 0 || fault.is_some() {
                self.end(number, Some((write, if status == 0 { RETRY_EXCEEDED } else { status })));
                return;
            }
            let due = self.delay();
            if let Some(pair) = self.pairs.get_mut(&number) {
                pair.acknowledged.push_back((due, write));
            }
        }
    }

    /// A write arrives at a pair; the status for its sender.
    fn arrive(&mut self, at: Place, write: &Write, carried: Option<Vec<u8>>) -> u32 {
        if write.bytes > 0 {
            let (start, bytes) = self.regions.get(&write.remote_key).copied().unwrap_or((0, 0));
            let target = write.target as usize;
            let end = target + write.bytes as usize;
            if target < start || end > start + bytes {
                return ACCESS_REFUSED;
            }
            let data = match carried {
                Some(data) => data,
                None => {
                    let from = std::ptr::with_exposed_provenance::<u8>(write.source);
                    // SAFETY: the source lies in a registration, as `write` has checked.
                    unsafe { std::slice::from_raw_parts(from, write.bytes as usize) }.to_vec()
                }
            };
            let to = std::ptr::with_exposed_provenance_mut::<u8>(target);
            // SAFETY: the target lies in a registration, as was checked above.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        }
        let Some(word) = write.word else { return 0 };
        let Some(pair) = self.pairs.get_mut(&at) else { return RETRY_EXCEEDED };
        if pair.room == 0 {
            self.counts.not_ready += 1;
            return NOT_READY;
        }
        pair.room -= 1;
        let queue = pair.queue;
        let completion =
            Completion { pair: at.1, word: Some(word), bytes: write.bytes, ..Completion::default() };
        self.report(queue, completion);
        0
    }

    fn acknowledge(&mut self, number: Place) {
        loop {
            let now = self.now;
            let Some(pair) = self.pairs.get_mut(&number).filter(|pair| !pair.has_failed) else { return };
            if pair.acknowledged.front().is_none_or(|(due, _)| *due > now) {
                return;
            }
            let Some((_, write)) = pair.acknowledged.pop_front() else { return };
            pair.unreported += 1;
            if write.is_signalled {
                // Only a completion gives the requests before it back.
                pair.sends += std::mem::take(&mut pair.unreported);
                let queue = pair.queue;
                self.report(
                    queue,
                    Completion { number: write.number, pair: number.1, ..Completion::default() },
                );
            }
        }
    }

    /// A pair fails: everything that it has in hand comes back.
    fn end(&mut self, number: Place, first: Option<(Write, u32)>) {
        // What had arrived before is reported before.
        for (due, _) in self.pairs.get_mut(&number).map(|pair| &mut pair.acknowledged).into_iter().flatten() {
            *due = 0;
        }
        self.acknowledge(number);
        let Some(pair) = self.pairs.get_mut(&number).filter(|pair| !pair.has_failed) else { return };
        pair.has_failed = true;
        let (queue, room) = (pair.queue, std::mem::take(&mut pair.room));
        let writes: Vec<_> = pair.under_way.drain(..).map(|(_, write, _)| write).collect();
        self.counts.failed_pairs += 1;
        let failed = |number_of: u64, status| Completion {
            number: number_of,
            status,
            pair: number.1,
            ..Completion::default()
        };
        if let Some((write, status)) = first {
            self.report(queue, failed(write.number, status));
        }
        for write in writes {
            self.report(queue, failed(write.number, FLUSHED));
        }
        for _ in 0..room {
            self.report(queue, failed(0, FLUSHED));
        }
    }
}

#[derive(Debug)]
struct FakeDevice {
    world: Arc<World>,
    port: usize,
    name: String,
}

impl Device for FakeDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn ports(&self) -> u8 {
        1
    }

    fn limits(&self) -> Limits {
        Limits { pairs: 1 << 10, requests: 1 << 12, completions: 1 << 14, registration_bytes: 1 << 40 }
    }

    fn port(&self, _port: u8) -> Result<Port> {
        let mut state = self.world.state.lock();
        state.may("ibv_query_port")?;
        let is_active = !state.down.contains(&self.port);
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, self.port as u8, 1]);
        let link_local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        Ok(Port {
            is_active,
            state: if is_active { 4 } else { 1 },
            is_ethernet: true,
            mtu: 3,
            message_bytes: 1 << 30,
            lid: 0,
            gids: vec![
                GidEntry { index: 0, kind: GidKind::RoceV2, gid: link_local },
                GidEntry { index: 1, kind: GidKind::RoceV2, gid },
            ],
        })
    }

    fn is_active(&self, port: u8) -> Result<bool> {
        self.port(port).map(|port| port.is_active)
    }

    fn news(&self) -> Vec<String> {
        Vec::new()
    }

    fn register(&self, start: usize, bytes: usize, _relaxed: bool) -> Result<Box<dyn Registration>> {
        let mut state = self.world.state.lock();
        state.may("ibv_reg_mr")?;
        let key = state.number();
        state.regions.insert(key, (start, bytes));
        Ok(Box::new(FakeRegion { world: self.world.clone(), key }))
    }

    fn completions(&self, entries: u32) -> Result<Box<dyn Completions>> {
        let mut state = self.world.state.lock();
        state.may("ibv_create_cq")?;
        let number = state.number();
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let event = Arc::new(event);
        let queue =
            Queue { found: VecDeque::new(), capacity: entries as usize, armed: false, event: event.clone() };
        state.queues.insert(number, queue);
        Ok(Box::new(FakeQueue { world: self.world.clone(), port: self.port, number, event }))
    }
}

#[derive(Debug)]
struct FakeRegion {
    world: Arc<World>,
    key: u32,
}

impl Registration for FakeRegion {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.world.state.lock().regions.remove(&self.key);
    }
}

#[derive(Debug)]
struct FakeQueue {
    world: Arc<World>,
    port: usize,
    number: u32,
    event: Arc<OwnedFd>,
}

impl Completions for FakeQueue {
    fn poll(&mut self, into: &mut [Completion]) -> Result<usize> {
        let mut state = self.world.state.lock();
        state.may("ibv_poll_cq")?;
        state.advance();
        let Some(queue) = state.queues.get_mut(&self.number) else { return Ok(0) };
        let count = into.len().min(queue.found.len());
        for (place, found) in into.iter_mut().zip(queue.found.drain(..count)) {
            *place = found;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<()> {
        let mut state = self.world.state.lock();
        // Nothing happens while everybody sleeps, so what is under way comes now, and rings.
        if let Some(queue) = state.queues.get_mut(&self.number) {
            queue.armed = true;
        }
        for _ in 0..2 * MOST_DELAY {
            state.advance();
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn pair(&mut self, shape: PairShape) -> Result<Box<dyn QueuePair>> {
        let mut state = self.world.state.lock();
        state.may("ibv_create_qp")?;
        // The same ones on each device, as with real ones that were started together.
        let last = state.last_pair.entry(self.port).or_insert(100);
        *last += 1;
        let number = (self.port, *last);
        let pair = PairState {
            queue: self.number,
            port: self.port,
            peer: None,
            has_failed: false,
            room: 0,
            sends: shape.sends,
            under_way: VecDeque::new(),
            acknowledged: VecDeque::new(),
            unreported: 0,
        };
        state.pairs.insert(number, pair);
        let inline_bytes = shape.inline_bytes.min(128);
        Ok(Box::new(FakePair { world: self.world.clone(), number, inline_bytes }))
    }
}

impl Drop for FakeQueue {
    fn drop(&mut self) {
        self.world.state.lock().queues.remove(&self.number);
    }
}

#[derive(Debug)]
struct FakePair {
    world: Arc<World>,
    number: Place,
    inline_bytes: u32,
}

impl QueuePair for FakePair {
    fn number(&self) -> u32 {
        self.number.1
    }

    fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    fn connect(&mut self, with: &Connection) -> Result<()> {
        let mut state = self.world.state.lock();
        state.may("ibv_modify_qp")?;
        if let Some(pair) = state.pairs.get_mut(&self.number) {
            pair.peer = Some((usize::from(with.gid.0[14]), with.pair));
        }
        Ok(())
    }

    fn write(&mut self, write: &Write) -> Result<()> {
        let mut state = self.world.state.lock();
        state.may("ibv_post_send")?;
        let (start, bytes) = state.regions.get(&write.local_key).copied().unwrap_or((0, 0));
        let inside = write.source >= start && write.source + write.bytes as usize <= start + bytes;
        assert!(write.bytes == 0 || inside, "a write from memory that is not registered");
        assert!(!write.is_inline || write.bytes <= self.inline_bytes, "too long to be carried");
        let carried = write.is_inline.then(|| {
            let from = std::ptr::with_exposed_provenance::<u8>(write.source);
            // SAFETY: the source lies in a registration, as was checked above.
            unsafe { std::slice::from_raw_parts(from, write.bytes as usize) }.to_vec()
        });
        state.counts.inline += u64::from(write.is_inline);
        state.counts.signalled += u64::from(write.is_signalled);
        let due = state.delay();
        let Some(pair) = state.pairs.get_mut(&self.number) else { return Ok(()) };
        assert!(pair.sends > 0, "a send queue that runs over");
        pair.sends -= 1;
        let due = pair.under_way.back().map_or(due, |(last, ..)| due.max(*last));
        let (failed, queue, port) = (pair.has_failed, pair.queue, pair.port);
        if failed {
            let flushed = Completion {
                number: write.number,
                status: FLUSHED,
                pair: self.number.1,
                ..Completion::default()
            };
            state.report(queue, flushed);
        } else {
            pair.under_way.push_back((due, *write, carried));
            state.counts.writes[port] += 1;
        }
        Ok(())
    }

    fn expect(&mut self, count: u32) -> Result<()> {
        let mut state = self.world.state.lock();
        state.may("ibv_post_recv")?;
        let Some(pair) = state.pairs.get_mut(&self.number) else { return Ok(()) };
        let (failed, queue) = (pair.has_failed, pair.queue);
        if !failed {
            pair.room += count;
            return Ok(());
        }
        for _ in 0..count {
            let flushed = Completion { status: FLUSHED, pair: self.number.1, ..Completion::default() };
            state.report(queue, flushed);
        }
        Ok(())
    }

    fn fail(&mut self) -> Result<()> {
        let mut state = self.world.state.lock();
        // Some of what is under way still arrives, though its sender will not hear so.
        let count = state.random(3);
        for _ in 0..count {
            let Some(pair) = state.pairs.get_mut(&self.number).filter(|pair| !pair.has_failed) else { break };
            let Some((_, write, carried)) = pair.under_way.pop_front() else { break };
            let Some(peer) = pair.peer else { break };
            let alive = state.pairs.get(&peer).is_some_and(|peer| !peer.has_failed);
            if alive {
                state.arrive(peer, &write, carried);
            }
            state.report_flushed(self.number, &write);
        }
        state.end(self.number, None);
        Ok(())
    }
}

impl State {
    fn report_flushed(&mut self, number: Place, write: &Write) {
        let Some(queue) = self.pairs.get(&number).map(|pair| pair.queue) else { return };
        let flushed =
            Completion { number: write.number, status: FLUSHED, pair: number.1, ..Completion::default() };
        self.report(queue, flushed);
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        self.world.state.lock().pairs.remove(&self.number);
    }
}
