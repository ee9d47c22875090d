//! What hosts tell each other besides data: failures, which ranks have gone, and, when one nears its time limit, who waits for whom (`words.rs`).
//!
//! The ranks of a host know of each other by what they share: the arena has their states and the first failure, and who
//! dies is seen by its process's descriptor. The first rank of each host, its *leader*, carries that to other hosts. Leaders
//! stand in a ring, each connected with the next and the one before; what one of them learns floods around both ways,
//! and goes into each host's arena, where it wakes everybody. Who breaks the ring is missed by both neighbours, so everybody hears
//! of it, however many break it at once.
//!
//! A connection that ends while a rank of its process has not said that it goes is a death. Who says nothing
//! more goes without a word: a rank that leaves tells so, on its way out.
//!
//! The other processes of a host watch their leader, whose death nobody else could tell them.
//!
//! Everything here happens in [`Control::visit`], which never waits: on the thread `accl-network` when something comes, and, where other
//! processes of the host may have left something in the arena, each
//! 50 ms; and on a rank's own thread when it has something to tell.

use super::network::{Network, World};
use super::record::Record;
use super::wake::{self, MEASURES, Round};
use super::words::{self, Words};
use crate::encryption::Socket;
use crate::error::{Error, Result};
use crate::os::fork::Withheld;
use crate::os::process::{self, Fate, Watch};
use crate::os::{clock, network, tcp};
use crate::transport::shm::{Arena, Word};
use crate::types::Rank;
use parking_lot::{Condvar, Mutex};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The purpose of these connections, beside those of lanes.
pub(super) const PURPOSE: u8 = 2;
/// How often a rank that waits for neighbours asks whether it still should.
const STEP: Duration = Duration::from_millis(100);
/// How often it is asked whether a process has become another program, which takes longer than whether it has ended.
const THOROUGH: Duration = Duration::from_millis(250);
/// What to do when ranks are lost.
const REMEDY: &str = "; see that process's own output, then shrink or abort this communicator";
/// How long a neighbour that has to dial may take.
const COMING: Duration = Duration::from_secs(40);
/// How much may wait for room on a line before it is told no more of waits: its neighbour does not read, and is told again.
const MOST_QUEUED_BYTES: usize = 1 << 20;

/// What a host's leader does for one communicator.
pub(super) struct Control {
    world: Arc<World>,
    /// Of the processes of this host whose deaths this one sees: of all ranks, or of the leader.
    watches: Vec<Option<Arc<Watch>>>,
    leads: bool,
    /// A neighbour has come.
    come: Condvar,
    /// Of its events.
    number: OnceLock<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Line>,
    /// Neighbours that have to dial, and until when.
    coming: Vec<(Rank, Instant)>,
    watching: bool,
    /// When processes were last looked at thoroughly.
    looked: Option<Instant>,
    words: Words,
    /// By which they come; given back when all have.
    network: Option<Arc<Network>>,
    /// The leader has gone, or is about to.
    released: bool,
    over: bool,
}

/// A connection to a neighbour.
#[derive(Debug)]
struct Line {
    peer: Rank,
    // Before the socket.
    _withheld: Withheld,
    socket: Socket,
    ip: Option<IpAddr>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The failure has been told to this one, or by it.
    knows_failure: bool,
    /// The same for each rank that has gone.
    knows_gone: Vec<bool>,
    watched: bool,
    made: Instant,
    measured: Instant,
}

/// Keeps the connections with other hosts, for their leaders. When it is dropped they end as soon as nobody of the host needs
/// them.
#[derive(Debug)]
pub struct ControlHandle(Arc<Control>);

impl std::fmt::Debug for Control {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Control").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        let network = {
            let mut state = self.0.state.lock();
            state.released = true;
            state.network.take()
        };
        drop(network);
        wake::tell(self.0.arena());
    }
}

/// Joins the ring of hosts if the network's rank is the first of its host, else watches that one. `watches` are those of all ranks'
/// processes. Waits until it is connected with its neighbours: a rank that destroys its communicator at once must not close the door
/// to those who have yet to dial.
pub(super) fn join(
    network: &Arc<Network>,
    watches: Vec<Option<Arc<Watch>>>,
) -> Result<Option<ControlHandle>> {
    let world = network.world();
    let leaders = world.leaders();
    let Some(place) = leaders.iter().position(|leader| *leader == world.rank) else {
        return follow(world, &leaders, watches);
    };
    let hosts = leaders.len();
    let mut neighbours = vec![leaders[(place + 1) % hosts], leaders[(place + hosts - 1) % hosts]];
    neighbours.dedup();
    let coming_until = clock::now() + COMING;
    let (dialled, coming): (Vec<_>, Vec<_>) = neighbours.into_iter().partition(|peer| world.rank < *peer);
    let state = State {
        coming: coming.into_iter().map(|peer| (peer, coming_until)).collect(),
        network: Some(network.clone()),
        words: Words::new(world.peers.len()),
        ..State::default()
    };
    let control = Arc::new(Control::new(world, watches, true, state));
    let handle = ControlHandle(control.clone());
    // From here on a failure is told to those who are connected already.
    wake::carry(control.clone())?;
    for peer in dialled {
        match network.dial(peer, PURPOSE, &|| Ok(())).and_then(|socket| control.line(peer, socket)) {
            Ok(line) => control.state.lock().lines.push(line),
            Err(error) => {
                control.arena().fail(&error);
                return Err(error);
            }
        }
        wake::tell(control.arena());
    }
    control.await_neighbours(network)?;
    Ok(Some(handle))
}

/// Watches the leader of this host, if that is another process.
fn follow(
    world: &Arc<World>,
    leaders: &[Rank],
    mut watches: Vec<Option<Arc<Watch>>>,
) -> Result<Option<ControlHandle>> {
    let leads_here = |rank: &Rank| leaders.contains(rank) && world.arena.members().has(*rank);
    for (_, watch) in watches.iter_mut().enumerate().filter(|(rank, _)| !leads_here(rank)) {
        *watch = None;
    }
    if watches.iter().all(Option::is_none) {
        return Ok(None);
    }
    let control = Arc::new(Control::new(world, watches, false, State::default()));
    let handle = ControlHandle(control.clone());
    wake::carry(control)?;
    Ok(Some(handle))
}

impl Control {
    fn new(world: &Arc<World>, watches: Vec<Option<Arc<Watch>>>, leads: bool, state: State) -> Self {
        let world = world.clone();
        let (come, number) = (Condvar::new(), OnceLock::new());
        Self { world, watches, leads, come, number, state: Mutex::new(state) }
    }

    /// Waits until all neighbours have come that have to dial.
    fn await_neighbours(&self, network: &Network) -> Result<()> {
        let mut state = self.state.lock();
        while !state.coming.is_empty() {
            self.come.wait_for(&mut state, STEP);
            drop(state);
            network.still_wanted()?;
            state = self.state.lock();
        }
        Ok(())
    }

    /// How often it must be visited if nothing comes: often where other processes may leave something in the arena.
    pub(super) fn pace(&self) -> Option<Duration> {
        let peers = &self.world.peers;
        let foreign = |rank: Rank| {
            self.arena().members().has(rank)
                && !peers[rank].place.shares_process(&peers[self.world.rank].place)
        };
        if !self.leads {
            return None;
        }
        if (0..peers.len()).any(foreign) {
            return Some(wake::LOOK);
        }
        // For neighbours that do not come, and for signs of life.
        Some(self.world.patience.map_or(COMING, |patience| patience / MEASURES))
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.world.arena
    }

    /// From here on events have this number.
    pub(super) fn begin(&self, number: u64) {
        let _ = self.number.set(number);
    }

    fn line(&self, peer: Rank, socket: Socket) -> Result<Line> {
        let now = clock::now();
        let ip = network::peer_ip(socket.as_fd());
        Ok(Line {
            peer,
            _withheld: Withheld::new(socket.as_fd())?,
            socket,
            ip,
            inbox: Vec::new(),
            outbox: Vec::new(),
            knows_failure: false,
            knows_gone: vec![false; self.world.peers.len()],
            watched: false,
            made: now,
            measured: now,
        })
    }

    /// Does everything that can be done now. True if it is over.
    pub(super) fn visit(&self, round: &Round<'_>) -> bool {
        self.take_arrived(round.now);
        let mut state = self.state.lock();
        let Some(number) = self.number.get().copied().filter(|_| !state.over) else { return state.over };
        self.watch(&mut state, number, round);
        let mut lines = std::mem::take(&mut state.lines);
        lines.retain_mut(|line| match self.listen(line, &mut state.words) {
            Ok(()) => true,
            Err(why) => {
                self.ended(line, &why);
                false
            }
        });
        let thoroughly = state.looked.is_none_or(|last| round.now - last >= THOROUGH);
        if thoroughly {
            state.looked = Some(round.now);
        }
        self.see_deaths(thoroughly);
        self.measure(&mut lines, round);
        // Asked before neighbours are informed: who goes after that has yet to be told of.
        let members = self.arena().members();
        let present = |rank| members.has(rank) && !self.arena().state_of(rank).is_gone();
        let over = state.released
            && (!self.leads || self.arena().has_failed() || !(0..members.ranks()).any(present));
        let words = self.words(&mut state.words, round.now);
        lines.retain_mut(|line| {
            self.inform(line, &words);
            line.flush().is_ok() || {
                // Both may leave at once: what the other has said before it closed counts.
                let _ = self.listen(line, &mut state.words);
                self.ended(line, "the connection is broken");
                false
            }
        });
        state.lines = lines;
        state.over = over;
        if state.over {
            state.lines.clear();
            self.watches.iter().flatten().for_each(|watch| round.unwatch(watch.descriptor_of_process()));
        }
        state.over
    }

    /// Takes in connections that neighbours have dialled.
    fn take_arrived(&self, now: Instant) {
        let mut state = self.state.lock();
        let Some(network) = state.network.clone() else { return };
        let State { coming, lines, .. } = &mut *state;
        coming.retain(|(peer, until)| {
            if let Some(socket) = network.arrived(*peer, PURPOSE) {
                match self.line(*peer, socket) {
                    Ok(line) => lines.push(line),
                    Err(error) => self.arena().fail(&error),
                }
                return false;
            }
            if now > *until {
                let whom = self.world.named(&[*peer]);
                self.arena().fail(&Error::remote(format!("{whom} did not connect, as leaders of hosts do; see its own output, and whether a firewall is between")));
            }
            now <= *until
        });
        let all_here = state.coming.is_empty();
        let done = if all_here { state.network.take() } else { None };
        drop(state);
        if all_here {
            self.come.notify_all();
        }
        drop((done, network));
    }

    fn watch(&self, state: &mut State, number: u64, round: &Round<'_>) {
        let failed = |error: Error| self.arena().fail(&error);
        if !state.watching {
            state.watching = true;
            for watch in self.watches.iter().flatten() {
                // Ranks of one process have one descriptor: the second time it is there already.
                let _ = round.watch(number, watch.descriptor_of_process(), true);
            }
        }
        for line in state.lines.iter_mut().filter(|line| !line.watched) {
            line.watched = true;
            if let Err(error) = round.watch(number, line.socket.as_fd(), false) {
                failed(error);
            }
        }
    }

    /// Takes in what has come; an error says why nothing more will.
    fn listen(&self, line: &mut Line, words: &mut Words) -> std::result::Result<(), String> {
        let mut buffer = [0; 4096];
        loop {
            while let Some(record) =
                Record::take(&mut line.inbox).map_err(|error| error.text().to_string())?
            {
                self.hear(line, words, record);
            }
            match line.socket.read_some(&mut buffer) {
                Ok(Some(0)) => return Err("its process has ended".to_string()),
                Ok(Some(count)) => line.inbox.extend(&buffer[..count]),
                Ok(None) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn hear(&self, line: &mut Line, words: &mut Words, record: Record) {
        match record {
            Record::Alive => {}
            Record::Failure(error) => {
                line.knows_failure = true;
                self.arena().fail(&error);
            }
            Record::Gone(rank, state) => {
                let rank = rank as Rank;
                if let Some(knows) = line.knows_gone.get_mut(rank)
                    && !self.arena().members().has(rank)
                {
                    *knows = true;
                    self.arena().set_told(rank, state);
                }
            }
            Record::Word(telling) => {
                if words.hear(line.peer, &telling, |rank| self.arena().members().has(rank)) {
                    self.arena().set_heard(telling.rank as Rank, &telling.word);
                }
            }
        }
    }

    /// A connection has ended: that is a death, unless all ranks of its process have said that they go.
    fn ended(&self, line: &Line, why: &str) {
        let peers = &self.world.peers;
        let lost = |rank: &Rank| {
            peers[*rank].place.shares_process(&peers[line.peer].place)
                && !self.arena().state_of(*rank).is_gone()
        };
        let lost: Vec<_> = (0..peers.len()).filter(lost).collect();
        if !lost.is_empty() {
            self.arena().fail(&Error::remote(format!("{} is lost: {why}{REMEDY}", self.world.named(&lost))));
        }
    }

    /// Processes of this host that have ended, or become other programs.
    fn see_deaths(&self, thoroughly: bool) {
        if self.arena().has_failed() {
            return;
        }
        let fate = |rank: Rank| {
            let watch = self.watches[rank].as_ref().filter(|_| self.arena().members().has(rank))?;
            let ended = || watch.has_ended().then_some(Fate::Ended);
            let fate = if thoroughly { watch.fate() } else { ended() }?;
            // Asked afterwards: what the rank said last counts.
            (!self.arena().state_of(rank).is_gone()).then_some((rank, fate))
        };
        if let Some((rank, fate)) = (0..self.watches.len()).find_map(fate) {
            self.arena().fail(&Error::remote(format!("{} {fate}{REMEDY}", self.world.named(&[rank]))));
        }
    }

    /// Asks neighbours for a sign of life, and misses those that have not given one for too long.
    fn measure(&self, lines: &mut Vec<Line>, round: &Round<'_>) {
        let Some(patience) = self.world.patience else { return };
        let now = round.now;
        lines.retain_mut(|line| {
            if now < line.measured + patience / MEASURES {
                return true;
            }
            line.measured = now;
            if line.outbox.is_empty() {
                line.outbox = Record::Alive.encode();
            }
            let silence = tcp::hearing(line.socket.as_fd()).map_or(Duration::ZERO, |heard| heard.silence);
            let watched = now - line.made.max(round.awake_since);
            if silence <= patience || watched <= patience || round.silence_of(line.ip) <= patience {
                return true;
            }
            let peers = &self.world.peers;
            let lost = |rank: &Rank| {
                peers[*rank].shares_host(&peers[line.peer]) && !self.arena().state_of(*rank).is_gone()
            };
            let lost: Vec<_> = (0..peers.len()).filter(lost).collect();
            if !lost.is_empty() {
                self.arena().fail(&wake::silence(&self.world.named(&lost), patience));
            }
            false
        });
    }

    /// What is to be told of waits now, as bytes, each with the line by which it has come, if it has come by one.
    fn words(&self, words: &mut Words, now: Instant) -> Vec<(Option<Rank>, Vec<u8>)> {
        if !self.leads {
            return Vec::new();
        }
        let mut told: Vec<_> =
            words.take_relayed().into_iter().map(|(from, telling)| (Some(from), telling)).collect();
        if let Some(turn) = words.due(now, self.arena().asked()) {
            let members = self.arena().members();
            let own = (0..members.ranks()).filter(|rank| members.has(*rank));
            told.extend(
                words::tellings(own.map(|rank| (rank, self.word_of(rank))), turn).map(|own| (None, own)),
            );
        }
        // Asked afterwards: ranks that have failed wait no more, and are not late for that.
        if self.arena().has_failed() {
            told.clear();
        }
        told.into_iter().map(|(from, telling)| (from, Record::Word(telling).encode())).collect()
    }

    /// What a rank of this host waits for. Who was stopped while it waited waits for nobody who could come.
    fn word_of(&self, rank: Rank) -> Word {
        let (there, here) = (&self.world.peers[rank].place, &self.world.peers[self.world.rank].place);
        let is_foreign = there.shares_pids(here) && !there.shares_process(here);
        if is_foreign && process::is_stopped(there.pid) {
            return Word::Stopped;
        }
        self.arena().block(rank).word()
    }

    /// Queues what the neighbour does not know.
    fn inform(&self, line: &mut Line, words: &[(Option<Rank>, Vec<u8>)]) {
        let arena = self.arena();
        for (rank, knows) in line.knows_gone.iter_mut().enumerate().filter(|(_, knows)| !**knows) {
            let state = arena.state_of(rank);
            if state.is_gone() {
                *knows = true;
                line.outbox.extend(Record::Gone(rank as u32, state).encode());
            }
        }
        if !line.knows_failure
            && let Some(error) = arena.failure()
        {
            line.knows_failure = true;
            line.outbox.extend(Record::Failure(error).encode());
        }
        for (_, record) in words.iter().filter(|(from, _)| *from != Some(line.peer)) {
            if line.outbox.len() < MOST_QUEUED_BYTES {
                line.outbox.extend(record);
            }
        }
    }
}

impl Line {
    /// Sends what is queued, as far as there is room.
    fn flush(&mut self) -> std::io::Result<()> {
        while !self.outbox.is_empty() {
            let Some(count) = self.socket.write_some(&self.outbox, &[])? else { break };
            self.outbox.drain(..count);
        }
        Ok(())
    }
}
