//! The engine's side of docks: streams of devices come to launches, which are carried out in the order in which they come.

use super::Poll;
use super::dock::{Captured, Content, Dock, Expected};
use super::drive::fail;
use super::endpoint::Endpoint;
use super::seat::Seat;
use super::staged::StagedWork;
use super::watch::{LOOK_AROUND, Stall};
use crate::driver::CaptureMode;
use crate::error::{Error, Result};
use crate::os::clock;
use crate::sync::prim::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the thread looks at words and events of devices, which ring no bell: at first, and when nothing has moved for long.
const LOOKS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Which mailbox a launch has come by.
#[derive(Debug)]
enum Door {
    /// That of launches outside of graphs.
    Open,
    /// That of a graph.
    Graph(Arc<Captured>),
}

/// A launch to which its stream has come.
#[derive(Debug)]
struct Running {
    door: Door,
    number: u32,
    content: Content,
    work: StagedWork,
    stall: Stall,
}

impl Running {
    fn poll(&mut self, seat: &Seat, endpoint: &mut Endpoint) -> Result<Poll> {
        let (Some(dock), job) = (&seat.dock, self.content.job()) else { return Ok(Poll::Done) };
        dock.accelerator.within(|_| self.work.poll(&job, endpoint, dock))
    }
}

/// One dock that may have work.
#[derive(Debug)]
struct Served {
    seat: Arc<Seat>,
    running: Option<Running>,
    /// Launches that have failed: their streams wait until the communicator is aborted, so that nobody takes what is in the
    /// buffers for a result.
    held: Vec<(Door, u32)>,
    /// Streams are let go when what the device has under way for them is done.
    ending: bool,
}

impl Served {
    fn dock(&self) -> Result<&Dock> {
        self.seat.dock.as_ref().ok_or_else(|| Error::internal("an arrival at a rank without a device"))
    }

    /// Makes what progress it can; true if anything moved.
    fn poll(&mut self) -> bool {
        let Ok(dock) = self.dock() else { return false };
        if dock.released.load(Ordering::Acquire) {
            return self.let_go();
        }
        if self.running.is_none() {
            self.running = self.arrived();
        }
        let Some(running) = &mut self.running else { return false };
        let seat = &self.seat;
        // As with host streams: a thread that calls without a stream may use this rank.
        let Some(mut endpoint) = seat.endpoint.try_lock() else { return false };
        seat.recorder.from_stream(true);
        let polled = running.poll(seat, &mut endpoint);
        seat.recorder.from_stream(false);
        match polled {
            Ok(Poll::Blocked) => return false,
            Ok(Poll::Advanced) => running.stall.end(seat),
            Ok(Poll::Done) => {
                running.stall.end(seat);
                drop(endpoint);
                self.end_running();
            }
            Err(error) => {
                running.stall.end(seat);
                fail(seat, &mut endpoint, error);
                drop(endpoint);
                self.hold();
            }
        }
        true
    }

    /// Looks for reasons to give up; true if there was one.
    fn examine(&mut self) -> bool {
        let seat = &self.seat;
        let Some(running) = &mut self.running else { return false };
        let Some(mut endpoint) = seat.endpoint.try_lock() else { return false };
        let Err(error) = running.stall.examine(seat, &mut endpoint, &running.work.work) else { return false };
        running.stall.end(seat);
        fail(seat, &mut endpoint, error);
        drop(endpoint);
        self.hold();
        true
    }

    /// The launch that runs has failed, and those that are expected will not be carried out: they are over for whoever counts them,
    /// and not for their streams.
    fn hold(&mut self) {
        let mut over = 0;
        if let Some(running) = self.running.take() {
            over += u64::from(matches!(running.door, Door::Open));
            self.held.push((running.door, running.number));
        }
        if let Ok(dock) = self.dock() {
            let mut launched = dock.launched.lock();
            over += launched.expected.len() as u64;
            launched.abandoned |= !launched.expected.is_empty();
            launched.expected.clear();
        }
        self.seat.complete_launches(over);
    }

    /// The next launch to which a stream has come.
    fn arrived(&self) -> Option<Running> {
        let dock = self.dock().ok()?;
        let start = |door, number, content| {
            Some(Running { door, number, content, work: StagedWork::default(), stall: Stall::default() })
        };
        let mut launched = dock.launched.lock();
        while launched.expected.front().is_some_and(|first| first.cancelled) {
            launched.expected.pop_front();
            self.seat.complete_launches(1);
        }
        // Acquire: what the stream did before is there.
        let number = dock.mailbox.arrival().swap(0, Ordering::Acquire);
        if number != 0
            && launched.expected.front().is_some_and(|first| first.number == number)
            && let Some(Expected { content, .. }) = launched.expected.pop_front()
        {
            return start(Door::Open, number, content);
        }
        for graph in &launched.graphs {
            let number = graph.mailbox.arrival().swap(0, Ordering::Acquire);
            if number != 0
                && let Some(content) = graph.content(number)
            {
                return start(Door::Graph(graph.clone()), number, content);
            }
        }
        None
    }

    /// Ends the launch that runs: its stream goes on.
    fn end_running(&mut self) {
        let Some(running) = self.running.take() else { return };
        let is_open = matches!(running.door, Door::Open);
        self.answer(&running.door, running.number);
        if is_open {
            self.seat.complete_launches(1);
        }
    }

    /// Lets the stream of a launch go on.
    fn answer(&self, door: &Door, number: u32) {
        // Release: what was done is there for the stream.
        match (door, &self.seat.dock) {
            (Door::Graph(graph), _) => graph.mailbox.done().store(number, Ordering::Release),
            (Door::Open, Some(dock)) => dock.mailbox.done().store(number, Ordering::Release),
            (Door::Open, None) => {}
        }
    }

    /// Lets all streams go on, whatever they have come to or will come to; true if that was still to be done.
    fn let_go(&mut self) -> bool {
        if self.running.is_some() {
            // Peers must not read on what is given back now.
            let Some(mut endpoint) = self.seat.endpoint.try_lock() else { return false };
            endpoint.close();
            drop(endpoint);
            self.hold();
        }
        let Some(dock) = self.seat.dock.as_ref() else { return false };
        if !self.held.is_empty() {
            // Copies of ours must not come to buffers that their owners have got back. What the driver refuses is over.
            if !self.ending {
                self.ending = dock.mark_end().is_ok();
            }
            if self.ending && !dock.has_ended().unwrap_or(true) {
                return false;
            }
            self.ending = false;
        }
        let mut moved = !self.held.is_empty();
        for (door, number) in std::mem::take(&mut self.held) {
            self.answer(&door, number);
        }
        let mut launched = dock.launched.lock();
        let dropped = launched.expected.len();
        launched.expected.clear();
        launched.abandoned |= dropped > 0;
        moved |= dropped > 0;
        for graph in &launched.graphs {
            let number = graph.mailbox.arrival().swap(0, Ordering::AcqRel);
            if number != 0 {
                graph.mailbox.done().store(number, Ordering::Release);
                moved = true;
            }
        }
        launched.abandoned = dock.let_all_go(launched.abandoned);
        drop(launched);
        self.seat.complete_launches(dropped as u64);
        moved
    }

    /// True if there is nothing left to come; then nobody looks here until something is launched again.
    fn is_over(&self) -> bool {
        let Ok(dock) = self.dock() else { return true };
        let mut launched = dock.launched.lock();
        launched.graphs.retain(|graph| {
            let ended = graph.ended.load(Ordering::Acquire);
            if ended {
                graph.give_back(&dock.accelerator);
            }
            !ended
        });
        let idle = self.running.is_none() && self.held.is_empty();
        let over = idle && launched.expected.is_empty() && launched.graphs.is_empty();
        if over {
            launched.served = false;
        }
        over
    }

    /// True if something may come from the device at any time.
    fn awaits_device(&self) -> bool {
        if self.ending {
            return true;
        }
        if let Some(running) = &self.running {
            return running.work.awaits_device();
        }
        self.dock().is_ok_and(|dock| !dock.launched.lock().expected.is_empty())
    }
}

/// All docks that may have work.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    served: Vec<Served>,
    /// When something moved last.
    moved: Option<Instant>,
}

impl Arrivals {
    /// Has one more dock looked at.
    pub(super) fn serve(&mut self, seat: Arc<Seat>) {
        if self.served.is_empty()
            && let Some(dock) = &seat.dock
        {
            // It fails where the driver knows no captures: then there is nothing to be relaxed.
            let _ = dock.accelerator.driver.exchange_capture_mode(CaptureMode::RELAXED);
        }
        self.served.push(Served { seat, running: None, held: Vec::new(), ending: false });
        self.moved = Some(clock::now());
    }

    /// True while there are docks to look at.
    pub(super) fn has_some(&self) -> bool {
        !self.served.is_empty()
    }

    /// Polls them all; true if anything moved.
    pub(super) fn poll(&mut self) -> bool {
        let mut moved = false;
        for served in &mut self.served {
            moved |= served.poll();
        }
        if moved {
            self.moved = Some(clock::now());
        }
        moved
    }

    /// Looks for reasons to give up; true if there was one. Docks without work leave.
    pub(super) fn examine(&mut self) -> bool {
        self.served.retain(|served| !served.is_over());
        self.served.iter_mut().fold(false, |found, served| served.examine() | found)
    }

    /// The ranks whose bells ring for what is under way.
    pub(super) fn seats(&self) -> impl Iterator<Item = &Arc<Seat>> {
        self.served.iter().filter(|served| served.running.is_some()).map(|served| &served.seat)
    }

    /// For how long the thread may sleep.
    pub(super) fn most_sleep(&self) -> Duration {
        if !self.served.iter().any(Served::awaits_device) {
            return LOOK_AROUND;
        }
        let still = self.moved.map_or(LOOKS.1, |moved| clock::now() - moved);
        (still / 8).clamp(LOOKS.0, LOOKS.1)
    }
}
