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
use super::dock_memory::Store;
use super::drive::Job;
use super::seat::Seat;
use super::stream::{self, Part};
use crate::device::{Mailbox, number_after};
use crate::driver::{self, Capture, CaptureMode, Context, Driver, Event, Stream, Until};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::prim::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

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
        driver::within(self.driver, self.context, || body(self.driver))
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
    /// The driver has refused it: no stream will come.
    pub(super) cancelled: bool,
}

/// The launches of one graph.
#[derive(Debug)]
pub(super) struct Captured {
    /// The capture's number.
    id: u64,
    pub(super) mailbox: Mailbox,
    contents: Mutex<Vec<Content>>,
    /// The stream of the last launch.
    last: Mutex<Option<Stream>>,
    /// A mark behind that launch.
    event: Event,
    /// The graph is gone, and all that was made of it.
    pub(super) ended: AtomicBool,
}

impl Captured {
    /// The launch of a number.
    pub(super) fn content(&self, number: u32) -> Option<Content> {
        let first = number_after(self.mailbox.before());
        self.contents.lock().get(number.wrapping_sub(first) as usize).cloned()
    }

    /// Gives everything back: nobody comes any more.
    pub(super) fn give_back(&self, accelerator: &Accelerator) {
        self.mailbox.give_back(self.mailbox.before().wrapping_add(self.contents.lock().len() as u32));
        // What fails here concerns nobody.
        let _ = accelerator.within(|driver| driver.destroy_event(self.event));
    }
}

/// What has been launched. Never locked while the driver is called: its queues may be full until the engine has done something.
#[derive(Debug, Default)]
pub(super) struct Launched {
    /// Launches in the order in which their streams come to them.
    pub(super) expected: VecDeque<Expected>,
    pub(super) graphs: Vec<Arc<Captured>>,
    /// True while the engine's thread looks at this dock.
    pub(super) served: bool,
    /// Streams may come to launches that nobody expects any more.
    pub(super) abandoned: bool,
}

/// The order of launches outside of graphs, for those who launch.
#[derive(Debug)]
struct Order {
    /// The number of the last one.
    last: u32,
    /// Its stream.
    stream: Option<Stream>,
}

/// The dock.
#[derive(Debug)]
pub(crate) struct Dock {
    pub(super) accelerator: Accelerator,
    pub(super) mailbox: Mailbox,
    order: Mutex<Order>,
    pub(super) launched: Mutex<Launched>,
    /// What launches go through.
    pub(super) memory: Store,
    /// Nobody will end this rank's launches any more: streams go on whatever has become of them.
    pub(super) released: AtomicBool,
    /// They have been let go.
    let_go: AtomicBool,
}

impl Dock {
    /// A dock for streams of `accelerator`.
    pub(crate) fn new(accelerator: Accelerator) -> Result<Self> {
        stream::start()?;
        let mailbox = accelerator.within(|driver| relaxed(driver, || Mailbox::take(driver)))?;
        Ok(Self {
            accelerator,
            order: Mutex::new(Order { last: mailbox.before(), stream: None }),
            mailbox,
            launched: Mutex::default(),
            memory: Store::new(),
            released: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
        })
    }

    /// Lets all streams go on that wait for launches outside of graphs, or will; true if there may be such. The line is not used
    /// again then: numbers that are far ahead count as reached.
    pub(super) fn let_all_go(&self, abandoned: bool) -> bool {
        const FAR: u32 = 1 << 30;
        // Somebody may be launching, and wait for room in the driver's queue.
        let Some(order) = self.order.try_lock().filter(|_| !abandoned) else {
            let done = self.mailbox.done();
            if !self.let_go.swap(true, Ordering::AcqRel) {
                done.store(done.load(Ordering::Relaxed).wrapping_add(FAR), Ordering::Release);
            }
            return true;
        };
        drop(order);
        false
    }

    /// Lets all streams go on.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Release);
        stream::wake();
    }

    fn launch(&self, seat: &Arc<Seat>, streams: &[Stream], content: Content) -> Result<()> {
        let mut capture = Capture::None;
        let launched = self.accelerator.within(|driver| {
            let [first, others @ ..] = streams else { return Err(Error::internal("a launch without a stream")) };
            let own = self.accelerator.context;
            streams.iter().try_for_each(|stream| check_device(driver, own, *stream))?;
            capture = common_capture(driver, streams)?;
            let alone = seat.is_plain_alone(&content.job());
            let memory = self.memory.get()?;
            if !alone && memory.lacks_host_staging(&content.job()) {
                memory.stage(&self.accelerator)?;
            }
            drop(memory);
            gather(driver, *first, others)?;
            match capture {
                _ if alone => copy_alone(driver, *first, &content.job())?,
                Capture::None => self.launch_now(driver, seat, *first, content)?,
                Capture::Active { id, graph } => self.capture(driver, seat, *first, content, (id, graph))?,
                Capture::Invalidated => {
                    return Err(Error::usage(
                        "the stream's capture has been invalidated by an earlier call; end it, and find that call",
                    ));
                }
            }
            spread(driver, *first, others)
        });
        match launched {
            // Peers wait for what the driver has refused; for what would have been captured nobody does.
            Err(error) if error.kind() == ErrorKind::Device && capture == Capture::None => {
                Err(seat.fail(error))
            }
            launched => launched,
        }
    }

    fn launch_now(
        &self,
        driver: &dyn Driver,
        seat: &Arc<Seat>,
        stream: Stream,
        content: Content,
    ) -> Result<()> {
        let mut order = self.order.lock();
        let (arrival, done) = (self.mailbox.arrival_word(), self.mailbox.done_word());
        let follows = order.stream.is_some_and(|last| last != stream);
        if follows && !self.launched.lock().expected.is_empty() {
            driver.wait_word(stream, done, Until::Reached(order.last))?;
        }
        let number = number_after(order.last);
        // The engine knows of it before the stream can come to it.
        self.expect(seat, Expected { number, content, cancelled: false })?;
        if let Err(error) = driver.write_word(stream, arrival, number) {
            self.cancel(number);
            return Err(error);
        }
        *order = Order { last: number, stream: Some(stream) };
        // If this fails, the stream does not wait for what it has asked for.
        driver.wait_word(stream, done, Until::Reached(number)).map_err(|error| seat.fail(error))
    }

    fn expect(&self, seat: &Arc<Seat>, expected: Expected) -> Result<()> {
        let mut launched = self.launched.lock();
        let turn = seat.launches.queue();
        seat.recorder.launched(turn + 1);
        launched.expected.push_back(expected);
        self.serve(seat, launched)
    }

    fn cancel(&self, number: u32) {
        let mut launched = self.launched.lock();
        let refused = launched.expected.iter_mut().find(|expected| expected.number == number);
        if let Some(expected) = refused {
            expected.cancelled = true;
        }
        drop(launched);
        stream::wake();
    }

    fn capture(
        &self,
        driver: &dyn Driver,
        seat: &Arc<Seat>,
        stream: Stream,
        content: Content,
        (id, graph): (u64, usize),
    ) -> Result<()> {
        let _order = self.order.lock();
        let known = self.launched.lock().graphs.iter().find(|captured| captured.id == id).cloned();
        let captured = match known {
            Some(captured) => captured,
            None => {
                let captured = begin_graph(driver, graph, id)?;
                let mut launched = self.launched.lock();
                launched.graphs.push(captured.clone());
                self.serve(seat, launched)?;
                captured
            }
        };
        if captured.last.lock().is_some_and(|before| before != stream) {
            driver.wait_event(stream, captured.event)?;
        }
        let mut contents = captured.contents.lock();
        contents.push(content);
        let number = captured.mailbox.before().wrapping_add(contents.len() as u32);
        drop(contents);
        let (arrival, done) = (captured.mailbox.arrival_word(), captured.mailbox.done_word());
        driver.write_word(stream, done, 0)?;
        driver.write_word(stream, arrival, number)?;
        // A replay comes when nobody expects it.
        driver.call_host(stream, stream::wake)?;
        driver.wait_word(stream, done, Until::Equal(number))?;
        driver.record(captured.event, stream)?;
        *captured.last.lock() = Some(stream);
        Ok(())
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
        let last = self.order.get_mut().last;
        let launched = self.launched.get_mut();
        // A stream that has not come to its last launch may come to this line later.
        if launched.expected.is_empty() && !launched.abandoned {
            self.mailbox.give_back(last);
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

/// An error (InvalidArgument) for a stream of another device than that of `own`. Asked each time: a stream that is made after another one
/// was freed may have its address, and be of another device.
fn check_device(driver: &dyn Driver, own: Context, stream: Stream) -> Result<()> {
    // A driver may know streams whose context it does not tell; what is no stream is refused by what follows.
    let ordinal = driver.device_of(stream, own).unwrap_or(own.ordinal);
    if ordinal == own.ordinal {
        return Ok(());
    }
    Err(Error::argument(format!(
        "the stream is of device {ordinal}; need one of the communicator's device {}",
        own.ordinal
    )))
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
    let make = || {
        let mailbox = Mailbox::take(driver)?;
        let event = driver.create_event().inspect_err(|_| mailbox.give_back(mailbox.before()))?;
        Ok((mailbox, event))
    };
    let (mailbox, event) = relaxed(driver, make)?;
    let captured = Arc::new(Captured {
        id,
        mailbox,
        contents: Mutex::new(Vec::new()),
        last: Mutex::new(None),
        event,
        ended: AtomicBool::new(false),
    });
    let graph_side = captured.clone();
    let ended = move || {
        graph_side.ended.store(true, Ordering::Release);
        stream::wake();
    };
    driver.keep_for_graph(graph, Box::new(ended)).inspect_err(|_| {
        captured.mailbox.give_back(captured.mailbox.before());
        // What fails on the way out concerns nobody.
        let _ = driver.destroy_event(captured.event);
    })?;
    Ok(captured)
}
