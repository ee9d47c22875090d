//! Capture: what is submitted to a stream becomes nodes of a graph.
//!
//! A capture has a lane for each stream that takes part: the nodes that the stream's next node depends on. A stream joins by waiting for
//! an event that was recorded in the capture. Whatever can not be captured invalidates the capture, as on a device.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::event::Event;
use crate::graph::{self, Graph};
use crate::handles::lock;
use crate::stream::{Stream, Work};

/// Kinds of nodes, by the API's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Kernel = 0,
    Memcpy = 1,
    Memset = 2,
    Host = 3,
    Graph = 4,
    Empty = 5,
    WaitEvent = 6,
    EventRecord = 7,
    MemoryOperation = 12,
}

/// Which calls of which threads a capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global = 0,
    ThreadLocal = 1,
    Relaxed = 2,
}

impl Mode {
    pub(crate) fn new(number: i32) -> Outcome<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

pub(crate) struct Capture {
    pub(crate) id: u64,
    mode: Mode,
    thread: ThreadId,
    pub(crate) graph: Arc<Graph>,
    state: Mutex<State>,
}

struct State {
    is_valid: bool,
    /// The first one is where the capture began.
    lanes: Vec<Lane>,
}

struct Lane {
    stream: Arc<Stream>,
    /// Handles of nodes.
    after: Vec<u64>,
    /// What a caller was told; it may look at it until its next call.
    told: Vec<u64>,
    told_edges: Vec<u64>,
}

impl Lane {
    fn new(stream: &Arc<Stream>, after: Vec<u64>) -> Self {
        Self { stream: Arc::clone(stream), after, told: Vec::new(), told_edges: Vec::new() }
    }
}

/// Where an event was recorded in a capture.
#[derive(Clone)]
pub(crate) struct Mark {
    capture: Weak<Capture>,
    after: Vec<u64>,
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets which calls this thread believes to be harmless; returns what was set before.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    THREAD_MODE.replace(mode)
}

/// The capture that a stream takes part in; one that was invalidated is an error.
pub(crate) fn of(stream: &Stream) -> Outcome<Option<Arc<Capture>>> {
    let capture = lock(&stream.capture).clone();
    match &capture {
        Some(capture) if !lock(&capture.state).is_valid => Err(Code::CAPTURE_INVALIDATED),
        _ => Ok(capture),
    }
}

/// A call that is forbidden in a stream that captures.
pub(crate) fn forbid(stream: &Stream) -> Outcome {
    if of(stream)?.is_none() {
        return Ok(());
    }
    invalidate(stream);
    Err(Code::CAPTURE_UNSUPPORTED)
}

/// A call that may have side effects on captures which this thread, or another one, has begun.
pub(crate) fn forbid_unsafe() -> Outcome {
    let active = lock(&ACTIVE).clone();
    if active.is_empty() || THREAD_MODE.get() == Mode::Relaxed {
        return Ok(());
    }
    let me = std::thread::current().id();
    let hit = |capture: &&Arc<Capture>| match capture.mode {
        Mode::Relaxed => false,
        Mode::ThreadLocal => capture.thread == me,
        Mode::Global => capture.thread == me || THREAD_MODE.get() == Mode::Global,
    };
    let hits: Vec<_> = active.iter().filter(hit).collect();
    hits.iter().for_each(|capture| lock(&capture.state).is_valid = false);
    if hits.is_empty() { Ok(()) } else { Err(Code::CAPTURE_UNSUPPORTED) }
}

/// A wait for a whole context, which must not have a stream that captures.
pub(crate) fn forbid_in_context(context: &Context) -> Outcome {
    for stream in context.all_streams() {
        forbid(&stream).map_err(|_| Code::CAPTURE_UNSUPPORTED)?;
    }
    Ok(())
}

pub(crate) fn invalidate(stream: &Stream) {
    if let Some(capture) = lock(&stream.capture).as_ref() {
        lock(&capture.state).is_valid = false;
    }
}

/// A stream that takes part in a capture is destroyed.
pub(crate) fn abandon(stream: &Stream) {
    invalidate(stream);
}

/// Begins a capture, into a fresh graph or into one that the caller has.
pub(crate) fn begin(stream: &Arc<Stream>, mode: Mode, into: Option<(Arc<Graph>, Vec<u64>)>) -> Outcome {
    if stream.is_legacy() {
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    stream.context.check()?;
    let mut place = lock(&stream.capture);
    if place.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let (graph, after) = into.unwrap_or_else(|| (graph::create(), Vec::new()));
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        mode,
        thread: std::thread::current().id(),
        graph,
        state: Mutex::new(State { is_valid: true, lanes: vec![Lane::new(stream, after)] }),
    });
    *place = Some(Arc::clone(&capture));
    lock(&ACTIVE).push(capture);
    Ok(())
}

/// Ends a capture; an invalid one ends, too, but gives no graph.
pub(crate) fn end(stream: &Arc<Stream>) -> Outcome<Arc<Graph>> {
    let capture = lock(&stream.capture).clone().ok_or(Code::ILLEGAL_STATE)?;
    {
        let mut state = lock(&capture.state);
        let is_origin = state.lanes.first().is_some_and(|lane| Arc::ptr_eq(&lane.stream, stream));
        if !is_origin {
            state.is_valid = false;
            return Err(Code::CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            state.is_valid = false;
            return Err(Code::CAPTURE_WRONG_THREAD);
        }
    }
    lock(&ACTIVE).retain(|other| !Arc::ptr_eq(other, &capture));
    let (is_valid, lanes) = {
        let mut state = lock(&capture.state);
        (state.is_valid, std::mem::take(&mut state.lanes))
    };
    for lane in &lanes {
        *lock(&lane.stream.capture) = None;
    }
    let outcome = if !is_valid {
        Err(Code::CAPTURE_INVALIDATED)
    } else if is_joined(&capture.graph, &lanes) {
        Ok(Arc::clone(&capture.graph))
    } else {
        Err(Code::CAPTURE_UNJOINED)
    };
    if outcome.is_err() {
        let _ = graph::destroy(capture.graph.handle);
    }
    outcome
}

/// Do all lanes lead to the first one?
fn is_joined(graph: &Graph, lanes: &[Lane]) -> bool {
    let Some(origin) = lanes.first() else { return false };
    let reached = graph.ancestors(&origin.after);
    lanes.iter().flat_map(|lane| &lane.after).all(|node| reached.contains(node))
}

/// What is told about a capture.
pub(crate) struct Info {
    /// 0 none, 1 active, 2 invalidated.
    pub(crate) status: i32,
    pub(crate) id: u64,
    pub(crate) graph: u64,
    /// Address and number of node handles.
    pub(crate) after: (u64, usize),
    /// Address of as many edges' data (8 bytes each, all zero).
    pub(crate) edges: u64,
}

pub(crate) fn info(stream: &Arc<Stream>) -> Info {
    let none = Info { status: 0, id: 0, graph: 0, after: (0, 0), edges: 0 };
    let Some(capture) = lock(&stream.capture).clone() else { return none };
    let mut state = lock(&capture.state);
    let (id, graph) = (capture.id, capture.graph.handle);
    if !state.is_valid {
        return Info { status: 2, id, ..none };
    }
    let lane = state.lanes.iter_mut().find(|lane| Arc::ptr_eq(&lane.stream, stream));
    let Some(lane) = lane else { return none };
    lane.told = lane.after.clone();
    lane.told_edges = vec![0; lane.after.len()];
    let after = (lane.told.as_ptr() as u64, lane.told.len());
    Info { status: 1, id, graph, after, edges: lane.told_edges.as_ptr() as u64 }
}

/// Adds to (or replaces) what a stream's next node depends on.
pub(crate) fn update(stream: &Arc<Stream>, nodes: Vec<u64>, replace: bool) -> Outcome {
    let capture = of(stream)?.ok_or(Code::ILLEGAL_STATE)?;
    nodes.iter().try_for_each(|&node| capture.graph.has(node))?;
    capture.with_lane(stream, |lane| {
        if replace {
            lane.after.clear();
        }
        merge(&mut lane.after, &nodes);
    })
}

fn merge(after: &mut Vec<u64>, more: &[u64]) {
    for &node in more {
        if !after.contains(&node) {
            after.push(node);
        }
    }
}

impl Capture {
    fn with_lane<T>(&self, stream: &Arc<Stream>, change: impl FnOnce(&mut Lane) -> T) -> Outcome<T> {
        let mut state = lock(&self.state);
        let lane = state.lanes.iter_mut().find(|lane| Arc::ptr_eq(&lane.stream, stream));
        lane.map(change).ok_or(Code::UNKNOWN)
    }

    /// A node behind what the stream has captured so far.
    pub(crate) fn add(&self, stream: &Arc<Stream>, kind: NodeKind, work: Work) -> Outcome<u64> {
        self.with_lane(stream, |lane| {
            let node = self.graph.add(kind, work, lane.after.clone(), &stream.context);
            lane.after = vec![node];
            node
        })
    }
}

/// Records an event in a stream that captures.
pub(crate) fn mark(stream: &Arc<Stream>, capture: &Arc<Capture>) -> Outcome<Mark> {
    let after = capture.with_lane(stream, |lane| lane.after.clone())?;
    Ok(Mark { capture: Arc::downgrade(capture), after })
}

impl Mark {
    /// The capture, if it still goes on.
    pub(crate) fn live(&self) -> Option<Arc<Capture>> {
        let capture = self.capture.upgrade()?;
        let goes_on = !lock(&capture.state).lanes.is_empty();
        goes_on.then_some(capture)
    }
}

/// A stream waits for an event: true if that was a matter of captures, and is done.
pub(crate) fn wait(stream: &Arc<Stream>, event: &Event) -> Outcome<bool> {
    let mine = of(stream)?;
    let mark = event.mark();
    let theirs = mark.as_ref().and_then(Mark::live);
    match (mine, theirs, mark) {
        (None, Some(theirs), Some(mark)) => {
            if stream.is_legacy() {
                lock(&theirs.state).is_valid = false;
                return Err(Code::CAPTURE_IMPLICIT);
            }
            let mut state = lock(&theirs.state);
            if !state.is_valid {
                return Err(Code::CAPTURE_INVALIDATED);
            }
            state.lanes.push(Lane::new(stream, mark.after));
            drop(state);
            *lock(&stream.capture) = Some(theirs);
            Ok(true)
        }
        (Some(mine), Some(theirs), Some(mark)) if Arc::ptr_eq(&mine, &theirs) => {
            mine.with_lane(stream, |lane| merge(&mut lane.after, &mark.after))?;
            Ok(true)
        }
        (Some(mine), Some(theirs), _) => {
            lock(&mine.state).is_valid = false;
            lock(&theirs.state).is_valid = false;
            Err(Code::CAPTURE_MERGE)
        }
        (Some(mine), ..) if event.is_recorded() => {
            lock(&mine.state).is_valid = false;
            Err(Code::CAPTURE_ISOLATION)
        }
        (mine, ..) => Ok(mine.is_some()),
    }
}
