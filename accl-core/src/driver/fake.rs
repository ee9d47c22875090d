//! A driver for tests of this crate: memory of the host, streams that go on whenever the driver is called, counts of what is alive,
//! and calls that fail when they are told to.
//!
//! It knows no kernels and no graphs: what loads or captures is told so.
//!
//! # Safety
//! Copies and words are looked up among the allocations of the same fake, or lie in memory that it has been told of.
#![allow(unsafe_code)]

use super::{
    Capture, CaptureMode, Context, Driver, Event, Exported, Function, Grid, Module, Pinned, Place, Stream,
    Until, refused,
};
use crate::error::{Error, Result};
use crate::sync::prim::{AtomicU32, AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CStr;

/// The code of calls that were told to fail.
pub(crate) const INJECTED: i32 = 999;

/// What is alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Live {
    pub(crate) allocations: usize,
    pub(crate) streams: usize,
    pub(crate) events: usize,
}

/// What a stream does.
#[derive(Debug)]
enum Item {
    Copy { to: usize, from: usize, bytes: usize },
    Write { word: usize, value: u32 },
    Wait { word: usize, until: Until },
    After { stream: usize, number: u64 },
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    queued: u64,
    done: u64,
}

#[derive(Debug, Default)]
struct State {
    next: usize,
    calls: BTreeMap<&'static str, u64>,
    allocations: BTreeMap<usize, Vec<u64>>,
    streams: BTreeMap<usize, Queue>,
    /// Streams that are of another device.
    foreign: BTreeSet<usize>,
    /// What each event was recorded behind.
    events: BTreeMap<usize, Option<(usize, u64)>>,
    pushed: i64,
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Fake {
    context: Context,
    /// A function, and which call of it fails.
    failure: Option<(&'static str, u64)>,
    state: Mutex<State>,
}

impl Fake {
    /// One with a context that no other fake has; a call may be told to fail, counted from 1. It lives as long as the process, as
    /// drivers do.
    pub(crate) fn new(failure: Option<(&'static str, u64)>) -> &'static Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let context = Context { handle, ordinal: 0 };
        let state = Mutex::new(State { next: 1000, ..State::default() });
        Box::leak(Box::new(Self { context, failure, state }))
    }

    /// Its one context.
    pub(crate) fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn live(&self) -> Live {
        let state = self.state.lock();
        let (allocations, streams, events) =
            (state.allocations.len(), state.streams.len(), state.events.len());
        Live { allocations, streams, events }
    }

    /// From now on the stream is one of the next device, or one of its own again: as if it had been freed, and another one made at its address.
    pub(crate) fn make_anew(&self, stream: Stream, is_foreign: bool) {
        let foreign = &mut self.state.lock().foreign;
        if is_foreign {
            foreign.insert(stream.0)
        } else {
            foreign.remove(&stream.0)
        };
    }

    /// How many contexts are pushed that have not been popped, on all threads.
    pub(crate) fn pushed(&self) -> i64 {
        self.state.lock().pushed
    }

    /// How often each function was called.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().calls.clone()
    }

    /// True if all streams are through with what they were given.
    pub(crate) fn is_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.go_on();
        state.streams.values().all(|queue| queue.items.is_empty())
    }

    /// Puts words at the beginning of an allocation.
    pub(crate) fn put(&self, address: usize, words: &[u64]) {
        self.state.lock().allocations.get_mut(&address).unwrap()[..words.len()].copy_from_slice(words);
    }

    /// The words of an allocation.
    pub(crate) fn words(&self, address: usize) -> Vec<u64> {
        self.state.lock().allocations[&address].clone()
    }

    /// Counts a call, and refuses it if that is its turn.
    fn enter(&self, function: &'static str) -> Result<parking_lot::MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        let count = state.calls.entry(function).or_default();
        *count += 1;
        if self.failure == Some((function, *count)) {
            return Err(refused(function, INJECTED, "INJECTED", "told to fail"));
        }
        state.go_on();
        Ok(state)
    }

    fn queue(&self, function: &'static str, stream: Stream, item: Item) -> Result<()> {
        let mut state = self.enter(function)?;
        let queue = state.streams.get_mut(&stream.0).ok_or_else(|| unknown(function))?;
        queue.items.push_back(item);
        queue.queued += 1;
        state.go_on();
        Ok(())
    }
}

fn unknown(function: &'static str) -> Error {
    refused(function, 400, "INVALID_HANDLE", "no such thing is alive")
}

fn not_there(function: &'static str) -> Error {
    refused(function, 801, "NOT_SUPPORTED", "the fake has none")
}

impl State {
    fn handle(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Lets all streams do what they can.
    fn go_on(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for handle in self.streams.keys().copied().collect::<Vec<_>>() {
                while self.can_go_on(handle) {
                    moved = true;
                    let queue = self.streams.get_mut(&handle).unwrap();
                    queue.done += 1;
                    if let Some(item) = queue.items.pop_front() {
                        run(&item);
                    }
                }
            }
        }
    }

    fn can_go_on(&self, handle: usize) -> bool {
        match self.streams[&handle].items.front() {
            None => false,
            Some(Item::Copy { .. } | Item::Write { .. }) => true,
            Some(Item::Wait { word, until }) => {
                let now = word_at(*word).load(Ordering::Acquire);
                match until {
                    Until::Equal(value) => now == *value,
                    Until::Reached(value) => now.wrapping_sub(*value).cast_signed() >= 0,
                }
            }
            Some(Item::After { stream, number }) => self.is_past(*stream, *number),
        }
    }

    fn is_past(&self, stream: usize, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|queue| queue.done >= number)
    }
}

fn run(item: &Item) {
    match *item {
        Item::Copy { to, from, bytes } => {
            let (to, from) = (std::ptr::with_exposed_provenance_mut::<u8>(to), from);
            // SAFETY: both are live memory of the test, or staging memory, which stays; see the head of this file.
            unsafe { std::ptr::copy(std::ptr::with_exposed_provenance::<u8>(from), to, bytes) };
        }
        Item::Write { word, value } => word_at(word).store(value, Ordering::Release),
        Item::Wait { .. } | Item::After { .. } => {}
    }
}

fn word_at(address: usize) -> &'static AtomicU32 {
    // SAFETY: words lie in pages of `allocate_pinned`, which are never given back, and are aligned.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(address) }
}

fn zeroed(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8).max(1)]
}

impl Driver for Fake {
    fn current(&self) -> Result<Option<Context>> {
        self.enter("current").map(|_| Some(self.context))
    }

    fn primary(&self, _: i32) -> Result<Context> {
        self.enter("primary").map(|_| self.context)
    }

    fn devices(&self) -> Result<i32> {
        self.enter("devices").map(|_| 1)
    }

    fn push(&self, context: Context) -> Result<()> {
        let mut state = self.enter("push")?;
        state.pushed += 1;
        if context == self.context { Ok(()) } else { Err(unknown("push")) }
    }

    fn pop(&self) -> Result<()> {
        // What refuses that leaves the context where it is.
        self.enter("pop")?.pushed -= 1;
        Ok(())
    }

    fn exchange_capture_mode(&self, _: CaptureMode) -> Result<CaptureMode> {
        self.enter("exchange_capture_mode").map(|_| CaptureMode(0))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned> {
        let _state = self.enter("allocate_pinned")?;
        let address = zeroed(bytes).leak().as_mut_ptr().expose_provenance();
        Ok(Pinned { host: address, device: address })
    }

    fn allocate(&self, bytes: usize) -> Result<usize> {
        let mut state = self.enter("allocate")?;
        let mut memory = zeroed(bytes);
        let address = memory.as_mut_ptr().expose_provenance();
        state.allocations.insert(address, memory);
        Ok(address)
    }

    fn free(&self, address: usize) -> Result<()> {
        let freed = self.enter("free")?.allocations.remove(&address);
        freed.map(drop).ok_or_else(|| unknown("free"))
    }

    fn export(&self, _: usize) -> Result<Exported> {
        self.enter("export").and_then(|_| Err(not_there("export")))
    }

    fn open(&self, _: &Exported) -> Result<usize> {
        self.enter("open").and_then(|_| Err(not_there("open")))
    }

    fn close(&self, _: usize) -> Result<()> {
        self.enter("close").and_then(|_| Err(not_there("close")))
    }

    fn reach(&self, own: Context, peer: Context) -> Result<bool> {
        self.enter("reach").map(|_| own == peer)
    }

    fn locate(&self, address: usize) -> Result<Place> {
        let state = self.enter("locate")?;
        let before = state.allocations.range(..=address).next_back();
        let is_inside = before.is_some_and(|(start, memory)| address < start + memory.len() * 8);
        Ok(if is_inside { Place::Device(0) } else { Place::Unknown })
    }

    fn register(&self, _: usize, _: usize) -> Result<()> {
        self.enter("register").map(drop)
    }

    fn unregister(&self, _: usize) -> Result<()> {
        self.enter("unregister").map(drop)
    }

    fn device_of(&self, stream: Stream, own: Context) -> Result<i32> {
        let is_foreign = self.enter("device_of")?.foreign.contains(&stream.0);
        Ok(own.ordinal + i32::from(is_foreign))
    }

    fn create_stream(&self) -> Result<Stream> {
        let mut state = self.enter("create_stream")?;
        let handle = state.handle();
        state.streams.insert(handle, Queue::default());
        Ok(Stream(handle))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        let gone = self.enter("destroy_stream")?.streams.remove(&stream.0);
        gone.map(drop).ok_or_else(|| unknown("destroy_stream"))
    }

    fn create_event(&self) -> Result<Event> {
        let mut state = self.enter("create_event")?;
        let handle = state.handle();
        state.events.insert(handle, None);
        Ok(Event(handle))
    }

    fn destroy_event(&self, event: Event) -> Result<()> {
        let gone = self.enter("destroy_event")?.events.remove(&event.0);
        gone.map(drop).ok_or_else(|| unknown("destroy_event"))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut state = self.enter("record")?;
        let number = state.streams.get(&stream.0).ok_or_else(|| unknown("record"))?.queued;
        let place = state.events.get_mut(&event.0).ok_or_else(|| unknown("record"))?;
        *place = Some((stream.0, number));
        Ok(())
    }

    fn has_passed(&self, event: Event) -> Result<bool> {
        let state = self.enter("has_passed")?;
        let recorded = state.events.get(&event.0).ok_or_else(|| unknown("has_passed"))?;
        Ok(recorded.is_none_or(|(stream, number)| state.is_past(stream, number)))
    }

    fn wait_event(&self, stream: Stream, event: Event) -> Result<()> {
        let recorded = self.enter("wait_event")?.events.get(&event.0).copied();
        let recorded = recorded.ok_or_else(|| unknown("wait_event"))?;
        let Some((of, number)) = recorded else { return Ok(()) };
        self.queue("wait_event (queued)", stream, Item::After { stream: of, number })
    }

    fn copy(&self, destination: usize, source: usize, bytes: usize, stream: Stream) -> Result<()> {
        self.queue("copy", stream, Item::Copy { to: destination, from: source, bytes })
    }

    fn write_word(&self, stream: Stream, word: usize, value: u32) -> Result<()> {
        self.queue("write_word", stream, Item::Write { word, value })
    }

    fn wait_word(&self, stream: Stream, word: usize, until: Until) -> Result<()> {
        self.queue("wait_word", stream, Item::Wait { word, until })
    }

    fn capture(&self, _: Stream) -> Result<Capture> {
        self.enter("capture").map(|_| Capture::None)
    }

    fn keep_for_graph(&self, _: usize, _: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.enter("keep_for_graph").and_then(|_| Err(not_there("keep_for_graph")))
    }

    fn load_module(&self, _: &CStr) -> Result<Module> {
        self.enter("load_module").and_then(|_| Err(not_there("load_module")))
    }

    fn find_function(&self, _: Module, _: &CStr) -> Result<Function> {
        self.enter("find_function").and_then(|_| Err(not_there("find_function")))
    }

    fn launch(&self, _: Function, _: Grid, _: &[u64], _: Stream) -> Result<()> {
        self.enter("launch").and_then(|_| Err(not_there("launch")))
    }

    fn call_host(&self, _: Stream, _: fn()) -> Result<()> {
        self.enter("call_host").and_then(|_| Err(not_there("call_host")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::within;
    use super::*;

    #[test]
    fn a_context_is_taken_back_whatever_becomes_of_what_runs_in_it() {
        let fake = Fake::new(None);
        assert_eq!(within(fake, fake.context(), || Ok(7)), Ok(7));
        let failed = within(fake, fake.context(), || Err::<(), _>(Error::internal("wrong")));
        assert_eq!(failed.unwrap_err().text(), "wrong");
        assert_eq!(fake.pushed(), 0);
        let fake = Fake::new(Some(("push", 1)));
        let failed = within(fake, fake.context(), || -> Result<()> { unreachable!("without a context") });
        assert!(failed.unwrap_err().text().starts_with("push of the device driver failed: INJECTED (999)"));
        assert_eq!(fake.pushed(), 0);
    }

    #[test]
    fn streams_keep_their_order_and_wait_for_words_and_events() {
        let fake = Fake::new(None);
        let (first, second) = (fake.create_stream().unwrap(), fake.create_stream().unwrap());
        let page = fake.allocate_pinned(64).unwrap();
        let [from, to] = [0; 2].map(|_: i32| fake.allocate(16).unwrap());
        fake.put(from, &[5, 6]);
        let event = fake.create_event().unwrap();
        fake.wait_word(first, page.device, Until::Reached(3)).unwrap();
        fake.copy(to, from, 16, first).unwrap();
        fake.record(event, first).unwrap();
        fake.wait_event(second, event).unwrap();
        fake.write_word(second, page.device + 8, 1).unwrap();
        assert_eq!((fake.has_passed(event), fake.words(to)), (Ok(false), vec![0, 0]));
        word_at(page.host).store(4, Ordering::Release);
        assert_eq!((fake.has_passed(event), fake.words(to)), (Ok(true), vec![5, 6]));
        assert!(fake.is_idle());
        assert_eq!(word_at(page.host + 8).load(Ordering::Acquire), 1);
        assert_eq!(fake.live(), Live { allocations: 2, streams: 2, events: 1 });
        assert!(fake.free(from + 8).is_err());
    }
}
