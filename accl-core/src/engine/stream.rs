//! Host streams: launches queue up and run in order, on one thread that serves all streams of the process.
//!
//! A launch is what one group puts on its streams. It begins when it is at the head of each of its streams and
//! of each of its seats; seats keep launches of one communicator in the order of their calls, whatever the
//! stream, so that communicators progress independently of each other.

use super::Poll;
use super::call::{Call, SelfCopy, Transfer};
use super::drive::{Job, Work};
use super::seat::Seat;
use super::watch::{LOOK_AROUND, Stall};
use crate::error::{Error, Result};
use crate::os::{cpu, futex, process};
use crate::sync::bell::Bell;
use crate::sync::prim::{AtomicBool, AtomicU64, Ordering};
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

/// Makes the engine's thread look around, if there is one.
pub(super) fn wake() {
    if let Some(engine) = ENGINE.get() {
        engine.bell.ring();
    }
}

/// The same after a seat has been aborted: its launches are over, also those behind launches that are not.
pub(super) fn drop_aborted() {
    if let Some(engine) = ENGINE.get() {
        // Release: pairs with `Queues::drop_aborted`, which then sees the seat's mark.
        engine.aborted.store(true, Ordering::Release);
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
            Err(error) => {
                endpoint.close();
                Some(Err(seat.fail(error)))
            }
        };
        drop(endpoint);
        self.stall.end(seat);
        (true, outcome)
    }

    fn examine(&mut self) -> Option<Result<()>> {
        let seat = &self.part.seat;
        let mut endpoint = seat.endpoint.try_lock()?;
        let error = self.stall.examine(seat, &mut endpoint, &self.work).err()?;
        endpoint.close();
        Some(Err(seat.fail(error)))
    }

    /// It is over for `number`, the launch that it is part of.
    fn end(
        &mut self,
        number: u64,
        outcome: Result<()>,
        streams: &[Arc<StreamState>],
        by_seat: &mut HashMap<usize, VecDeque<u64>>,
    ) {
        self.done = true;
        leave(by_seat, seat_key(&self.part.seat), number);
        if let Err(error) = outcome {
            for stream in streams {
                stream.progress.lock().error.get_or_insert_with(|| error.clone());
            }
        }
        self.part.seat.dequeue();
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
    /// A launch of an aborted seat may be waiting.
    aborted: AtomicBool,
    pid: u32,
}

static ENGINE: OnceLock<Engine> = OnceLock::new();

impl Engine {
    fn of_process() -> Result<&'static Self> {
        static START: Mutex<bool> = Mutex::new(false);
        let engine = ENGINE.get_or_init(|| Self {
            inbox: Mutex::default(),
            bell: Bell::new(),
            aborted: AtomicBool::new(false),
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
}

impl Queues {
    fn serve(mut self, engine: &'static Engine) {
        let patience = Patience::for_ranks(cpu::available_cores(), cpu::available_cores());
        let mut backoff = Backoff::new(patience, patience.spins());
        loop {
            if self.look(engine) {
                backoff.reset();
            } else if self.begun.is_empty() || backoff.pause() == Pause::Sleep {
                self.sleep(engine);
            }
        }
    }

    /// True if anything came or moved.
    fn look(&mut self, engine: &Engine) -> bool {
        let accepted = self.accept(engine);
        let dropped = self.drop_aborted(engine);
        self.poll() || accepted || dropped
    }

    fn accept(&mut self, engine: &Engine) -> bool {
        let arrived = std::mem::take(&mut *engine.inbox.lock());
        let any = !arrived.is_empty();
        for launch in arrived {
            self.last_number += 1;
            let number = self.last_number;
            for stream in &launch.streams {
                self.by_stream.entry(stream.number).or_default().push_back(number);
            }
            for part in &launch.parts {
                // One that comes after the abort of its seat.
                if part.part.seat.check_abort().is_err() {
                    engine.aborted.store(true, Ordering::Release);
                }
                self.by_seat.entry(seat_key(&part.part.seat)).or_default().push_back(number);
            }
            self.launches.insert(number, launch);
            self.begin_if_first(number);
        }
        any
    }

    /// Ends what aborted seats have in launches that have not begun: an abort must not wait for what is before
    /// them on a stream, which may be another communicator's, and stuck. True if there was any.
    fn drop_aborted(&mut self, engine: &Engine) -> bool {
        // Looking first is cheaper. Acquire: pairs with the function of this name.
        if !engine.aborted.load(Ordering::Relaxed) || !engine.aborted.swap(false, Ordering::AcqRel) {
            return false;
        }
        let waiting: Vec<u64> =
            self.launches.keys().copied().filter(|number| !self.begun.contains(number)).collect();
        for number in waiting {
            let Some(launch) = self.launches.get_mut(&number) else { continue };
            for part in launch.parts.iter_mut().filter(|part| !part.done) {
                if let Err(error) = part.part.seat.check_abort() {
                    part.end(number, Err(part.part.seat.fail(error)), &launch.streams, &mut self.by_seat);
                }
            }
            if launch.parts.iter().all(|part| part.done) {
                self.end(number);
            }
        }
        true
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
            if let Some(outcome) = outcome {
                part.end(number, outcome, &launch.streams, &mut self.by_seat);
            }
        }
        if launch.parts.iter().all(|part| part.done) {
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
            leave(&mut self.by_stream, stream.number, number);
            next.extend(self.by_stream.get(&stream.number).and_then(VecDeque::front).copied());
            stream.progress.lock().queued -= 1;
            stream.changed.notify_all();
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
        // The last look, as in `drive`.
        if !self.look(engine) {
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

/// Takes a launch, which is the first one unless it was aborted, off a queue.
fn leave<K: std::hash::Hash + Eq>(queues: &mut HashMap<K, VecDeque<u64>>, key: K, number: u64) {
    if let Some(queue) = queues.get_mut(&key) {
        queue.retain(|other| *other != number);
        if queue.is_empty() {
            queues.remove(&key);
        }
    }
}

fn seat_key(seat: &Arc<Seat>) -> usize {
    Arc::as_ptr(seat) as usize
}
