//! Events. A wait means the record that is the latest when the wait is called.
//!
//! An event that other processes may open has two counters in shared memory, of records made and of records done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::capture::{self, Mark, NodeKind};
use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::handles::{Handles, lock};
use crate::memory::{self, Backing};
use crate::stream::{Point, Stream};
use crate::{raw, time};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

pub(crate) struct Event {
    pub(crate) handle: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    state: Mutex<State>,
    /// The two counters of an event that processes share.
    pub(crate) shared: Option<Shared>,
}

/// Counters in shared memory: records made, and 8 bytes behind that records done.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) address: u64,
    pub(crate) backing: Arc<Backing>,
}

#[derive(Clone, Default)]
enum State {
    #[default]
    Never,
    Recorded(Record),
    Captured(Mark),
}

#[derive(Clone)]
struct Record {
    point: Point,
    /// Nanoseconds of the clock; zero until it is done.
    at_ns: Arc<AtomicU64>,
}

static EVENTS: Handles<Event> = Handles::new();

pub(crate) fn count() -> usize {
    EVENTS.all().len()
}

pub(crate) fn create(context: &Arc<Context>, flags: u32, shared: Option<Shared>) -> Outcome<Arc<Event>> {
    let is_lone_interprocess = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
    if flags > 7 || is_lone_interprocess {
        return Err(Code::INVALID_VALUE);
    }
    let shared = if flags & INTERPROCESS != 0 && shared.is_none() { Some(Shared::new()?) } else { shared };
    let context = Arc::clone(context);
    Ok(EVENTS.add(|handle| Event { handle, context, flags, state: Mutex::default(), shared }))
}

pub(crate) fn find(handle: u64) -> Outcome<Arc<Event>> {
    EVENTS.get(handle)
}

/// Waits of streams for it stay valid.
pub(crate) fn destroy(handle: u64) -> Outcome {
    EVENTS.remove(handle).map(drop)
}

impl Shared {
    fn new() -> Outcome<Self> {
        Self::map(Backing::new(memory::PAGE, 0, None)?)
    }

    pub(crate) fn map(backing: Arc<Backing>) -> Outcome<Self> {
        let address = memory::addresses(memory::PAGE, memory::PAGE);
        memory::map(address, memory::PAGE, Some(&backing.file), false)?;
        Ok(Self { address, backing })
    }
}

impl Event {
    pub(crate) fn mark(&self) -> Option<Mark> {
        match &*lock(&self.state) {
            State::Captured(mark) => Some(mark.clone()),
            _ => None,
        }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        matches!(*lock(&self.state), State::Recorded(_)) || self.target() > 0
    }

    /// How many records of a shared event there are.
    fn target(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| raw::load(shared.address, 8))
    }

    fn reached(&self, target: u64) -> bool {
        self.shared.as_ref().is_none_or(|shared| raw::load(shared.address + 8, 8) >= target)
    }

    /// Records the event behind what the stream has been given.
    pub(crate) fn record(self: &Arc<Self>, stream: &Arc<Stream>, is_external: bool) -> Outcome {
        if !Arc::ptr_eq(&stream.context, &self.context) {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(capture) = capture::of(stream)? {
            if is_external {
                let event = Arc::clone(self);
                let stream_of_event = Arc::clone(stream);
                let work = move || event.record_now(&stream_of_event);
                return capture.add(stream, NodeKind::EventRecord, Arc::new(work)).map(drop);
            }
            *lock(&self.state) = State::Captured(capture::mark(stream, &capture)?);
            return Ok(());
        }
        let at_ns = Arc::new(AtomicU64::new(0));
        let target = self
            .shared
            .as_ref()
            .map(|shared| (shared.address, raw::update(shared.address, 8, |count| count + 1) + 1));
        let done_at = Arc::clone(&at_ns);
        let work = move || {
            done_at.store(time::now_ns().max(1), Ordering::Release);
            if let Some((address, target)) = target {
                raw::update(address + 8, 8, |done| done.max(target));
            }
            Ok(())
        };
        let point = stream.queue_note(Vec::new(), Arc::new(work))?;
        *lock(&self.state) = State::Recorded(Record { point, at_ns });
        Ok(())
    }

    /// A record that a graph makes: done as soon as it is made.
    fn record_now(&self, stream: &Arc<Stream>) -> Outcome {
        let point = Point { stream: Arc::clone(stream), number: 0 };
        let at_ns = Arc::new(AtomicU64::new(time::now_ns().max(1)));
        *lock(&self.state) = State::Recorded(Record { point, at_ns });
        Ok(())
    }

    fn latest(&self) -> Outcome<Option<Record>> {
        match &*lock(&self.state) {
            State::Never => Ok(None),
            State::Recorded(record) => Ok(Some(record.clone())),
            State::Captured(_) => Err(Code::CAPTURED_EVENT),
        }
    }

    /// Asking for an event may disturb a capture, and an event of a capture can not be asked for at all.
    pub(crate) fn forbid_unsafe(&self) -> Outcome {
        self.latest()?;
        capture::forbid_unsafe()
    }

    pub(crate) fn query(&self) -> Outcome {
        self.context.check()?;
        let record = self.latest()?;
        let is_done = record.is_none_or(|record| record.point.is_done()) && self.reached(self.target());
        if is_done { Ok(()) } else { Err(Code::NOT_READY) }
    }

    pub(crate) fn synchronize(&self) -> Outcome {
        let target = self.target();
        let latest = self.latest()?;
        if let Some(record) = latest {
            record.point.wait();
        }
        while !self.reached(target) {
            time::pause_us(50);
        }
        self.context.check()
    }

    /// Lets a stream wait for the latest record.
    pub(crate) fn wait_in(self: &Arc<Self>, stream: &Arc<Stream>, is_external: bool) -> Outcome {
        if is_external && let Some(capture) = capture::of(stream)? {
            let event = Arc::clone(self);
            let work = move || event.synchronize();
            return capture.add(stream, NodeKind::WaitEvent, Arc::new(work)).map(drop);
        }
        if capture::wait(stream, self)? {
            return Ok(());
        }
        let record = match &*lock(&self.state) {
            State::Recorded(record) => Some(record.clone()),
            // A capture that has ended: nothing is left to wait for.
            State::Never | State::Captured(_) => None,
        };
        let target = self.target();
        if record.is_none() && target == 0 {
            return Ok(());
        }
        let event = Arc::clone(self);
        let work = move || {
            while !event.reached(target) {
                time::pause_us(20);
            }
            Ok(())
        };
        stream.queue_note(record.into_iter().map(|record| record.point).collect(), Arc::new(work)).map(drop)
    }

    /// Milliseconds from this event to a later one.
    pub(crate) fn elapsed_ms(&self, later: &Self) -> Outcome<f32> {
        if self.flags & DISABLE_TIMING != 0 || later.flags & DISABLE_TIMING != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (self.latest()?, later.latest()?) else {
            return Err(Code::INVALID_HANDLE);
        };
        let (start, end) = (start.at_ns.load(Ordering::Acquire), end.at_ns.load(Ordering::Acquire));
        if start == 0 || end == 0 {
            return Err(Code::NOT_READY);
        }
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }
}
