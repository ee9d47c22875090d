//! Streams: a queue of work each, and a thread that starts with the first work.
//!
//! Work waits for work of other streams by (stream, number): numbers are given when work is queued, so that a wait always looks back,
//! and nothing can wait in a circle. The legacy stream of a context and its blocking streams wait for each other by the same means.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};

use crate::capture::{self, Capture, NodeKind};
use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::handles::{Handles, Own, lock};
use crate::{config, time};

/// What a stream does; graphs do it more than once.
pub(crate) type Work = Arc<dyn Fn() -> Outcome + Send + Sync>;

/// Work of a stream, by its number there.
#[derive(Clone)]
pub(crate) struct Point {
    pub(crate) stream: Arc<Stream>,
    pub(crate) number: u64,
}

impl Point {
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.stream.queue).done >= self.number
    }

    pub(crate) fn wait(&self) {
        let mut queue = lock(&self.stream.queue);
        let mut is_told = false;
        while queue.done < self.number {
            let waited = self.stream.changed.wait_timeout(queue, LONG);
            let (left, time) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
            queue = left;
            if time.timed_out() && !is_told && queue.done < self.number {
                is_told = true;
                self.tell(&queue);
            }
        }
    }
}

impl Point {
    /// Says what a long wait is for; whoever looks for a deadlock wants to know.
    fn tell(&self, queue: &Queue) {
        let Stream { handle, context, .. } = &*self.stream;
        let (seconds, number, done) = (LONG.as_secs(), self.number, queue.done);
        let now = queue.now.map_or_else(|| "other streams".to_owned(), |kind| format!("{kind:?}"));
        let device = context.device;
        eprintln!(
            "accl-sim: {} waits for {seconds} s for number {number} of stream {handle:#x} of device {device}, where {done} are done, and the next one is or waits for: {now}",
            std::thread::current().name().unwrap_or("a thread"),
        );
    }
}

/// A wait that lasts longer is worth a line.
const LONG: std::time::Duration = std::time::Duration::from_secs(20);

pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: Arc<Context>,
    /// Does it go its way beside the legacy stream?
    pub(crate) nonblocking: bool,
    pub(crate) priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The capture that this stream takes part in.
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    queued: u64,
    done: u64,
    /// What runs.
    now: Option<NodeKind>,
    has_thread: bool,
    is_closed: bool,
}

struct Item {
    kind: NodeKind,
    after: Vec<Point>,
    work: Work,
    /// Host functions and kernels do not run once a context has failed; what only counts does.
    counts_only: bool,
}

static STREAMS: Handles<Stream> = Handles::new();

pub(crate) fn count() -> usize {
    STREAMS.all().len()
}

pub(crate) const LEGACY: u64 = 1;
pub(crate) const PER_THREAD: u64 = 2;

thread_local! {
    static OWN: Own<Arc<Stream>> = const { Own::new() };
}

pub(crate) fn create(context: &Arc<Context>, nonblocking: bool, priority: i32) -> Arc<Stream> {
    let stream = STREAMS.add(|handle| Stream::new(handle, context, nonblocking, priority));
    lock(&context.streams).push(Arc::downgrade(&stream));
    stream
}

/// A stream that programs can not name.
pub(crate) fn hidden(context: &Arc<Context>) -> Arc<Stream> {
    Arc::new(Stream::new(0, context, true, 0))
}

/// The stream of a handle, seen from a context.
pub(crate) fn find(handle: u64, context: &Arc<Context>) -> Outcome<Arc<Stream>> {
    match handle {
        0 | LEGACY => Ok(context.legacy()),
        PER_THREAD => Ok(own(context)),
        _ => STREAMS.get(handle),
    }
}

fn own(context: &Arc<Context>) -> Arc<Stream> {
    OWN.with(|own| {
        own.change(|own| {
            if let Some(stream) = own.iter().find(|stream| Arc::ptr_eq(&stream.context, context)) {
                return Arc::clone(stream);
            }
            let stream = Arc::new(Stream::new(PER_THREAD, context, false, 0));
            lock(&context.streams).push(Arc::downgrade(&stream));
            own.push(Arc::clone(&stream));
            stream
        })
    })
}

/// Destroys a stream; what is queued still runs.
pub(crate) fn destroy(handle: u64) -> Outcome {
    let stream = STREAMS.remove(handle)?;
    capture::abandon(&stream);
    stream.close();
    let this = Arc::downgrade(&stream);
    // Work of the legacy stream still waits for what is queued: only an idle stream is forgotten now.
    if stream.tail().is_done() {
        lock(&stream.context.streams).retain(|other| !Weak::ptr_eq(other, &this));
    }
    Ok(())
}

/// Forgets all streams of a context.
pub(crate) fn destroy_all(context: &Arc<Context>) {
    for stream in STREAMS.all().into_iter().filter(|stream| Arc::ptr_eq(&stream.context, context)) {
        let _ = destroy(stream.handle);
    }
}

impl Stream {
    pub(crate) fn new(handle: u64, context: &Arc<Context>, nonblocking: bool, priority: i32) -> Self {
        Self {
            handle,
            context: Arc::clone(context),
            nonblocking,
            priority,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::default(),
        }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.handle == LEGACY
    }

    /// The thread ends when all that is queued is done.
    pub(crate) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_all();
    }

    /// The last work that was queued.
    pub(crate) fn tail(self: &Arc<Self>) -> Point {
        Point { stream: Arc::clone(self), number: lock(&self.queue).queued }
    }

    /// Queues work, or captures it.
    pub(crate) fn submit(self: &Arc<Self>, kind: NodeKind, work: Work) -> Outcome<Point> {
        if let Some(capture) = capture::of(self)? {
            capture.add(self, kind, work)?;
            return Ok(Point { stream: Arc::clone(self), number: 0 });
        }
        self.put(Vec::new(), work, kind, false)
    }

    /// Queues work that waits for other work, too; never captured.
    pub(crate) fn queue_after(self: &Arc<Self>, after: Vec<Point>, work: Work) -> Outcome<Point> {
        self.put(after, work, NodeKind::Empty, false)
    }

    /// Queues a wait, or a note that must be made even after a failure.
    pub(crate) fn queue_note(self: &Arc<Self>, after: Vec<Point>, work: Work) -> Outcome<Point> {
        self.put(after, work, NodeKind::WaitEvent, true)
    }

    fn put(
        self: &Arc<Self>,
        mut after: Vec<Point>,
        work: Work,
        kind: NodeKind,
        counts_only: bool,
    ) -> Outcome<Point> {
        self.wait_for_room();
        let _order = lock(&self.context.order);
        if self.is_legacy() {
            for other in self.context.blocking_streams() {
                if lock(&other.capture).is_some() {
                    capture::invalidate(&other);
                    return Err(Code::CAPTURE_IMPLICIT);
                }
                after.push(other.tail());
            }
        } else if !self.nonblocking {
            after.extend(self.context.legacy_if_used().map(|legacy| legacy.tail()));
        }
        after.retain(|point| !Arc::ptr_eq(&point.stream, self) && !point.is_done());
        let mut queue = lock(&self.queue);
        queue.items.push_back(Item { kind, after, work, counts_only });
        queue.queued += 1;
        let number = queue.queued;
        if !queue.has_thread {
            let stream = Arc::clone(self);
            let name = format!("sim-stream-{:x}", self.handle & 0xFFFF);
            std::thread::Builder::new()
                .name(name)
                .spawn(move || stream.run())
                .map_err(|_| Code::OUT_OF_MEMORY)?;
            queue.has_thread = true;
        }
        drop(queue);
        self.changed.notify_all();
        Ok(Point { stream: Arc::clone(self), number })
    }

    /// Waits while the queue is full, as drivers do. Nothing is locked meanwhile: other streams of the context can be used. Streams of
    /// graphs are a device's own, and have room.
    fn wait_for_room(&self) {
        let most = config::get().queue;
        if most == 0 || self.handle == 0 {
            return;
        }
        let mut queue = lock(&self.queue);
        while queue.items.len() >= most {
            queue = self.changed.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// The stream's thread.
    fn run(self: &Arc<Self>) {
        let mut random = config::get().random_delay.map(|seed| seed ^ self.handle);
        while let Some(item) = self.next() {
            for point in &item.after {
                point.wait();
            }
            lock(&self.queue).now = Some(item.kind);
            if let Some(state) = &mut random {
                time::pause_us(time::scramble(state) % 500);
            }
            if (item.counts_only || self.context.failure().is_none())
                && let Err(code) = (item.work)()
            {
                self.context.fail(code);
            }
            drop(item);
            let mut queue = lock(&self.queue);
            queue.done += 1;
            queue.now = None;
            drop(queue);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Item> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(item) = queue.items.pop_front() {
                // What it does may last: whoever waits for room has some now.
                self.changed.notify_all();
                return Some(item);
            }
            if queue.is_closed {
                queue.has_thread = false;
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Is all work done? For the legacy stream that means all blocking streams, too.
    pub(crate) fn query(self: &Arc<Self>) -> Outcome {
        self.context.check()?;
        if self.pending().iter().all(Point::is_done) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Waits until all work is done.
    pub(crate) fn synchronize(self: &Arc<Self>) -> Outcome {
        self.pending().iter().for_each(Point::wait);
        self.context.check()
    }

    fn pending(self: &Arc<Self>) -> Vec<Point> {
        let mut points = vec![self.tail()];
        if self.is_legacy() {
            points.extend(self.context.blocking_streams().iter().map(Self::tail));
        }
        points
    }
}
