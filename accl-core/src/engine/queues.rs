//! The thread that serves all host streams of the process: launches in the order of their streams and seats, polled
//! in turn.

use super::Poll;
use super::arrivals::Arrivals;
use super::call::Call;
use super::drive::{Work, fail};
use super::pipeline::Pipeline;
use super::seat::Seat;
use super::stream::{Engine, Inbox, Launch, Part, Run, StreamState};
use super::watch::{LOOK_AROUND, Stall};
use crate::error::Result;
use crate::os::futex;
use crate::sync::bell::Bell;
use crate::sync::prim::Ordering;
use crate::sync::wait::{Backoff, Patience, Pause};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// While launches are under way, every so many looks new ones are accepted.
const LOOKS: u32 = 8;

/// One rank's part of a group.
#[derive(Debug)]
struct RunningPart {
    part: Part,
    /// How many of the seat's launches come before it.
    turn: u64,
    work: Work,
    stall: Stall,
    done: bool,
}

impl RunningPart {
    fn new((turn, part): (u64, Part)) -> Self {
        Self { part, turn, work: Work::default(), stall: Stall::default(), done: false }
    }

    /// True if it is the next of its seat.
    fn may_go_on(&self) -> bool {
        !self.done && self.part.seat.launches.done() == self.turn
    }

    /// Polls, and says whether something moved and how it ended, if it did.
    fn poll(&mut self) -> (bool, Option<Result<()>>) {
        let seat = &self.part.seat;
        // A thread that calls without a stream may be in the middle of an operation of this rank. Others' streams
        // must not wait for it; it wakes us when it is done.
        let Some(mut endpoint) = seat.endpoint.try_lock() else { return (false, None) };
        let ready = seat.check_abort();
        seat.recorder.from_stream(true);
        let result = ready.and_then(|()| self.work.poll(&self.part.job(), &mut endpoint));
        seat.recorder.from_stream(false);
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

/// A launch that is more than a call.
#[derive(Debug)]
struct Group {
    number: u64,
    /// Its streams; it lies on the first, and keeps its place on the others.
    streams: Vec<Arc<StreamState>>,
    parts: Vec<RunningPart>,
}

impl Group {
    /// Lets `look` at every part whose turn it is; ends those that it says have ended. True if anything moved.
    fn visit(&mut self, look: impl Fn(&mut RunningPart) -> (bool, Option<Result<()>>)) -> bool {
        let mut moved = false;
        for part in self.parts.iter_mut().filter(|part| part.may_go_on()) {
            let (advanced, outcome) = look(part);
            moved |= advanced;
            let Some(outcome) = outcome else { continue };
            if let Err(error) = outcome {
                self.streams.iter().for_each(|stream| stream.fail(&error));
            }
            part.done = true;
            part.part.seat.complete_launches(1);
        }
        moved
    }

    fn is_done(&self) -> bool {
        self.parts.iter().all(|part| part.done)
    }
}

/// What has a place on a stream.
#[derive(Debug)]
enum Entry {
    Run(Run),
    Group(Box<Group>),
    /// The place of a group that lies on another stream.
    Place(u64),
}

/// One stream's launches.
#[derive(Debug)]
struct Queue {
    stream: Arc<StreamState>,
    lines: Lines,
    /// How far the run at the head is.
    pipeline: Pipeline,
    stall: Stall,
}

/// Its memory, which outlasts it.
#[derive(Debug, Default)]
struct Lines {
    entries: VecDeque<Entry>,
    /// Those of all runs.
    calls: VecDeque<Call>,
}

impl Queue {
    fn push_run(&mut self, run: Run) {
        if let Some(Entry::Run(last)) = self.lines.entries.back_mut()
            && Arc::ptr_eq(&last.seat, &run.seat)
            && last.turn + last.calls as u64 == run.turn
        {
            last.calls += run.calls;
        } else {
            self.lines.entries.push_back(Entry::Run(run));
        }
    }

    /// Polls the run at the head; true if anything moved.
    fn poll_run(&mut self) -> bool {
        let Some(Entry::Run(run)) = self.lines.entries.front() else { return false };
        let (seat, count) = (&run.seat, run.calls);
        if seat.launches.done() != run.turn {
            return false;
        }
        // As in `RunningPart::poll`.
        let Some(mut endpoint) = seat.endpoint.try_lock() else { return false };
        if let Err(error) = seat.check_abort() {
            self.stream.fail(&fail(seat, &mut endpoint, error));
            self.stall.end(seat);
            drop(endpoint);
            self.end_calls(count);
            return true;
        }
        seat.recorder.from_stream(true);
        let (advance, outcome) = self.pipeline.poll(&self.lines.calls, count, &mut endpoint);
        seat.recorder.from_stream(false);
        let mut finished = advance.finished;
        let moved = advance.moved || outcome.is_err();
        if moved {
            self.stall.end(seat);
        }
        if let Err(error) = outcome {
            self.stream.fail(&fail(seat, &mut endpoint, error));
            self.pipeline = Pipeline::default();
            finished += 1;
        }
        drop(endpoint);
        self.end_calls(finished);
        moved
    }

    /// Looks for reasons to give up the run at the head; true if its first call has ended.
    fn examine_run(&mut self) -> bool {
        let (Some(Entry::Run(run)), Some(call)) = (self.lines.entries.front(), self.lines.calls.front())
        else {
            return false;
        };
        let seat = &run.seat;
        if seat.launches.done() != run.turn {
            return false;
        }
        let Some(mut endpoint) = seat.endpoint.try_lock() else { return false };
        let Err(error) = self.pipeline.examine(call, &mut self.stall, seat, &mut endpoint) else {
            return false;
        };
        self.stream.fail(&fail(seat, &mut endpoint, error));
        self.stall.end(seat);
        self.pipeline = Pipeline::default();
        drop(endpoint);
        self.end_calls(1);
        true
    }

    /// The first `count` calls of the run at the head are done, failed or not.
    fn end_calls(&mut self, count: usize) {
        let Some(Entry::Run(run)) = self.lines.entries.front_mut() else { return };
        if count == 0 {
            return;
        }
        self.lines.calls.drain(..count);
        run.turn += count as u64;
        run.calls -= count;
        run.seat.complete_launches(count as u64);
        if run.calls == 0 {
            self.pipeline = Pipeline::default();
            self.lines.entries.pop_front();
        }
        self.stream.progress.complete(count as u64);
    }

    /// Ends what waits here for aborted seats, behind the head; true if anything moved.
    fn end_aborted(&mut self, head_waits: bool) -> bool {
        let (mut at, mut first_call, mut moved) = (0, 0, false);
        while let Some(entry) = self.lines.entries.get_mut(at) {
            let waits = at > 0 || head_waits;
            match entry {
                Entry::Group(group) if waits => {
                    moved |= group.visit(|part| match part.part.seat.check_abort() {
                        Ok(()) => (false, None),
                        Err(error) => (true, Some(Err(error))),
                    });
                }
                Entry::Run(run) => {
                    if let Err(error) = run.seat.check_abort()
                        && waits
                        && run.seat.launches.done() == run.turn
                    {
                        self.stream.fail(&error);
                        self.lines.calls.drain(first_call..first_call + run.calls);
                        run.seat.complete_launches(run.calls as u64);
                        self.stream.progress.complete(run.calls as u64);
                        self.lines.entries.remove(at);
                        moved = true;
                        continue;
                    }
                    first_call += run.calls;
                }
                Entry::Group(_) | Entry::Place(_) => {}
            }
            at += 1;
        }
        moved
    }

    /// The seats that launches here may wait for: all, or those of the head.
    fn seats(&self, all: bool) -> impl Iterator<Item = &Arc<Seat>> {
        let entries = self.lines.entries.iter().take(if all { usize::MAX } else { 1 });
        entries.flat_map(|entry| {
            let (run, parts) = match entry {
                Entry::Run(run) => (Some(&run.seat), &[][..]),
                Entry::Group(group) => (None, &group.parts[..]),
                Entry::Place(_) => (None, &[][..]),
            };
            run.into_iter().chain(parts.iter().filter(|part| !part.done).map(|part| &part.part.seat))
        })
    }
}

/// What the thread knows.
#[derive(Debug)]
pub(super) struct Queues {
    /// Streams that have launches.
    queues: Vec<Queue>,
    /// Memory of those that have none any more.
    spare: Vec<Lines>,
    /// Ranks with a device.
    arrivals: Arrivals,
    arrived: Inbox,
    groups: u64,
    aborts_seen: u64,
    /// True while launches may be queued for seats that have been aborted.
    aborted_left: bool,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self {
            queues: Vec::new(),
            spare: Vec::new(),
            arrivals: Arrivals::default(),
            arrived: Inbox::new(),
            groups: 0,
            aborts_seen: 0,
            aborted_left: false,
        }
    }

    pub(super) fn serve(mut self, engine: &'static Engine) {
        // The threads that queue want the same cores.
        let patience = Patience::for_helper();
        let mut backoff = Backoff::new(patience, patience.habit());
        let mut looks = 0u32;
        loop {
            looks = looks.wrapping_add(1);
            // Who queues and this thread take the inbox from each other's cache: seldom, unless there is nothing else.
            let idle = self.queues.is_empty() && !self.arrivals.has_some();
            let accepted = (idle || looks.is_multiple_of(LOOKS)) && self.accept(engine);
            if accepted | self.end_aborted(engine) | self.poll() {
                backoff.reset();
            } else if idle || backoff.pause() == Pause::Sleep {
                self.sleep(engine);
            }
        }
    }

    /// The queue of a stream, which has one from now on.
    fn queue(&mut self, stream: &Arc<StreamState>) -> usize {
        if let Some(index) = self.queues.iter().position(|queue| Arc::ptr_eq(&queue.stream, stream)) {
            return index;
        }
        self.queues.push(Queue {
            stream: stream.clone(),
            lines: self.spare.pop().unwrap_or_default(),
            pipeline: Pipeline::default(),
            stall: Stall::default(),
        });
        self.queues.len() - 1
    }

    fn accept(&mut self, engine: &Engine) -> bool {
        if !engine.take(&mut self.arrived) {
            return false;
        }
        let mut arrived = std::mem::replace(&mut self.arrived, Inbox::empty());
        let mut calls = arrived.calls.drain(..);
        for launch in arrived.launches.drain(..) {
            match launch {
                Launch::Run(stream, run) => {
                    self.aborted_left |= run.seat.check_abort().is_err();
                    let index = self.queue(&stream);
                    self.queues[index].lines.calls.extend(calls.by_ref().take(run.calls));
                    self.queues[index].push_run(run);
                }
                Launch::Group { streams, parts } => self.accept_group(streams, parts),
                Launch::Dock(seat) => self.arrivals.serve(seat),
            }
        }
        drop(calls);
        self.arrived = arrived;
        true
    }

    fn accept_group(&mut self, streams: Vec<Arc<StreamState>>, parts: Vec<(u64, Part)>) {
        self.groups += 1;
        let number = self.groups;
        let places: Vec<usize> = streams.iter().map(|stream| self.queue(stream)).collect();
        let parts: Vec<_> = parts.into_iter().map(RunningPart::new).collect();
        self.aborted_left |= parts.iter().any(|part| part.part.seat.check_abort().is_err());
        let group = Box::new(Group { number, streams, parts });
        for place in places.iter().skip(1) {
            self.queues[*place].lines.entries.push_back(Entry::Place(number));
        }
        if let Some(first) = places.first() {
            self.queues[*first].lines.entries.push_back(Entry::Group(group));
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
        let mut moved = false;
        loop {
            let mut again = false;
            for index in 0..self.queues.len() {
                let head_waits = !self.may_begin(index);
                again |= self.queues[index].end_aborted(head_waits);
            }
            if !again {
                break;
            }
            moved = true;
        }
        let mut seats = self.queues.iter().flat_map(|queue| queue.seats(true));
        self.aborted_left = seats.any(|seat| seat.check_abort().is_err());
        moved
    }

    /// True if the head of a queue is at the head of all its streams.
    fn may_begin(&self, index: usize) -> bool {
        let is_place = |queue: &Queue, number| matches!(queue.lines.entries.front(), Some(Entry::Place(of)) if *of == number);
        match self.queues[index].lines.entries.front() {
            Some(Entry::Run(_)) => true,
            Some(Entry::Group(group)) => {
                let others = group.streams.len() - 1;
                others == 0
                    || self.queues.iter().filter(|queue| is_place(queue, group.number)).count() == others
            }
            Some(Entry::Place(_)) | None => false,
        }
    }

    /// Polls what is at the heads; true if anything moved.
    fn poll(&mut self) -> bool {
        let mut moved = self.arrivals.has_some() && self.arrivals.poll();
        for index in 0..self.queues.len() {
            moved |= if matches!(self.queues[index].lines.entries.front(), Some(Entry::Run(_))) {
                self.queues[index].poll_run()
            } else {
                self.visit(index, RunningPart::poll)
            };
        }
        // Queues leave when nobody counts them any more.
        for index in (0..self.queues.len()).rev() {
            if self.queues[index].lines.entries.is_empty() {
                self.spare.push(self.queues.swap_remove(index).lines);
            }
        }
        moved
    }

    /// Visits the group at the head of a queue, if it may begin, and ends it if all its parts have ended.
    fn visit(&mut self, index: usize, look: impl Fn(&mut RunningPart) -> (bool, Option<Result<()>>)) -> bool {
        if !self.may_begin(index) {
            return false;
        }
        let entries = &mut self.queues[index].lines.entries;
        let Some(Entry::Group(group)) = entries.front_mut() else { return false };
        let moved = group.visit(look);
        if !group.is_done() {
            return moved;
        }
        // Its streams go on from here, one as all.
        let number = group.number;
        for queue in &mut self.queues {
            let ended = match queue.lines.entries.front() {
                Some(Entry::Group(group)) => group.number == number,
                Some(Entry::Place(of)) => *of == number,
                Some(Entry::Run(_)) | None => false,
            };
            if ended {
                queue.lines.entries.pop_front();
                queue.stream.progress.complete(1);
            }
        }
        true
    }

    /// Looks for reasons to give up; if there are none, sleeps until a bell rings or it is time to look again.
    fn sleep(&mut self, engine: &Engine) {
        for index in 0..self.queues.len() {
            if self.queues[index].examine_run() || self.visit(index, |part| (false, part.examine())) {
                return;
            }
        }
        if self.arrivals.examine() {
            return;
        }
        let rings = engine.bell.arm();
        let queued = self.queues.iter().flat_map(|queue| queue.seats(false));
        let seats: Vec<Arc<Seat>> = queued.chain(self.arrivals.seats()).cloned().collect();
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
        if !(self.accept(engine) | self.end_aborted(engine) | self.poll()) {
            let mut words = vec![(engine.bell.word(), rings)];
            words.extend(bells.iter().map(|(bell, rings)| (bell.word(), *rings)));
            futex::wait_any(&words, self.most_sleep(engine));
        }
        engine.bell.disarm();
        for (bell, _) in bells {
            bell.disarm();
        }
    }

    /// How long to sleep.
    fn most_sleep(&mut self, engine: &Engine) -> Duration {
        match (self.arrivals.has_some(), self.queues.is_empty()) {
            (true, _) => self.arrivals.most_sleep(),
            (false, true) => self.trim(engine),
            (false, false) => LOOK_AROUND,
        }
    }

    /// Gives back what only long queues needed; returns how long to sleep.
    fn trim(&mut self, engine: &Engine) -> Duration {
        const KEEP_CALLS: usize = 1024;
        engine.trim();
        self.arrived.trim();
        self.spare.truncate(16);
        self.spare.iter_mut().for_each(|lines| lines.calls.shrink_to(KEEP_CALLS));
        Duration::from_secs(3600)
    }
}
