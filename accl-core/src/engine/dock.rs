//! Where the streams of a device come to the engine: one rank's dock.
//!
//! A call in device memory puts three things on the user's stream: a store that says which launch it has come to, and a wait until
//! that is over (and, in a graph, one that takes the answer of the last replay back). Everything else is done by the engine's
//! thread (`arrivals`, `staged`), so that the same few commands can be captured, and replayed any number of times.
//!
//! Launches of a rank follow each other: on one stream by its order, on several because each waits for the one before. Those of a graph
//! have a mailbox of their own, since nobody knows when it is replayed; a user who replays a graph orders that against other
//! calls of the communicator, as with NCCL.

use super::call::Call;
use super::drive::Job;
use super::seat::Seat;
use super::staging::{Kind, Staging};
use super::stream::{self, Part};
use super::windows::Windows;
use crate::device::{Mailbox, UserPointer};
use crate::driver::{Capture, CaptureMode, Context, Driver, Event, Stream, Until};
use crate::error::{Error, Result};
use crate::sync::prim::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// A device as a communicator has it.
#[derive(Clone, Copy, Debug)]
pub struct Accelerator {
    /// Who drives it.
    pub driver: &'static dyn Driver,
    /// The context that the communicator's ranks of this process use.
    pub context: Context,
}

impl Accelerator {
    /// Runs `body` with the context as the calling thread's.
    pub(crate) fn within<T>(&self, body: impl FnOnce(&'static dyn Driver) -> Result<T>) -> Result<T> {
        self.driver.push(self.context)?;
        let outcome = body(self.driver);
        let popped = self.driver.pop();
        outcome.and_then(|value| popped.map(|()| value))
    }
}

/// What one rank does in a launch. Most are one call, for which nothing is allocated.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Call(Call),
    Part(Arc<Part>),
}

impl Content {
    /// The same, borrowed.
    pub(super) fn job(&self) -> Job<'_> {
        match self {
            Self::Call(call) => Job { calls: std::slice::from_ref(call), ..Job::default() },
            Self::Part(part) => part.job(),
        }
    }
}

/// A launch whose stream has not come to it.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) number: u32,
    pub(super) content: Content,
}

/// The launches of one graph.
#[derive(Debug)]
pub(super) struct Captured {
    /// The capture's number.
    id: u64,
    first: u32,
    pub(super) mailbox: Mutex<Mailbox>,
    contents: Mutex<Vec<Content>>,
    /// The stream of the last launch, and a mark behind that.
    last: Mutex<Option<(Stream, Event)>>,
    /// The graph is gone, and all that was made of it.
    pub(super) ended: AtomicBool,
}

impl Captured {
    /// The launch of a number.
    pub(super) fn content(&self, number: u32) -> Option<Content> {
        self.contents.lock().get(number.wrapping_sub(self.first) as usize).cloned()
    }
}

/// What has been launched.
#[derive(Debug)]
pub(super) struct Launched {
    pub(super) mailbox: Mailbox,
    /// Launches in the order in which their streams come to them.
    pub(super) expected: VecDeque<Expected>,
    /// The stream of the last one.
    stream: Option<Stream>,
    pub(super) graphs: Vec<Arc<Captured>>,
    /// True while the engine's thread looks at this dock.
    pub(super) served: bool,
}

/// The dock.
#[derive(Debug)]
pub(crate) struct Dock {
    pub(super) accelerator: Accelerator,
    pub(super) launched: Mutex<Launched>,
    /// Made with the first launch that goes by the host.
    pub(super) staging: OnceLock<Staging>,
    /// There if the devices of all ranks reach each other.
    pub(super) windows: OnceLock<Windows>,
    /// Where factors of pre-multiplied sums are copied to.
    pub(super) factor: UserPointer,
    /// Nobody will end this rank's launches any more: streams go on whatever has become of them.
    pub(super) released: AtomicBool,
}

impl Dock {
    /// A dock for streams of `accelerator`.
    pub(crate) fn new(accelerator: Accelerator) -> Result<Self> {
        let mailbox = accelerator.within(|driver| relaxed(driver, || Mailbox::take(driver)))?;
        let factor = mailbox.factor();
        let launched =
            Launched { mailbox, expected: VecDeque::new(), stream: None, graphs: Vec::new(), served: false };
        Ok(Self {
            accelerator,
            launched: Mutex::new(launched),
            staging: OnceLock::new(),
            windows: OnceLock::new(),
            factor,
            released: AtomicBool::new(false),
        })
    }

    /// Lets all streams go on.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Release);
        stream::wake();
    }

    fn launch(&self, seat: &Arc<Seat>, streams: &[Stream], content: Content) -> Result<()> {
        self.accelerator.within(|driver| {
            let [first, others @ ..] = streams else { return Err(Error::internal("a launch without a stream")) };
            let capture = common_capture(driver, streams)?;
            if self.staging.get().is_none() && self.goes_by_host(&content.job()) {
                self.stage(driver)?;
            }
            gather(driver, *first, others)?;
            match capture {
                _ if seat.is_plain_alone(&content.job()) => copy_alone(driver, *first, &content.job())?,
                Capture::None => self.launch_now(driver, seat, *first, content)?,
                Capture::Active { id, graph } => self.capture(driver, seat, *first, content, (id, graph))?,
                Capture::Invalidated => {
                    return Err(Error::usage(
                        "the stream's capture has been invalidated by an earlier call; end it, and find that call",
                    ));
                }
            }
            spread(driver, *first, others)
        })
    }

    /// Makes what launches go through. This thread may be capturing, which that is no part of.
    #[cold]
    fn stage(&self, driver: &'static dyn Driver) -> Result<()> {
        let staging = relaxed(driver, || Staging::take(driver, self.accelerator.context, Kind::Host))?;
        if let Err(staging) = self.staging.set(staging) {
            staging.give_back();
        }
        Ok(())
    }

    fn launch_now(
        &self,
        driver: &dyn Driver,
        seat: &Arc<Seat>,
        stream: Stream,
        content: Content,
    ) -> Result<()> {
        let mut launched = self.launched.lock();
        let done = launched.mailbox.done_word();
        if launched.stream.is_some_and(|last| last != stream) && !launched.expected.is_empty() {
            driver.wait_word(stream, done, Until::Reached(launched.mailbox.last))?;
        }
        let number = launched.mailbox.take_number();
        driver.write_word(stream, launched.mailbox.arrival_word(), number)?;
        let waits = driver.wait_word(stream, done, Until::Reached(number));
        let turn = seat.launches.queue();
        seat.recorder.launched(turn + 1);
        launched.expected.push_back(Expected { number, content });
        launched.stream = Some(stream);
        self.serve(seat, launched)?;
        // The stream does not wait for what it has asked for.
        waits.map_err(|error| seat.fail(error))
    }

    fn capture(
        &self,
        driver: &dyn Driver,
        seat: &Arc<Seat>,
        stream: Stream,
        content: Content,
        (id, graph): (u64, usize),
    ) -> Result<()> {
        let mut launched = self.launched.lock();
        let captured = match launched.graphs.iter().find(|captured| captured.id == id) {
            Some(captured) => captured.clone(),
            None => {
                let captured = begin_graph(driver, graph, id)?;
                launched.graphs.push(captured.clone());
                captured
            }
        };
        let mut last = captured.last.lock();
        let event = match *last {
            Some((before, event)) => {
                if before != stream {
                    driver.wait_event(stream, event)?;
                }
                event
            }
            None => driver.create_event()?,
        };
        let mut mailbox = captured.mailbox.lock();
        let number = mailbox.take_number();
        captured.contents.lock().push(content);
        driver.call_host(stream, stream::wake)?;
        driver.write_word(stream, mailbox.done_word(), 0)?;
        driver.write_word(stream, mailbox.arrival_word(), number)?;
        driver.wait_word(stream, mailbox.done_word(), Until::Equal(number))?;
        driver.record(event, stream)?;
        *last = Some((stream, event));
        self.serve(seat, launched)
    }

    /// Has the engine's thread look here.
    fn serve(&self, seat: &Arc<Seat>, mut launched: parking_lot::MutexGuard<'_, Launched>) -> Result<()> {
        let served = std::mem::replace(&mut launched.served, true);
        drop(launched);
        if served {
            stream::wake();
            return Ok(());
        }
        stream::serve_dock(seat)
    }
}

impl Drop for Dock {
    fn drop(&mut self) {
        let launched = self.launched.get_mut();
        let window = self.windows.take().map(|windows| windows.staging);
        self.staging.take().into_iter().chain(window).for_each(Staging::give_back);
        // A stream that has not come to its last launch may come to this line later.
        if launched.expected.is_empty() {
            launched.mailbox.give_back();
        }
    }
}

/// Puts what one rank does in a launch on streams of its device; all of them wait for it. Returns at once.
pub fn launch(streams: &[Stream], part: Part) -> Result<()> {
    let seat = part.seat.clone();
    dock_of(&seat)?.launch(&seat, streams, Content::Part(Arc::new(part)))
}

/// The same for a single call, without an allocation.
pub fn launch_call(stream: Stream, seat: &Arc<Seat>, call: &Call) -> Result<()> {
    dock_of(seat)?.launch(seat, &[stream], Content::Call(*call))
}

fn dock_of(seat: &Seat) -> Result<&Dock> {
    seat.dock.as_ref().ok_or_else(|| Error::internal("a device stream for a rank without a device"))
}

/// What is being done with the streams; they must all be in the same state.
fn common_capture(driver: &dyn Driver, streams: &[Stream]) -> Result<Capture> {
    let mut common = None;
    for stream in streams {
        let capture = driver.capture(*stream)?;
        if *common.get_or_insert(capture) != capture {
            return Err(Error::usage(
                "the streams of one group are not all captured in the same graph; need all of them to be, or none",
            ));
        }
    }
    Ok(common.unwrap_or(Capture::None))
}

/// The first stream waits for the others.
fn gather(driver: &dyn Driver, first: Stream, others: &[Stream]) -> Result<()> {
    others.iter().try_for_each(|other| {
        with_event(driver, |event| {
            driver.record(event, *other)?;
            driver.wait_event(first, event)
        })
    })
}

/// The others wait for the first stream.
fn spread(driver: &dyn Driver, first: Stream, others: &[Stream]) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    with_event(driver, |event| {
        driver.record(event, first)?;
        others.iter().try_for_each(|other| driver.wait_event(*other, event))
    })
}

/// Runs `body`, which is no part of what this thread captures, nor any other.
pub(super) fn relaxed<T>(driver: &dyn Driver, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = driver.exchange_capture_mode(CaptureMode::RELAXED)?;
    let outcome = body();
    driver.exchange_capture_mode(before)?;
    outcome
}

/// An event may be given back before streams have passed it.
fn with_event(driver: &dyn Driver, body: impl FnOnce(Event) -> Result<()>) -> Result<()> {
    let event = driver.create_event()?;
    let outcome = body(event);
    driver.destroy_event(event)?;
    outcome
}

/// A rank alone whose calls change nothing: copies on its stream.
fn copy_alone(driver: &dyn Driver, stream: Stream, job: &Job<'_>) -> Result<()> {
    let copy = |to: usize, from: usize, bytes| {
        if to == from || bytes == 0 { Ok(()) } else { driver.copy(to, from, bytes, stream) }
    };
    for call in job.calls {
        copy(call.recv.address(), call.send.address(), call.count_bytes())?;
    }
    job.copies.iter().try_for_each(|one| copy(one.to.address(), one.from.address(), one.bytes))
}

fn begin_graph(driver: &dyn Driver, graph: usize, id: u64) -> Result<Arc<Captured>> {
    let mailbox = relaxed(driver, || Mailbox::take(driver))?;
    let captured = Arc::new(Captured {
        id,
        first: mailbox.last.wrapping_add(1).max(1),
        mailbox: Mutex::new(mailbox),
        contents: Mutex::new(Vec::new()),
        last: Mutex::new(None),
        ended: AtomicBool::new(false),
    });
    let graph_side = captured.clone();
    let ended = move || {
        graph_side.ended.store(true, Ordering::Release);
        stream::wake();
    };
    driver.keep_for_graph(graph, Box::new(ended))?;
    Ok(captured)
}
