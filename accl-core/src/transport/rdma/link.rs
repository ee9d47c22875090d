//! What both halves of a link have in common: paths, rings, and the connection that carries records.
//!
//! `session.rs` has what is said over that connection, and what becomes of paths; here is what happens for each segment.

use super::channel::Channel;
use super::path::{PathState, Stage, Todo};
use super::ports::LocalPort;
use super::record::{PairAddress, PortAddress, Record};
use super::window::{By, ReceiveWindow, SendWindow, Word};
use super::{CREDITS, RING_BYTES, SLOT_BYTES, SLOTS};
use crate::device::UserPointer;
use crate::driver::verbs::{Completion, Completions, QueuePair, Registration, Write, status_text};
use crate::error::{Error, Result};
use crate::memory::{Pages, Scratch};
use crate::os::clock;
use crate::transport::Route;
use crate::transport::tcp::{Link, Tended, Watched};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Every so many writes of a queue pair one is to report: room in its queue comes back by that.
const SIGNAL_EVERY: u64 = 8;
/// Segments of one queue pair that may be under way: with the unreported ones of before.
const SEGMENTS: u64 = SLOTS as u64 + SIGNAL_EVERY;
/// What a queue pair's send queue holds, with credits.
pub(super) const SENDS: u32 = SEGMENTS as u32 + CREDITS;
/// What may come at once on a queue pair: a ring of segments, and credits.
pub(super) const RECEIVES: u32 = SLOTS as u32 + CREDITS;
/// Writes up to this size should be carried by their requests.
pub(super) const INLINE_BYTES: u32 = 220;
/// How often a link at rest looks at its connection, in looks for completions.
const LOOK_EVERY: u32 = 256;
/// Messages up to this size need not wait for paths: the limit up to which a send returns before its receiver comes.
const EARLY_BYTES: usize = 64 << 10;

/// The link between two ranks for one kind of messages.
#[derive(Debug)]
pub struct RdmaLink {
    // Before the state: who drops a link gives that back, and not the thread that tends it.
    _tended: Option<Tended>,
    tcp: Arc<Link>,
    core: Arc<Mutex<Core>>,
}

/// A port of this host, as this link uses it.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) port: LocalPort,
    // Before the completions, whose descriptor it watches.
    pub(super) watched: Watched,
    pub(super) completions: Box<dyn Completions>,
    /// Of both rings.
    pub(super) _registrations: [Box<dyn Registration>; 2],
    pub(super) local_key: u32,
    pub(super) ring_key: u32,
}

/// A path, as far as this end goes.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) state: PathState,
    /// The ports here and there.
    pub(super) rail: usize,
    pub(super) peer_port: usize,
    pub(super) pair: Option<Box<dyn QueuePair>>,
    /// The pair's number; 0 for none.
    pub(super) number: u32,
    pub(super) first_packet: u32,
    pub(super) remote: Option<PairAddress>,
    /// Writes that were begun, and how many of them are known to be done.
    pub(super) posted: u64,
    pub(super) done: u64,
    /// The last one that reports.
    pub(super) signalled: u64,
    /// Receive requests that have not come back.
    pub(super) expected: u32,
    /// Until when its packet is to have passed, or all requests are to have come back.
    pub(super) deadline: Option<Instant>,
    /// When this end may offer the path again, and how long it waits after that.
    pub(super) offer_from: Instant,
    pub(super) pause: Duration,
    /// It has been up, or could not be.
    pub(super) was_tried: bool,
    /// It has been up in this epoch, and more has passed by it than the packet that it was tried with.
    pub(super) was_up: bool,
    pub(super) has_carried: bool,
    /// One of the ends cannot use it at all.
    pub(super) is_useless: bool,
    /// What was wrong with it last.
    pub(super) reason: String,
    pub(super) segments: u64,
}

impl Path {
    /// True if a write may be begun, with so many under way.
    pub(super) fn has_room(&self, most: u64) -> bool {
        self.state.stage() == Stage::Up && self.posted - self.done < most
    }
}

/// The state behind both halves. Queue pairs go before what they were made of, and that before the memory that they reach.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) paths: Vec<Path>,
    pub(super) rails: Vec<Rail>,
    pub(super) send_ring: Pages,
    pub(super) receive_ring: Pages,
    /// A copy of what is looked at.
    pub(super) aside: Scratch,
    pub(super) tcp: Arc<Link>,
    /// What this host has for the link.
    pub(super) ports: Vec<LocalPort>,
    pub(super) peer_ports: Vec<PortAddress>,
    pub(super) channel: Channel,
    pub(super) has_greeted: bool,
    /// All paths have been tried once.
    pub(super) is_settled: bool,
    pub(super) sends: SendWindow<SLOTS>,
    pub(super) receives: ReceiveWindow<SLOTS>,
    /// Why nothing more comes.
    pub(super) failure: Option<Error>,
    /// Completions and records that have come.
    pub(super) events: u64,
    /// Looks for completions since something came, or the connection was looked at.
    idle_looks: u32,
    is_armed: bool,
    /// The path that is to take the next segment.
    turn: usize,
    pub(super) ports_seen: Instant,
    pub(super) is_finished: bool,
}

impl RdmaLink {
    /// The link over `tcp`, by these ports of this host.
    pub fn new(tcp: Arc<Link>, ports: &[LocalPort]) -> Arc<Self> {
        let core = Core {
            paths: Vec::new(),
            rails: Vec::new(),
            send_ring: Pages::default(),
            receive_ring: Pages::default(),
            aside: Scratch::default(),
            tcp: tcp.clone(),
            ports: ports.to_vec(),
            peer_ports: Vec::new(),
            channel: Channel::default(),
            has_greeted: false,
            is_settled: false,
            sends: SendWindow::new(),
            receives: ReceiveWindow::new(),
            failure: None,
            events: 0,
            idle_looks: 0,
            is_armed: false,
            turn: 0,
            ports_seen: clock::now(),
            is_finished: false,
        };
        let core = Arc::new(Mutex::new(core));
        // Without the thread it is tended by who sleeps.
        let _tended = Tended::new(core.clone()).ok();
        Arc::new(Self { _tended, tcp, core })
    }

    /// The two ends of one, over this host's own addresses, between rank 0 and rank 1 of a communicator, not settled yet.
    #[cfg(test)]
    pub(crate) fn pair(
        verbs: &dyn crate::driver::verbs::Verbs,
        settings: &crate::config::Network,
    ) -> [Arc<Self>; 2] {
        Link::pair_with(1, settings, None).map(|tcp| {
            let (ports, _) = super::ports::ports_of(verbs, &settings.verbs).unwrap();
            Self::new(tcp, &ports)
        })
    }

    /// Has both ends come to terms, and says how many paths are up.
    #[cfg(test)]
    pub(crate) fn settle(ends: &[Arc<Self>; 2]) -> usize {
        let end = clock::now() + Duration::from_secs(60);
        while !ends.iter().all(|end| end.core().is_settled) && clock::now() < end {
            ends.iter().for_each(|end| end.core().progress());
            std::thread::yield_now();
        }
        let [one, other] = ends.each_ref().map(|end| {
            let core = end.core();
            assert!(core.is_settled, "{:?}", core.paths);
            core.paths.iter().filter(|path| path.state.stage() == Stage::Up).count()
        });
        assert_eq!(one, other);
        one
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }
}

impl Route for RdmaLink {
    fn ring_when(&self, reads: u64, writes: u64) -> Result<()> {
        let mut core = self.core();
        core.is_armed = true;
        for rail in &mut core.rails {
            rail.completions.arm()?;
            rail.watched.arm(rail.completions.descriptor(), true, false)?;
        }
        // What others wait for, and not this rank, is seen after here only by those who tend it.
        if core.has_greeted {
            core.tend(false);
        }
        let writes = if core.channel.is_flushed() { 0 } else { writes.max(1) };
        drop(core);
        self.tcp.ring_when(reads.max(1), writes)
    }

    fn is_open(&self) -> bool {
        let mut core = self.core();
        // What has come before the end of the connection has come.
        core.look_for_completions();
        self.tcp.is_open() || core.receives.first().is_some()
    }
}

impl Core {
    /// Does everything that can be done now.
    pub(super) fn progress(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.idle_looks = LOOK_EVERY;
            for rail in &mut self.rails {
                if let Err(error) = rail.completions.clear() {
                    self.failure.get_or_insert(error);
                }
            }
        }
        self.look_for_completions();
        self.idle_looks += 1;
        if self.idle_looks >= LOOK_EVERY || !self.is_at_rest() {
            self.idle_looks = 0;
            self.look_at_connection();
        }
        self.give_credit();
    }

    /// True if nothing is to be expected of the connection.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_settled
            && self.channel.is_flushed()
            && self.paths.iter().all(|path| matches!(path.state.stage(), Stage::Up | Stage::Idle))
            // Without a path everything comes by the connection.
            && self.paths.iter().any(|path| path.state.stage() == Stage::Up)
    }

    /// An error if there is a reason why nothing moves.
    pub(super) fn check_blocked(&mut self) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.tcp.socket().map(|_| ())
    }

    /// Ends the link: the peer has said what cannot be.
    pub(super) fn end_wrong(&mut self, what: impl std::fmt::Display) {
        let error = self.tcp.broken(what);
        self.failure.get_or_insert(error);
    }

    pub(super) fn look_for_completions(&mut self) {
        let mut found = [Completion::default(); 16];
        for index in 0..self.rails.len() {
            loop {
                let count = match self.rails[index].completions.poll(&mut found) {
                    Ok(count) => count,
                    Err(error) => {
                        self.rail_trouble(index, error.text());
                        break;
                    }
                };
                self.events += count as u64;
                for completion in &found[..count] {
                    self.complete(index, completion);
                }
                if count < found.len() {
                    break;
                }
                self.idle_looks = 0;
            }
        }
    }

    fn rail_trouble(&mut self, rail: usize, why: &str) {
        for index in 0..self.paths.len() {
            if self.paths[index].rail == rail {
                self.trouble(index, why);
            }
        }
    }

    fn complete(&mut self, rail: usize, completion: &Completion) {
        // Each device numbers its pairs for itself.
        let of = |path: &Path| path.rail == rail && path.number == completion.pair;
        let Some(index) = self.paths.iter().position(of) else { return };
        let path = &mut self.paths[index];
        // Requests to receive have no number.
        path.expected -= u32::from(completion.number == 0 && path.expected > 0);
        if completion.status != 0 {
            let (status, vendor) = (status_text(completion.status), completion.vendor_status);
            match path.state.stage() {
                Stage::Draining => self.see_drained(index),
                _ => self.trouble(index, &format!("{status} (status {}, {vendor:#x})", completion.status)),
            }
            return;
        }
        let Some(word) = completion.word else {
            path.done = path.done.max(completion.number);
            // The first write of an epoch is the packet that it is tried with.
            path.has_carried |= path.done > 1;
            if path.state.passed() == Todo::SayPassed {
                path.deadline = None;
                let epoch = path.state.epoch();
                self.channel.say(&Record::Passed { path: index as u8, epoch });
                self.see_up(index);
            }
            return;
        };
        let sound = match Word::read(word) {
            Word::Segment(word) => {
                completion.bytes as usize <= SLOT_BYTES && self.receives.arrive_word(word, completion.bytes)
            }
            Word::Credit(word) => self.sends.credit_word(word),
        };
        if !sound {
            self.end_wrong(format_args!("it has written the word {word:#x}, which is not due"));
        }
        let path = &mut self.paths[index];
        if path.state.stage() == Stage::Draining {
            self.see_drained(index);
        } else if let Some(pair) = &mut path.pair {
            // Before its slot is free again, so that there is always room for all that may come.
            match pair.expect(1) {
                Ok(()) => path.expected += 1,
                Err(error) => self.trouble(index, error.text()),
            }
        }
    }

    /// The next path that can take a write, in turn. An error if there is one, but not now.
    fn choose(&mut self, most: u64) -> std::result::Result<Option<usize>, ()> {
        let count = self.paths.len();
        let mut is_up = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            is_up |= self.paths[index].state.stage() == Stage::Up;
            if self.paths[index].has_room(most) {
                self.turn = index + 1;
                return Ok(Some(index));
            }
        }
        if is_up { Err(()) } else { Ok(None) }
    }

    /// Has segments go that wait.
    pub(super) fn dispatch(&mut self) {
        while let Some((number, bytes)) = self.sends.first_waiting() {
            match self.choose(SEGMENTS) {
                Ok(Some(path)) => self.write_segment(path, number, bytes),
                Err(()) => return,
                Ok(None) => {
                    if self.failure.is_some() || !self.channel.is_flushed() {
                        return;
                    }
                    if self.is_settled && self.settings().is_required {
                        self.end_required();
                        return;
                    }
                    let start = (number % SLOTS as u64) as usize * SLOT_BYTES;
                    let data = self.send_ring.read(start, bytes as usize);
                    self.channel.say(&Record::Segment { number, data });
                    self.sends.send(number, By::Tcp);
                    self.flush();
                }
            }
        }
    }

    fn flush(&mut self) {
        let tcp = self.tcp.clone();
        if let Ok(Some(socket)) = tcp.socket() {
            self.channel.flush(socket);
        }
    }

    fn write_segment(&mut self, index: usize, number: u64, bytes: u32) {
        let offset = (number % SLOTS as u64) as usize * SLOT_BYTES;
        let source = self.send_ring.start().address() + offset;
        if self.write(index, source, (offset, bytes), Some(Word::of_segment(number)), false) {
            self.sends.send(number, By::Path(index as u8));
            self.paths[index].segments += 1;
        }
    }

    /// Begins a write to a place of the peer's ring; false if that has ended the path.
    pub(super) fn write(
        &mut self,
        index: usize,
        source: usize,
        (offset, bytes): (usize, u32),
        word: Option<u32>,
        reports: bool,
    ) -> bool {
        let path = &mut self.paths[index];
        let (Some(pair), Some(remote)) = (&mut path.pair, path.remote) else { return false };
        let number = path.posted + 1;
        let is_signalled = reports || number - path.signalled >= SIGNAL_EVERY;
        let write = Write {
            number,
            source,
            bytes,
            local_key: self.rails[path.rail].local_key,
            target: remote.ring + offset as u64,
            remote_key: remote.key,
            word,
            is_signalled,
            is_inline: bytes > 0 && bytes <= pair.inline_bytes(),
        };
        if let Err(error) = pair.write(&write) {
            self.trouble(index, error.text());
            return false;
        }
        path.posted = number;
        if is_signalled {
            path.signalled = number;
        }
        true
    }

    /// Tells the peer how much is consumed, if it is time.
    pub(super) fn give_credit(&mut self) {
        let Some(consumed) = self.receives.credit_due().filter(|_| !self.channel.has_ended) else { return };
        match self.choose(SENDS.into()) {
            Ok(Some(path)) => {
                if self.write(path, 0, (0, 0), Some(Word::of_credit(consumed)), false) {
                    self.receives.tell(consumed);
                }
            }
            Ok(None) if self.channel.is_flushed() => {
                self.channel.say(&Record::Credit(consumed));
                self.receives.tell(consumed);
                self.flush();
            }
            // There will be room.
            Ok(None) | Err(()) => {}
        }
    }

    /// True if a message of so many bytes may take the next slot.
    pub(super) fn may_stage(&mut self, bytes: usize) -> Result<bool> {
        if !self.sends.has_room() || self.failure.is_some() {
            return Ok(false);
        }
        // What must go by RDMA is not early.
        let waits = bytes > EARLY_BYTES || self.settings().is_required;
        if !self.is_settled && (waits || !self.has_greeted || !self.channel.is_flushed()) {
            return Ok(false);
        }
        self.send_ring.ensure(RING_BYTES)?;
        Ok(true)
    }

    /// Where the next segment's bytes are to be put.
    pub(super) fn next_slot(&mut self) -> UserPointer {
        self.send_ring.start().byte_add((self.sends.next() % SLOTS as u64) as usize * SLOT_BYTES)
    }

    /// Where the bytes of the first segment lie that has come.
    pub(super) fn first_slot(&mut self) -> UserPointer {
        self.receive_ring.start().byte_add(self.receives.slot() * SLOT_BYTES)
    }
}
