//! One rank's seat in a communicator: its endpoint, and what others may touch while an operation runs.

use super::dock::Dock;
use super::drive::Job;
use super::endpoint::Endpoint;
use super::limits::{LaunchLimits, TimeLimits};
use super::watch::LOOK_AROUND;
use crate::error::{Error, ErrorKind, Result};
use crate::os::process::Watch;
use crate::os::{clock, cpu};
use crate::sync::prim::{AtomicBool, AtomicU64, Ordering};
use crate::sync::progress::Progress;
use crate::sync::wait::{Backoff, Habit, Patience};
use crate::telemetry::{End, Recorder};
use crate::transport::shm::{Arena, RankState};
use crate::transport::tcp;
use crate::types::Rank;
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What is known of a peer besides its rank.
#[derive(Debug)]
pub struct Peer {
    /// Its process number, as that process sees it.
    pub pid: u32,
    /// Its process, for people: with its host, where that is another one.
    pub name: String,
    /// Tells when its process ends; none for ranks of our own process, or where process numbers do not reach.
    pub watch: Option<Arc<Watch>>,
    /// The first rank of its host, which tells other hosts of it.
    pub speaker: Rank,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long an operation may stand still.
    pub timeout: Option<Duration>,
    /// After how long a wait explains itself.
    pub warn_after: Option<Duration>,
    /// How a wait begins.
    pub patience: Patience,
}

/// The seat. Everything but the endpoint may be used from any thread at any time.
#[derive(Debug)]
pub struct Seat {
    pub(crate) rank: Rank,
    pub(crate) endpoint: Mutex<Endpoint>,
    /// None for a rank alone.
    pub(crate) arena: Option<Arc<Arena>>,
    pub(crate) peers: Vec<Peer>,
    limits: LaunchLimits,
    patience: Patience,
    /// How to wait, as the last wait has learned: a [`Habit`].
    habit: AtomicU64,
    aborted: AtomicBool,
    error: OnceLock<Error>,
    /// Launches on host streams that involve this rank. They take turns in this order: one may begin when as many are
    /// done as were queued before it.
    pub(super) launches: Progress,
    pub(crate) recorder: Arc<Recorder>,
    /// Where streams of its device come; none for a rank in host memory.
    pub(crate) dock: Option<Dock>,
    /// When lost peers were last looked for outside of calls.
    last_look: Mutex<Option<Instant>>,
}

impl Seat {
    /// A seat for the endpoint of `rank`.
    pub fn new(
        rank: Rank,
        endpoint: Endpoint,
        arena: Option<Arc<Arena>>,
        peers: Vec<Peer>,
        limits: Limits,
    ) -> Self {
        Self {
            rank,
            recorder: endpoint.recorder.clone(),
            endpoint: Mutex::new(endpoint),
            arena,
            peers,
            habit: AtomicU64::new(limits.patience.habit().to_word()),
            limits: LaunchLimits::new(limits.timeout, limits.warn_after),
            patience: limits.patience,
            aborted: AtomicBool::new(false),
            error: OnceLock::new(),
            last_look: Mutex::new(None),
            launches: Progress::default(),
            dock: None,
        }
    }

    /// The same with a dock for the streams of a device, on which its calls are made.
    pub(crate) fn with_dock(self, dock: Option<Dock>) -> Self {
        Self { dock, ..self }
    }

    /// True if a launch of this rank is nothing but copies of its own.
    pub(super) fn is_plain_alone(&self, job: &Job<'_>) -> bool {
        self.arena.is_none() && job.calls.iter().all(|call| call.operator.scale.is_none())
    }

    /// Lets streams of the device go on that wait for this rank; nothing of theirs will be carried out any more.
    pub fn release(&self) {
        if let Some(dock) = &self.dock {
            dock.release();
        }
    }

    /// How long an operation of this rank may stand still.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.limits.timeout(self.launches.done())
    }

    /// After how long a wait of this rank explains itself.
    pub(crate) fn warn_after(&self) -> Option<Duration> {
        self.limits.warn_after(self.launches.done())
    }

    /// Changes how long a rank may stand still and when its waits explain themselves, for calls from now on: those that are queued on streams
    /// keep theirs. None leaves a limit as it is.
    pub fn set_time_limits(&self, changes: TimeLimits) {
        let queued = self.launches.queued();
        self.limits.change(changes, queued, self.launches.done());
    }

    /// True if [`Seat::error`] has something to say.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.error.get().is_some() || self.arena.as_ref().is_some_and(|arena| arena.has_failed())
    }

    /// The communicator's first failure, as far as this rank knows.
    pub fn error(&self) -> Option<Error> {
        if let Some(error) = self.error.get() {
            return Some(error.clone());
        }
        self.arena.as_ref().and_then(|arena| arena.failure())
    }

    /// Records a failure of an operation, tells the peers, and returns the first one.
    pub fn fail(&self, error: Error) -> Error {
        if self.aborted.load(Ordering::Acquire) {
            return self.error.get_or_init(|| error).clone();
        }
        let error = self.signed(error);
        let first = self.arena.as_ref().and_then(|arena| {
            arena.fail(&error);
            tcp::wake::tell(arena);
            let first = arena.failure();
            if first.is_none() {
                // Somebody else is telling the first failure, and may have died over it: then nobody will read it,
                // and peers that wait for this rank have to hear that it does not come.
                arena.part(self.rank, RankState::Aborted);
            }
            first
        });
        let first = self.error.get_or_init(|| first.unwrap_or(error)).clone();
        self.recorder.fail(first.text());
        first
    }

    /// The error as others should read it: with the rank whose system or driver refused something; on other hosts, with the rank that has noticed it,
    /// unless it came from another one.
    fn signed(&self, error: Error) -> Error {
        const SIGNATURE: &str = " (noticed by rank ";
        let is_own = matches!(error.kind(), ErrorKind::System | ErrorKind::Device);
        if is_own && !error.text().starts_with("rank ") && self.arena.is_some() {
            let name = self.peers.get(self.rank).map_or("", |own| &own.name);
            return error.within(format_args!("rank {} ({name})", self.rank));
        }
        let alone =
            self.arena.as_ref().is_none_or(|arena| arena.members().local() == arena.members().ranks());
        if alone || error.text().contains(SIGNATURE) {
            return error;
        }
        let name = &self.peers[self.rank].name;
        Error::new(error.kind(), format!("{}{SIGNATURE}{}, {name})", error.text(), self.rank))
    }

    /// Ends every operation of this rank, now and later, without asking anybody.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.recorder.end(End::Aborted);
        if let Some(arena) = &self.arena {
            arena.part(self.rank, RankState::Aborted);
            self.ring();
            tcp::wake::tell(arena);
        }
        self.release();
        super::stream::wake_for_abort();
    }

    /// This rank will make no more calls; what it has sent is there for its peers.
    pub fn leave(&self) {
        self.recorder.end(End::Left);
        if let Some(arena) = &self.arena
            && arena.block(self.rank).state() == RankState::Present
        {
            arena.part(self.rank, RankState::Left);
            tcp::wake::tell(arena);
        }
    }

    /// Wakes whoever sleeps over this rank's work.
    pub(super) fn ring(&self) {
        if let Some(arena) = &self.arena {
            arena.block(self.rank).bell.ring();
        }
    }

    /// Takes this rank's links down. When this returns, no peer reads this rank's memory any more.
    pub fn close(&self) {
        self.endpoint.lock().close();
    }

    /// Lets go of the memory of peers' devices.
    pub fn close_windows(&self) -> Result<()> {
        let mut endpoint = self.take_turn();
        let (Some(dock), Some(fabric)) = (&self.dock, &mut endpoint.fabric) else { return Ok(()) };
        let windows = fabric.lent.close_windows();
        drop(endpoint);
        let close = |driver: &'static dyn crate::driver::Driver| {
            windows.iter().map(|window| driver.close(window.address())).fold(Ok(()), Result::and)
        };
        if windows.is_empty() { Ok(()) } else { dock.accelerator.within(close) }
    }

    /// Bytes that [`Self::give_memory_back`] would give back.
    pub fn idle_bytes(&self, endpoint: &Endpoint) -> Result<usize> {
        let shared = self.arena.as_ref().map_or(Ok(0), |arena| arena.idle_bytes(self.rank))?;
        Ok(shared + endpoint.idle_bytes() + self.dock.as_ref().map_or(0, |dock| dock.staging_bytes()))
    }

    /// Gives memory back in which data goes from rank to rank. No rank may have a call under way, or a window of this one open.
    pub fn give_memory_back(&self) -> Result<()> {
        let mut endpoint = self.take_turn();
        endpoint.give_back();
        let shared = self.arena.as_ref().map_or(Ok(()), |arena| arena.give_back(self.rank));
        drop(endpoint);
        self.dock.as_ref().map_or(Ok(()), Dock::give_memory_back).and(shared)
    }

    /// An error once this rank has aborted or the communicator has failed.
    pub fn check_alive(&self) -> Result<()> {
        self.check_abort()?;
        self.error().map_or(Ok(()), Err)
    }

    /// An error once the process of `peer` is known to have ended, or to have become another program.
    pub fn check_peer(&self, peer: Rank) -> Result<()> {
        let who = &self.peers[peer];
        let fate = who.watch.as_ref().and_then(|watch| watch.fate());
        fate.map_or(Ok(()), |fate| {
            let name = &who.name;
            Err(Error::remote(format!(
                "rank {peer} ({name}) {fate}; see that process's own output, then shrink or abort this communicator"
            )))
        })
    }

    /// Makes it the communicator's failure that a rank of this host is lost without a word. For those who ask while no call is under
    /// way; at most ten times a second.
    pub fn look_for_lost_peers(&self) {
        let Some(arena) = &self.arena else { return };
        if self.aborted.load(Ordering::Acquire) || self.has_failed() {
            return;
        }
        let now = clock::now();
        let mut last_look = self.last_look.lock();
        if last_look.is_some_and(|last| now - last < LOOK_AROUND) {
            return;
        }
        *last_look = Some(now);
        drop(last_look);
        // Asked for the state afterwards: what a rank says last counts.
        let lost = |peer: Rank| {
            let error = self.check_peer(peer).err()?;
            (!arena.state_of(peer).is_gone()).then_some(error)
        };
        if let Some(error) = (0..self.peers.len()).find_map(lost) {
            self.fail(error);
        }
    }

    /// An error once [`Seat::abort`] has been called.
    pub(crate) fn check_abort(&self) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::usage(
                "the communicator was aborted while an operation was under way; its result is not defined; make another \
                 communicator to go on",
            ));
        }
        Ok(())
    }

    /// A wait that begins now, with what earlier ones have learned.
    #[inline]
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.patience, Habit::from_word(self.habit.load(Ordering::Relaxed)))
    }

    /// True if `peer` cannot go on while this thread runs: ranks share cores, and it was last seen on this one.
    #[inline]
    pub(crate) fn holds_core_of(&self, peer: Option<Rank>) -> bool {
        self.patience.is_crowded() && peer.is_some_and(|peer| self.shares_core(peer))
    }

    fn shares_core(&self, peer: Rank) -> bool {
        let (Some(arena), Some(core)) = (&self.arena, cpu::current_core()) else { return false };
        arena.block(self.rank).set_core(core);
        arena.members().has(peer) && arena.block(peer).core() == Some(core)
    }

    /// Keeps what a wait has learned.
    #[inline]
    pub(crate) fn learn(&self, backoff: &Backoff) {
        // Seldom: a store each time would be one for nothing.
        let habit = backoff.habit().to_word();
        if self.habit.load(Ordering::Relaxed) != habit {
            self.habit.store(habit, Ordering::Relaxed);
        }
    }

    /// The endpoint, for an operation that begins when everything queued on host streams is done.
    #[inline(always)]
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, Endpoint> {
        let endpoint = self.endpoint.lock();
        // Asked with the lock: what is queued may be on its way, and the board knows this rank to finish in order.
        if self.has_queued() { self.wait_for_turn(endpoint) } else { endpoint }
    }

    #[cold]
    fn wait_for_turn<'a>(&'a self, mut endpoint: MutexGuard<'a, Endpoint>) -> MutexGuard<'a, Endpoint> {
        while self.has_queued() {
            drop(endpoint);
            // The thread of host streams may just have found the endpoint taken.
            super::stream::wake();
            self.wait_queued();
            endpoint = self.endpoint.lock();
        }
        endpoint
    }

    /// So many more launches are done. Called by the thread of host streams only.
    #[inline]
    pub(super) fn complete_launches(&self, count: u64) {
        self.recorder.launches_done(self.launches.done() + count);
        self.launches.complete(count);
    }

    /// True if launches on host streams wait for this rank's endpoint.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.launches.is_idle()
    }

    /// Waits until all launches on host streams that involve this rank are done.
    #[inline]
    pub fn wait_queued(&self) {
        self.launches.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::Facts;
    use crate::config::Settings;
    use crate::engine::Fabric;
    use crate::transport::mem;
    use crate::transport::shm::Reach;

    #[test]
    fn a_failure_that_nobody_finished_telling_keeps_no_peer_waiting() {
        let arena = mem::arena(2).unwrap();
        let fabric = Fabric::new(&arena, 0, &[Reach::SameProcess; 2], None);
        let facts = Facts::for_tests(&Settings::load().unwrap());
        let endpoint =
            Endpoint::new(0, 2, Some(fabric), facts, 4096, Recorder::without_file().unwrap().into());
        let limits = Limits { timeout: None, warn_after: None, patience: Patience::for_ranks(2, 2) };
        let seat = Seat::new(0, endpoint, Some(arena.clone()), Vec::new(), limits);
        arena.begin_failure();
        assert_eq!(seat.fail(Error::remote("rank 1 ended")).text(), "rank 1 ended");
        assert_eq!(arena.block(0).state(), RankState::Aborted);
    }
}
