//! Host streams: launches queue up and run in order, on one thread that serves all streams of the process.
//!
//! A launch is what one group puts on its streams. It begins when it is at the head of each of its streams and
//! of each of its seats; seats keep launches of one communicator in the order of their calls, whatever the
//! stream, so that communicators progress independently of each other.

use super::Poll;
use super::call::{Call, SelfCopy, Transfer};
use super::drive::{Job, Work, fail};
use super::seat::Seat;
use super::watch::{LOOK_AROUND, Stall};
use crate::error::{Error, Result};
use crate::os::{cpu, futex, process};
use crate::sync::bell::Bell;
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::wait::{Backoff, Patience, Pause};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// A queue of launches, as a user sees it.
#[derive(Clone, Debug)]
pub struct HostStream(Arc<StreamState>);

#[derive(Debug)]
struct StreamState {
    number: u64,
    progress: Mutex<StreamProgress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StreamProgress {
    queued: usize,
    /// The first failure since the last synchronize.
    error: Option<Error>,
}

impl HostStream {
    /// An empty stream.
    pub fn create() -> Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Engine::of_process()?;
        Ok(Self(Arc::new(StreamState {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            progress: Mutex::default(),
            changed: Condvar::new(),
        })))
    }

    /// True if both are the same stream.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until everything queued so far is done; the first failure since the last time is returned.
    pub fn synchronize(&self) -> Result<()> {
        let mut progress = self.0.progress.lock();
        while progress.queued > 0 {
            self.0.changed.wait(&mut progress);
        }
        progress.error.take().map_or(Ok(()), Err)
    }

    /// True if everything queued so far is done; a failure is returned once, as by [`HostStream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        let mut progress = self.0.progress.lock();
        if progress.queued > 0 {
            return Ok(false);
        }
        progress.error.take().map_or(Ok(true), Err)
    }

    /// Waits until everything is done and gives the stream back.
    pub fn destroy(self) -> Result<()> {
        self.synchronize()
    }
}

/// What one rank does in a launch.
#[derive(Debug)]
pub struct Part {
    /// The rank.
    pub seat: Arc<Seat>,
    /// Its collective calls.
    pub calls: Vec<Call>,
    /// Its sends and receives.
    pub transfers: Vec<Transfer>,
    /// What it sends to itself.
    pub copies: Vec<SelfCopy>,
}

impl Part {
    /// The same, borrowed.
    pub fn job(&self) -> Job<'_> {
        Job { calls: &self.calls, transfers: &self.transfers, copies: &self.copies }
    }
}

/// Queues one launch on all of `streams` (at least one) and returns at once.
pub fn submit(streams: &[HostStream], parts: Vec<Part>) -> Result<()> {
    let engine = Engine::of_process()?;
    for stream in streams {
        stream.0.progress.lock().queued += 1;
    }
    for part in &parts {
        part.seat.enqueue();
    }
    let parts = parts.into_iter().map(RunningPart::new).collect();
    engine
        .inbox
        .lock()
        .push(Launch { streams: streams.iter().map(|stream| stream.0.clone()).collect(), parts });
    engine.bell.ring();
    Ok(())
}

/// Makes the engine's thread end what is queued for seats that have been aborted.
pub(super) fn wake_for_abort() {
    if let Some(engine) = ENGINE.get() {
        engine.aborts.fetch_add(1, Ordering::Release);
        engine.bell.ring();
    }
}

/// Makes the engine's thread look around, if there is one.
pub(super) fn wake() {
    if let Some(engine) = ENGINE.get() {
        engine.bell.ring();
    }
}

#[derive(Debug)]
struct RunningPart {
    part: Part,
    work: Work,
    stall: Stall,
    done: bool,
}

impl RunningPart {
    fn new(part: Part) -> Self {
        Self { part, work: Work::default(), stall: Stall::default(), done: false }
    }

    fn is_aborted(&self) -> bool {
        self.part.seat.check_abort().is_err()
    }

    /// Polls, and says whether something moved and how it ended, if it did.
    fn poll(&mut self) -> (bool, Option<Result<()>>) {
        let seat = &self.part.seat;
        // A thread that calls without a stream may be in the middle of an operation of this rank. Others' streams
        // must not wait for it; it wakes us when it is done.
        let Some(mut endpoint) = seat.endpoint.try_lock() else { return (false, None) };
        let ready = seat.check_abort();
        let result = ready.and_then(|()| self.work.poll(&self.part.job(), &mut endpoint));
        let outcome = match result {
            Ok(Poll::Blocked) => return (false, None),
            Ok(Poll::Advanced) => None,
            Ok(Poll::Done) => Some(Ok(())),
            Err(error) => Some(Err(fail(seat, &mut endpoint, error))),
        };
        drop(endpoint);
        self.stall.end(seat);
        (true, outcome)
    }

    fn examine(&mut self) -> Option<Result<()>> {
        let seat = &self.part.seat;
        let mut endpoint = seat.endpoint.try_lock()?;
        let error = self.stall.examine(seat, &mut endpoint, &self.work).err()?;
        Some(Err(fail(seat, &mut endpoint, error)))
    }
}

#[derive(Debug)]
struct Launch {
    streams: Vec<Arc<StreamState>>,
    parts: Vec<RunningPart>,
}

/// The thread that serves all streams, as seen by others.
#[derive(Debug)]
struct Engine {
    inbox: Mutex<Vec<Launch>>,
    bell: Bell,
    /// How often a seat of this process was aborted.
    aborts: AtomicU64,
    pid: u32,
}

static ENGINE: OnceLock<Engine> = OnceLock::new();

impl Engine {
    fn of_process() -> Result<&'static Self> {
        static START: Mutex<bool> = Mutex::new(false);
        let engine = ENGINE.get_or_init(|| Self {
            inbox: Mutex::default(),
            bell: Bell::new(),
            aborts: AtomicU64::new(0),
            pid: process::id(),
        });
        if engine.pid != process::id() {
            return Err(Error::usage("host streams of a parent process cannot be used after a fork"));
        }
        let mut started = START.lock();
        if !*started {
            std::thread::Builder::new()
                .name("accl-engine".to_string())
                .spawn(move || Queues::default().serve(engine))
                .map_err(|error| Error::system("cannot start the thread for host streams", error))?;
            *started = true;
        }
        Ok(engine)
    }
}

/// What the thread knows: launches in order, and who waits behind whom.
#[derive(Debug, Default)]
struct Queues {
    launches: BTreeMap<u64, Launch>,
    last_number: u64,
    by_stream: HashMap<u64, VecDeque<u64>>,
    by_seat: HashMap<usize, VecDeque<u64>>,
    /// Launches at the head of all their streams.
    begun: Vec<u64>,
    aborts_seen: u64,
    /// True while launches may be queued for seats that have been aborted.
    aborted_left: bool,
}

impl Queues {
    fn serve(mut self, engine: &'static Engine) {
        let patience = Patience::for_ranks(cpu::available_cores(), cpu::available_cores());
        let mut backoff = Backoff::new(patience, patience.habit());
        loop {
            let accepted = self.accept(engine) | self.end_aborted(engine);
            if self.poll() || accepted {
                backoff.reset();
            } else if self.begun.is_empty() || backoff.pause() == Pause::Sleep {
                self.sleep(engine);
            }
        }
    }

    fn accept(&mut self, engine: &Engine) -> bool {
        let arrived = std::mem::take(&mut *engine.inbox.lock());
        let any = !arrived.is_empty();
        for launch in arrived {
            self.last_number += 1;
            let number = self.last_number;
            self.aborted_left |= launch.parts.iter().any(RunningPart::is_aborted);
            for stream in &launch.streams {
                self.by_stream.entry(stream.number).or_default().push_back(number);
            }
            for part in &launch.parts {
                self.by_seat.entry(seat_key(&part.part.seat)).or_default().push_back(number);
            }
            self.launches.insert(number, launch);
            self.begin_if_first(number);
        }
        any
    }

    fn begin_if_first(&mut self, number: u64) {
        let Some(launch) = self.launches.get(&number) else { return };
        let first = |stream: &Arc<StreamState>| {
            self.by_stream.get(&stream.number).and_then(VecDeque::front) == Some(&number)
        };
        if launch.streams.iter().all(first) && !self.begun.contains(&number) {
            self.begun.push(number);
        }
    }

    /// Ends what is queued for aborted seats, also where it waits behind other communicators on its streams: whoever
    /// aborts waits for that. True if anything moved.
    fn end_aborted(&mut self, engine: &Engine) -> bool {
        // Acquire: pairs with `wake_for_abort`.
        let aborts = engine.aborts.load(Ordering::Acquire);
        if aborts == self.aborts_seen && !self.aborted_left {
            return false;
        }
        self.aborts_seen = aborts;
        let begun = |number: &u64| self.begun.contains(number);
        let waiting: Vec<u64> = self.launches.keys().copied().filter(|number| !begun(number)).collect();
        let mut moved = false;
        for number in waiting {
            moved |= self.visit(number, |part| match part.part.seat.check_abort() {
                Ok(()) => (false, None),
                Err(error) => (true, Some(Err(error))),
            });
        }
        let mut parts = self.launches.values().flat_map(|launch| &launch.parts);
        self.aborted_left = parts.any(|part| !part.done && part.is_aborted());
        moved
    }

    /// Polls every part whose turn it is; true if anything moved.
    fn poll(&mut self) -> bool {
        let mut moved = false;
        let mut index = 0;
        while index < self.begun.len() {
            let number = self.begun[index];
            moved |= self.visit(number, |part| part.poll());
            index += usize::from(self.begun.get(index) == Some(&number));
        }
        moved
    }

    /// Lets `look` at every part of a launch whose turn it is; ends those that it says have ended.
    fn visit(&mut self, number: u64, look: impl Fn(&mut RunningPart) -> (bool, Option<Result<()>>)) -> bool {
        let Some(launch) = self.launches.get_mut(&number) else { return false };
        let mut moved = false;
        for part in launch.parts.iter_mut().filter(|part| !part.done) {
            let key = seat_key(&part.part.seat);
            if self.by_seat.get(&key).and_then(VecDeque::front) != Some(&number) {
                continue;
            }
            let (advanced, outcome) = look(part);
            moved |= advanced;
            let Some(outcome) = outcome else { continue };
            part.done = true;
            part.part.seat.dequeue();
            pop(&mut self.by_seat, key);
            if let Err(error) = outcome {
                for stream in &launch.streams {
                    stream.progress.lock().error.get_or_insert_with(|| error.clone());
                }
            }
        }
        // Others keep their place on their streams: what is queued behind them waits for what is before them.
        if launch.parts.iter().all(|part| part.done) && self.begun.contains(&number) {
            self.end(number);
            moved = true;
        }
        moved
    }

    fn end(&mut self, number: u64) {
        self.begun.retain(|other| *other != number);
        let Some(launch) = self.launches.remove(&number) else { return };
        let mut next = Vec::new();
        for stream in &launch.streams {
            pop(&mut self.by_stream, stream.number);
            next.extend(self.by_stream.get(&stream.number).and_then(VecDeque::front).copied());
            let mut progress = stream.progress.lock();
            progress.queued -= 1;
            // Who waits, waits for the last one: waking it earlier would only take the core.
            if progress.queued == 0 {
                drop(progress);
                stream.changed.notify_all();
            }
        }
        for number in next {
            self.begin_if_first(number);
        }
    }

    fn sleep(&mut self, engine: &Engine) {
        for number in self.begun.clone() {
            if self.visit(number, |part| (false, part.examine())) {
                return;
            }
        }
        let rings = engine.bell.arm();
        let seats: Vec<Arc<Seat>> = self
            .begun
            .iter()
            .filter_map(|number| self.launches.get(number))
            .flat_map(|launch| {
                launch.parts.iter().filter(|part| !part.done).map(|part| part.part.seat.clone())
            })
            .collect();
        let bells: Vec<(&Bell, u32)> = seats
            .iter()
            .filter_map(|seat| seat.arena.as_ref().map(|arena| &arena.block(seat.rank).bell))
            .map(|bell| (bell, bell.arm()))
            .collect();
        for seat in &seats {
            // A failure to do so shows at the next look.
            if let Some(endpoint) = seat.endpoint.try_lock()
                && let Some(fabric) = &endpoint.fabric
            {
                let _ = fabric.ring_when_ready();
            }
        }
        // The last look, as in `drive`.
        if !self.accept(engine) && !self.end_aborted(engine) && !self.poll() {
            let mut words = vec![(engine.bell.word(), rings)];
            words.extend(bells.iter().map(|(bell, rings)| (bell.word(), *rings)));
            let idle = self.launches.is_empty();
            futex::wait_any(&words, if idle { std::time::Duration::from_secs(3600) } else { LOOK_AROUND });
        }
        engine.bell.disarm();
        for (bell, _) in bells {
            bell.disarm();
        }
    }
}

fn pop<K: std::hash::Hash + Eq>(queues: &mut HashMap<K, VecDeque<u64>>, key: K) {
    if let Some(queue) = queues.get_mut(&key) {
        queue.pop_front();
        if queue.is_empty() {
            queues.remove(&key);
        }
    }
}

fn seat_key(seat: &Arc<Seat>) -> usize {
    Arc::as_ptr(seat) as usize
}
