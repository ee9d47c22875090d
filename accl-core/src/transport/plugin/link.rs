//! What both halves of a link have in common: how its ends come to terms, and what is under way.

use super::poller::{Polled, Urgency, Waker};
use super::record::{Channel, Record};
use super::rings::{Receiving, Sending};
use super::{EARLY_BYTES, EARLY_MESSAGES};
use crate::config::subsystem::{INIT, NET};
use crate::driver::network_plugin::{Handle, Listener, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Scratch;
use crate::os::clock;
use crate::telemetry::{self, log};
use crate::transport::Route;
use crate::transport::shm::RankState;
use crate::transport::tcp::Link;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a link at rest looks at its connection, in looks for what has come.
const LOOK_EVERY: u32 = 256;
/// How long who leaves waits for requests to end, once the peer has room for all that was sent.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for that: what a plugin has taken may be more than the peer's ring holds, and waits there for the peer to receive it.
const ROOM_PATIENCE: Duration = Duration::from_secs(60);
/// For how long a rank that sleeps is taken to sleep, unless it says so again.
const SLEEP: Duration = Duration::from_millis(250);

/// The plugin that a communicator uses.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// In use by this rank; none, with the reason, where it cannot be used.
    pub session: std::result::Result<Arc<dyn Session>, String>,
    /// What it calls itself.
    pub name: String,
    /// Which of its devices.
    pub device: usize,
    /// Nothing else may carry data between hosts.
    pub is_required: bool,
}

/// The link between two ranks for one kind of messages.
#[derive(Debug)]
pub struct PluginLink {
    // Before the state: who drops a link gives that back, and not the thread that polls it.
    polled: Option<Polled>,
    tcp: Arc<Link>,
    core: Arc<Mutex<Core>>,
}

/// Who carries messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) enum Carrier {
    /// That is not settled.
    Open,
    Plugin,
    /// The TCP connection, by itself.
    Tcp,
}

/// The state behind both halves.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) sending: Option<Sending>,
    pub(super) receiving: Option<Receiving>,
    listener: Option<Box<dyn Listener>>,
    pub(super) tcp: Arc<Link>,
    chosen: Chosen,
    pub(super) channel: Channel,
    has_greeted: bool,
    waker: Option<Waker>,
    peer_handle: Option<Box<Handle>>,
    /// What each end says: it is ready, or why not. None as long as it has not.
    own: Option<std::result::Result<(), String>>,
    peer: Option<std::result::Result<(), String>>,
    pub(super) carrier: Carrier,
    /// What the peer sends comes by the carrier from here on.
    pub(super) peer_switched: bool,
    /// Messages that came before that, and how many have gone.
    pub(super) early: VecDeque<Vec<u8>>,
    early_sent: usize,
    pub(super) aside: Scratch,
    /// Why nothing more comes.
    pub(super) failure: Option<Error>,
    /// The end has been said; what the peer has said of it.
    said_end: bool,
    peer_end: Option<u64>,
    is_finished: bool,
    /// What has happened.
    events: u64,
    idle_looks: u32,
    /// The rank sleeps, and is to be woken.
    armed: Option<Instant>,
}

impl PluginLink {
    /// The link over `tcp`, by this plugin.
    pub fn new(tcp: Arc<Link>, chosen: &Chosen) -> Arc<Self> {
        let core = Core {
            sending: None,
            receiving: None,
            listener: None,
            tcp: tcp.clone(),
            chosen: chosen.clone(),
            channel: Channel::default(),
            has_greeted: false,
            waker: None,
            peer_handle: None,
            own: None,
            peer: None,
            carrier: Carrier::Open,
            peer_switched: false,
            early: VecDeque::new(),
            early_sent: 0,
            aside: Scratch::default(),
            failure: None,
            said_end: false,
            peer_end: None,
            is_finished: false,
            events: 0,
            idle_looks: 0,
            armed: None,
        };
        let core = Arc::new(Mutex::new(core));
        // Without the thread, a rank that sleeps looks after its link every now and then.
        let polled = Polled::new(&core).ok();
        core.lock().waker = polled.as_ref().map(Polled::waker);
        Arc::new(Self { polled, tcp, core })
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// The two ends of one, over this host's own addresses, between rank 0 and rank 1 of a communicator, not settled yet.
    #[cfg(test)]
    pub(crate) fn pair(chosen: [Chosen; 2]) -> [Arc<Self>; 2] {
        let ends = Link::pair_with(1, &crate::config::Network::default(), None);
        let [one, other] = ends;
        [Self::new(one, &chosen[0]), Self::new(other, &chosen[1])]
    }

    /// Has both ends come to terms; who carries messages then.
    #[cfg(test)]
    pub(in crate::transport) fn settle(ends: &[Arc<Self>; 2]) -> Carrier {
        let end = clock::now() + Duration::from_secs(60);
        while !ends.iter().all(|end| end.core().peer_switched) && clock::now() < end {
            for end in ends {
                end.core().progress();
            }
            std::thread::yield_now();
        }
        let [one, other] = ends.each_ref().map(|end| end.core().carrier);
        assert!(one == other && one != Carrier::Open, "{one:?} {other:?}");
        one
    }
}

impl Route for PluginLink {
    fn ring_when(&self, reads: u64, writes: u64) -> Result<()> {
        let mut core = self.core();
        if core.carrier == Carrier::Tcp && core.peer_switched && core.channel.is_flushed() {
            drop(core);
            return self.tcp.ring_when(reads, writes);
        }
        core.armed = Some(clock::now());
        let of_channel = u64::from(!core.channel.is_flushed());
        drop(core);
        if let Some(polled) = &self.polled {
            polled.wake();
        }
        self.tcp.ring_when(reads.max(1), writes | of_channel)
    }

    fn is_open(&self) -> bool {
        let mut core = self.core();
        // What has come before the end of the connection has come.
        core.move_segments();
        let has_some = core.receiving.as_ref().is_some_and(|receiving| receiving.first().is_some());
        self.tcp.is_open() || !core.early.is_empty() || has_some
    }
}

impl Core {
    /// Does everything that can be done now, for a rank that is awake.
    pub(super) fn progress(&mut self) {
        if self.armed.take().is_some() {
            self.idle_looks = LOOK_EVERY;
        }
        self.move_segments();
        self.idle_looks += 1;
        let rests = self.carrier == Carrier::Plugin && self.channel.is_flushed() && self.peer_end.is_none();
        if self.idle_looks >= LOOK_EVERY || !rests {
            self.idle_looks = 0;
            self.look_at_connection();
        }
    }

    /// The same for one that is not, by the thread that polls.
    pub(super) fn tend(&mut self) -> Urgency {
        if self.is_over() || self.is_given_up() {
            return Urgency::None;
        }
        let before = self.events;
        self.move_segments();
        self.look_at_connection();
        let is_armed = self.armed.is_some_and(|since| clock::now() - since < SLEEP);
        if self.events > before {
            if self.armed.take().is_some() {
                let world = self.tcp.world();
                world.arena.block(world.rank).bell.ring();
            }
            return Urgency::Busy;
        }
        if is_armed {
            Urgency::Waited
        } else if self.is_restless() {
            Urgency::Restless
        } else {
            Urgency::None
        }
    }

    /// Nothing is to be read here from its connection.
    pub(super) fn is_left_alone(&self) -> bool {
        self.is_over() || self.is_given_up()
    }

    /// Nothing more comes or goes.
    fn is_over(&self) -> bool {
        self.failure.is_some() || self.channel.has_ended
    }

    /// The connection is somebody else's.
    fn is_given_up(&self) -> bool {
        self.carrier == Carrier::Tcp && self.peer_switched && self.channel.is_flushed()
    }

    /// True if something is to be done that the peer may wait for.
    fn is_restless(&self) -> bool {
        let busy = self.sending.as_ref().is_some_and(Sending::is_busy)
            || self.receiving.as_ref().is_some_and(Receiving::is_busy);
        match self.carrier {
            Carrier::Open => self.has_greeted,
            Carrier::Plugin => {
                busy || !self.channel.is_flushed() || self.peer_end.is_some() && !self.is_through()
            }
            Carrier::Tcp => !self.channel.is_flushed(),
        }
    }

    /// Has segments go and come.
    pub(super) fn move_segments(&mut self) {
        if self.carrier != Carrier::Plugin || self.failure.is_some() {
            return;
        }
        let (Some(sending), Some(receiving)) = (&mut self.sending, &mut self.receiving) else { return };
        let sent = match self.peer_end {
            None => sending.progress(u64::MAX),
            Some(end) => sending.fill_up(end),
        };
        let is_through = self.peer_end.is_some() && !sending.is_busy();
        match sent.and_then(|sent| receiving.progress().map(|received| sent && !is_through || received)) {
            Ok(moved) => self.events += u64::from(moved),
            Err(error) => self.fail(error),
        }
        self.answer_end();
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.events += 1;
        self.failure.get_or_insert(error);
    }

    /// Sends and takes in records, and comes to terms with the peer.
    pub(super) fn look_at_connection(&mut self) {
        if self.is_given_up() || self.channel.has_ended {
            return;
        }
        let tcp = self.tcp.clone();
        let Ok(Some(socket)) = tcp.socket() else { return };
        if !self.has_greeted {
            self.has_greeted = true;
            self.events += 1;
            // It is to watch the connection from here on.
            if let Some(waker) = &self.waker {
                waker.wake();
            }
            let greeted = self.listen();
            self.step(greeted);
        }
        while !(self.carrier == Carrier::Tcp && self.peer_switched) {
            let heard = match self.channel.next(socket) {
                Ok(Some(record)) => {
                    self.events += 1;
                    self.hear(record)
                }
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                self.end_wrong(error.text());
                break;
            }
        }
        let connected = self.connect();
        self.step(connected);
        self.settle();
        let was_flushed = self.channel.is_flushed();
        self.channel.flush(socket);
        self.events += u64::from(!was_flushed && self.channel.is_flushed());
        if self.channel.has_ended {
            // What came before the end is there by now.
            self.events += 1;
            tcp.lost("it closed the connection");
        }
    }

    /// The plugin is not used by this end if that has failed.
    fn step(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.say_down(error.text().to_string());
        }
    }

    fn say_down(&mut self, why: String) {
        if self.own.is_none() {
            self.events += 1;
            (self.sending, self.receiving, self.listener) = (None, None, None);
            self.channel.say(&Record::Down(why.clone()));
            self.own = Some(Err(why));
        }
    }

    fn listen(&mut self) -> Result<()> {
        let session = self.session()?;
        let (handle, listener) = session.listen(self.chosen.device)?;
        self.listener = Some(listener);
        self.channel.say(&Record::Hello(handle));
        Ok(())
    }

    fn session(&self) -> Result<Arc<dyn Session>> {
        self.chosen.session.clone().map_err(|why| Error::new(ErrorKind::System, why))
    }

    /// Both directions, as far as they come about now.
    fn connect(&mut self) -> Result<()> {
        if self.own.is_some() {
            return Ok(());
        }
        let session = self.session()?;
        if let Some(listener) = &mut self.listener
            && let Some(inlet) = listener.accept()?
        {
            self.events += 1;
            self.listener = None;
            let properties = session.devices().get(self.chosen.device);
            let properties = properties.ok_or_else(|| Error::internal("a device that is none"))?;
            self.receiving = Some(Receiving::new(inlet, properties)?);
        }
        if let (Some(handle), None) = (&mut self.peer_handle, &self.sending)
            && let Some(outlet) = session.connect(self.chosen.device, handle)?
        {
            self.events += 1;
            self.sending = Some(Sending::new(outlet)?);
        }
        if self.sending.is_some() && self.receiving.is_some() {
            self.own = Some(Ok(()));
            self.channel.say(&Record::Up);
        }
        Ok(())
    }

    fn hear(&mut self, record: Record) -> Result<()> {
        let is_new = self.peer.is_none() && !self.peer_switched;
        match record {
            Record::Hello(handle) if is_new && self.peer_handle.is_none() => self.peer_handle = Some(handle),
            Record::Up if is_new && self.peer_handle.is_some() => self.peer = Some(Ok(())),
            Record::Down(why) if is_new => self.peer = Some(Err(why)),
            Record::Segment(bytes) if !self.peer_switched && self.early.len() < EARLY_MESSAGES => {
                self.early.push_back(bytes);
            }
            Record::Switch if !self.peer_switched && self.own.is_some() && self.peer.is_some() => {
                self.peer_switched = true;
                self.settle();
            }
            Record::End { posted, sent } if self.carrier == Carrier::Plugin && self.peer_end.is_none() => {
                self.peer_end = Some(posted);
                if let Some(receiving) = &mut self.receiving {
                    receiving.expect(sent);
                }
                self.answer_end();
            }
            Record::Failure { code, text } => {
                let kind = u8::try_from(code).ok().and_then(ErrorKind::from_code);
                self.fail(Error::new(kind.unwrap_or(ErrorKind::Remote), text));
            }
            _ => return Err(Error::remote("it sends a record that is not due")),
        }
        Ok(())
    }

    /// From here on it is known who carries messages, if both ends have said what they can.
    fn settle(&mut self) {
        if let (None, Some(Err(why))) = (&self.own, &self.peer) {
            let whom = self.whom();
            let why = format!("{whom} says: {why}");
            self.say_down(why);
        }
        let (Carrier::Open, Some(own), Some(peer)) = (self.carrier, &self.own, &self.peer) else { return };
        let why = own.as_ref().err().or_else(|| peer.as_ref().err()).cloned();
        self.events += 1;
        self.carrier = if why.is_none() { Carrier::Plugin } else { Carrier::Tcp };
        self.channel.say(&Record::Switch);
        let (name, whom, rank) = (&self.chosen.name, self.whom(), self.tcp.world().rank);
        match why {
            None => log::info(
                INIT | NET,
                format_args!("NET/Plugin: {name} carries data between rank {rank} and {whom}"),
            ),
            Some(why) if self.chosen.is_required => {
                let text = format!(
                    "the network plugin {name} is required (NCCL_NET, ACCL_REQUIRE_PATH or netName), and does not lead from rank {rank} to {whom}: {why}; \
                     see its own log, or unset that to go by TCP"
                );
                self.fail(Error::remote(text));
            }
            Some(why) => telemetry::warn(&format!(
                "NET/Plugin: {name} does not lead from rank {rank} to {whom}, so TCP is used: {why}"
            )),
        }
    }

    fn whom(&self) -> String {
        self.tcp.world().named(&[self.tcp.peer()])
    }

    /// Ends the link: the peer has said what cannot be.
    pub(super) fn end_wrong(&mut self, what: impl std::fmt::Display) {
        let error = self.tcp.broken(what);
        self.fail(error);
    }

    /// An error if there is a reason why nothing moves.
    pub(super) fn check_blocked(&mut self) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.tcp.socket().map(|_| ())
    }

    /// True if a message of so many bytes can go before it is settled who carries it.
    pub(super) fn may_be_early(&self, bytes: usize) -> bool {
        self.carrier == Carrier::Open
            && self.has_greeted
            && bytes <= EARLY_BYTES
            && self.early_sent < EARLY_MESSAGES
            && self.channel.is_flushed()
            && !self.chosen.is_required
            && !self.is_over()
    }

    /// Has a message go that is early: all of it, with its head.
    pub(super) fn send_early(&mut self, bytes: Vec<u8>) {
        self.early_sent += 1;
        self.channel.say(&Record::Segment(bytes));
        self.look_at_connection();
    }

    /// True if everything has gone, to the plugin or into the socket.
    pub(super) fn has_gone(&self) -> bool {
        self.channel.is_flushed() && self.sending.as_ref().is_none_or(Sending::has_gone)
    }

    fn say_end(&mut self) {
        if let (false, Some(sending), Some(receiving)) = (self.said_end, &self.sending, &mut self.receiving) {
            self.said_end = true;
            let (posted, sent) = (receiving.end(), sending.staged());
            self.channel.say(&Record::End { posted, sent });
        }
    }

    /// The same once the peer has said its end, and there are receives for all that it has sent.
    fn answer_end(&mut self) {
        if self.receiving.as_ref().is_some_and(Receiving::has_posted_all) {
            self.say_end();
        }
    }

    /// True if all requests have ended, and no more will be.
    fn is_through(&self) -> bool {
        self.peer_end.is_some_and(|end| {
            self.sending.as_ref().is_none_or(|sending| sending.has_filled(end))
                && self.receiving.as_ref().is_none_or(Receiving::has_ended)
        })
    }

    /// Has all requests end, and waits for that: not for ever, and not if anything has failed or the peer is gone. Then communications are
    /// closed.
    pub(super) fn finish(&mut self) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        let world = self.tcp.world().clone();
        let (arena, rank, peer) = (&world.arena, world.rank, self.tcp.peer());
        let begin = clock::now();
        let mut room_since = None;
        if self.carrier == Carrier::Plugin {
            self.say_end();
        }
        while self.carrier == Carrier::Plugin {
            self.move_segments();
            self.look_at_connection();
            let was_aborted = [rank, peer].iter().any(|one| arena.state_of(*one) == RankState::Aborted);
            // What the peer has sent before it closed the connection may not have been seen to end.
            let is_lost = self.failure.is_some() || self.channel.has_ended && self.peer_end.is_none();
            if self.is_through() && self.channel.is_flushed() || is_lost || was_aborted || arena.has_failed()
            {
                break;
            }
            let now = clock::now();
            if self.peer_end.is_some() {
                room_since.get_or_insert(now);
            }
            let waited =
                room_since.map_or(now - begin > ROOM_PATIENCE, |since| now - since > FINISH_PATIENCE);
            if waited {
                let (name, whom, waited) = (&self.chosen.name, self.whom(), now - begin);
                telemetry::warn(&format!(
                    "requests of the network plugin {name} to and from {whom} have not ended within {:.1} s, and are given up",
                    waited.as_secs_f64()
                ));
                break;
            }
            clock::sleep(Duration::from_micros(50));
        }
        self.close();
    }

    /// Closes communications, whatever is under way.
    pub(super) fn close(&mut self) {
        self.is_finished = true;
        (self.sending, self.receiving, self.listener) = (None, None, None);
        if self.carrier == Carrier::Open && self.own.is_none() {
            self.own = Some(Err("this end was closed".to_string()));
        }
    }
}
