//! The flight recorder of one rank: what it does, in memory that outlives its process.
//!
//! The memory is a file of [`super::record_format`], mapped; or memory of the process alone where there is no file, so that
//! nobody needs to ask. On the way of a small call only a few plain stores are made: no lock, no clock, no system call, no
//! allocation. Times come from calls that are large, and from waits that last, which look at the clock anyway.
//!
//! Whoever holds the rank's endpoint records operations and waits: one thread at a time. How the rank ends anybody may say.

use super::level_request::LevelRequest;
use super::record_format::{
    ENTRY_WORDS, End, Head, ON_STREAM, PEERS_BYTES, Paths, RING_BYTES, RING_ENTRIES, TIMED, TRANSFER, live,
};
use super::records::Place;
use crate::error::Result;
use crate::os::clock;
use crate::os::mapping::Words;
use crate::os::process;
use crate::sync::prim::{AtomicU64, Ordering, fence};
use crate::types::Rank;
use std::os::fd::AsFd;

/// From how many bytes on a call is worth two looks at the clock.
pub const TIMED_BYTES: usize = 64 << 10;

const WORDS: usize = PEERS_BYTES / 8;
const RING: usize = RING_BYTES / 8;

/// What a rank waits for, as the engine found out.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// Since when, in nanoseconds since 1970.
    pub since_ns: u64,
    /// True for a send or a receive.
    pub transfer: bool,
    /// The operation's number, call and count.
    pub number: u64,
    /// The call: see [`super::calls`].
    pub what: u64,
    /// Its count.
    pub count: u64,
    /// The ranks, in order.
    pub missing: &'a [Rank],
    /// Why, if that is to be said anew.
    pub text: Option<&'a str>,
}

/// The recorder.
#[derive(Debug)]
pub struct Recorder {
    words: Words<WORDS>,
    /// The last request for another log level that was seen in it.
    level_request: AtomicU64,
    /// Where its file is, if it has one, and the process that made it.
    file: Option<(Place, u32)>,
    /// Bytes of the file that are not mapped.
    more_bytes: usize,
}

impl Recorder {
    /// One without a file. An error (System) if there is no memory for it.
    pub fn without_file() -> Result<Self> {
        Ok(Self::of(Words::anonymous()?, None, 0))
    }

    /// One whose file is a new one at `place`.
    pub(super) fn at(place: Place, head: &Head) -> Result<Self> {
        let content = head.encode();
        let more_bytes = (content.len() - PEERS_BYTES).next_multiple_of(4096);
        let file = place.create(&content)?;
        match Words::of_file(file.as_fd()) {
            Ok(words) => Ok(Self::of(words, Some((place, head.pid)), more_bytes)),
            Err(error) => {
                place.remove();
                Err(error)
            }
        }
    }

    fn of(words: Words<WORDS>, file: Option<(Place, u32)>, more_bytes: usize) -> Self {
        Self { words, level_request: AtomicU64::new(0), file, more_bytes }
    }

    /// The name of its file, if it has one.
    pub fn path(&self) -> Option<std::path::PathBuf> {
        self.file.as_ref().map(|(place, _)| place.path())
    }

    /// Memory that it takes: pages of its file, of which the peers' names take more where there are many, or of the process.
    pub fn used_bytes(&self) -> Result<usize> {
        self.words.used_bytes().map(|bytes| bytes + self.more_bytes)
    }

    #[inline]
    fn word(&self, place: usize) -> &AtomicU64 {
        &self.words.get()[place]
    }

    #[inline]
    fn load(&self, place: usize) -> u64 {
        u64::from_le(self.word(place).load(Ordering::Relaxed))
    }

    #[inline]
    fn store(&self, place: usize, value: u64) {
        self.word(place).store(value.to_le(), Ordering::Relaxed);
    }

    /// The same, behind everything that was stored before.
    #[inline]
    fn store_last(&self, place: usize, value: u64) {
        self.word(place).store(value.to_le(), Ordering::Release);
    }

    /// A collective operation begins: the one behind the last.
    #[inline]
    pub fn begin(&self, number: u64, what: u64, count: u64) {
        let place = number + self.load(live::TRANSFERS_BEGUN);
        self.enter(place, number | self.load(live::ON_STREAM), what, count);
        self.store(live::COLLECTIVES_BEGUN, number);
        self.look_at_level_request();
    }

    /// How many operations have begun.
    pub fn operations(&self) -> u64 {
        self.load(live::COLLECTIVES_BEGUN) + self.load(live::TRANSFERS_BEGUN)
    }

    /// All collective operations up to this one are done.
    #[inline]
    pub fn complete(&self, number: u64) {
        self.store(live::COLLECTIVES_DONE, number);
    }

    /// A send or a receive begins; `number` counts the messages between the two ranks.
    pub fn begin_transfer(&self, number: u64, what: u64, bytes: u64) {
        let begun = self.load(live::TRANSFERS_BEGUN) + 1;
        let place = begun + self.load(live::COLLECTIVES_BEGUN);
        self.enter(place, number | TRANSFER | self.load(live::ON_STREAM), what, bytes);
        self.store(live::TRANSFERS_BEGUN, begun);
        self.look_at_level_request();
    }

    /// All sends and receives that have begun are done.
    pub fn complete_transfers(&self) {
        self.store(live::TRANSFERS_DONE, self.load(live::TRANSFERS_BEGUN));
    }

    #[inline]
    fn enter(&self, place: u64, number: u64, what: u64, count: u64) {
        let entry = Self::entry(place);
        self.store(entry, place);
        // Whoever sees what follows sees that the entry is being changed.
        fence(Ordering::Release);
        self.store(entry + 1, number);
        self.store(entry + 2, what);
        self.store(entry + 3, count);
        self.store_last(entry + 7, place);
    }

    /// Does what a tool has asked for since this was last called.
    #[inline]
    fn look_at_level_request(&self) {
        let asked = self.load(live::LEVEL_REQUEST);
        if asked != self.level_request.load(Ordering::Relaxed) {
            self.change_level(asked);
        }
    }

    #[cold]
    fn change_level(&self, asked: u64) {
        self.level_request.store(asked, Ordering::Relaxed);
        if let Some(request) = LevelRequest::decode(asked) {
            super::log::change_level(request);
        }
    }

    #[inline]
    fn entry(place: u64) -> usize {
        RING + (place as usize % RING_ENTRIES) * ENTRY_WORDS
    }

    /// The operation that has just begun, or has just been done, is large: its times are worth knowing.
    pub fn time(&self, number: u64, done: bool) {
        self.set_time(number, false, clock::wall_ns(), done);
    }

    /// Looks for an operation, from the last one backwards.
    fn set_time(&self, number: u64, transfer: bool, ns: u64, done: bool) {
        let last = self.load(live::COLLECTIVES_BEGUN) + self.load(live::TRANSFERS_BEGUN);
        for place in (1..=last).rev().take(RING_ENTRIES) {
            let entry = Self::entry(place);
            let found = self.load(entry + 1);
            if found & !(ON_STREAM | TIMED) != number | if transfer { TRANSFER } else { 0 } {
                continue;
            }
            let timed = found & TIMED != 0;
            if done {
                self.store(entry + 5, ns);
            } else if !timed {
                self.store(entry + 4, ns);
                self.store(entry + 5, 0);
            }
            if !done && !timed {
                self.store_last(entry + 1, found | TIMED);
            }
            return;
        }
    }

    /// Operations from here on come from a host stream, or do not.
    #[inline]
    pub fn from_stream(&self, stream: bool) {
        self.store(live::ON_STREAM, if stream { ON_STREAM } else { 0 });
    }

    /// So many launches have been queued on host streams.
    #[inline]
    pub fn launched(&self, queued: u64) {
        self.store(live::LAUNCHES_QUEUED, queued);
    }

    /// So many of them are done.
    #[inline]
    pub fn launches_done(&self, done: u64) {
        self.store(live::LAUNCHES_DONE, done);
    }

    /// The rank has looked around in a wait that lasts.
    pub fn wait(&self, waiting: &Waiting<'_>) {
        self.look_at_level_request();
        let version = self.load(live::WAIT_VERSION) & !1;
        self.store(live::WAIT_VERSION, version + 1);
        fence(Ordering::Release);
        let begins = self.load(live::WAIT_SINCE_NS) == 0;
        self.store(live::WAIT_SINCE_NS, waiting.since_ns);
        self.store(live::WAIT_LOOKED_NS, clock::wall_ns());
        self.store(live::WAIT_NUMBER, waiting.number | if waiting.transfer { TRANSFER } else { 0 });
        self.store(live::WAIT_WHAT, waiting.what);
        self.store(live::WAIT_COUNT, waiting.count);
        self.store(live::WAIT_RANKS, waiting.missing.len() as u64);
        let mut runs = waiting.missing.chunk_by(|a, b| a + 1 == *b);
        for place in 0..live::MOST_RUNS {
            let run = runs.next().and_then(|run| Some((*run.first()? as u64, *run.last()? as u64)));
            self.store(live::WAIT_RUNS + place, run.map_or(u64::MAX, |(first, last)| first | last << 32));
        }
        if let Some(text) = waiting.text.or_else(|| begins.then_some("")) {
            self.put_text(live::WAIT_TEXT, live::WAIT_TEXT + 1, text);
        }
        self.store_last(live::WAIT_VERSION, version + 2);
        if begins {
            self.set_time(waiting.number, waiting.transfer, waiting.since_ns, false);
        }
    }

    /// What was exchanged with peers: rank, bytes sent, bytes received. There is room for the first few.
    pub fn traffic(&self, traffic: impl Iterator<Item = (Rank, u64, u64)>) {
        for (peer, sent, received) in traffic {
            let key = peer as u64 + 1;
            // A slot is one peer's for ever: readers need no version.
            let mut slots = (0..live::MOST_TRAFFIC).map(|slot| live::TRAFFIC + 3 * slot);
            let Some(at) = slots.find(|at| [0, key].contains(&self.load(*at))) else { continue };
            self.store(at + 1, sent);
            self.store(at + 2, received);
            self.store_last(at, key);
        }
    }

    /// What has become of RDMA paths.
    pub fn paths(&self, paths: &Paths) {
        self.store(live::PATHS_UP, paths.came_up);
        self.store(live::PATHS_FAILED, paths.failed);
        self.store(live::SEGMENTS_AGAIN, paths.segments_again);
    }

    /// It waits no more.
    pub fn end_wait(&self) {
        if self.load(live::WAIT_SINCE_NS) == 0 {
            return;
        }
        let number = self.load(live::WAIT_NUMBER);
        let transfer = number & TRANSFER != 0;
        let done = if transfer {
            self.load(live::TRANSFERS_DONE) == self.load(live::TRANSFERS_BEGUN)
        } else {
            self.load(live::COLLECTIVES_DONE) >= number
        };
        if done {
            self.set_time(number & !TRANSFER, transfer, clock::wall_ns(), true);
        }
        self.store(live::WAIT_SINCE_NS, 0);
    }

    /// The communicator has failed, as far as this rank knows; the first text stays.
    pub fn fail(&self, text: &str) {
        if self.end(End::Failed) {
            self.put_text(live::FAILURE, live::FAILURE_TEXT, text);
        }
    }

    /// The rank's part is over; true if it was not before.
    pub fn end(&self, end: End) -> bool {
        let (open, end) = (End::Open.code().to_le(), end.code().to_le());
        let place = self.word(live::END);
        let first = place.compare_exchange(open, end, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first {
            self.store(live::END_NS, clock::wall_ns());
        }
        first
    }

    /// Texts that others may be reading: the length is stored last.
    fn put_text(&self, length: usize, place: usize, text: &str) {
        let text = &text.as_bytes()[..text.floor_char_boundary(live::MOST_TEXT)];
        self.store(length, 0);
        fence(Ordering::Release);
        for (word, bytes) in text.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            self.store(place + word, u64::from_le_bytes(padded));
        }
        self.store_last(length, text.len() as u64);
    }

    /// True if it ended in good order: nothing failed, and nothing was under way.
    fn ended_well(&self) -> bool {
        let pairs = [
            (live::COLLECTIVES_BEGUN, live::COLLECTIVES_DONE),
            (live::TRANSFERS_BEGUN, live::TRANSFERS_DONE),
            (live::LAUNCHES_QUEUED, live::LAUNCHES_DONE),
        ];
        self.load(live::END) != End::Failed.code()
            && pairs.into_iter().all(|(begun, done)| self.load(begun) == self.load(done))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let Some((place, pid)) = &self.file else { return };
        // A forked child's copy is its parent's.
        if *pid != process::id() {
            return;
        }
        if self.ended_well() {
            place.remove();
        } else {
            // What went wrong is to be read, though the program goes on.
            place.keep();
        }
    }
}
