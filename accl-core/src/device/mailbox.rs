//! Two words by which a stream and this library's engine hand work to each other.
//!
//! ```text
//! line of 128 bytes in pinned memory: arrival u32 | … | (at 64) done u32 | … | (at 96) a factor, 8 bytes | …
//! ```
//! A stream stores the number of a launch in `arrival` when it comes to it, and waits until `done` says that it is over; the
//! engine takes the number out, does the work, and stores it in `done`. At most one launch is between the two.
//!
//! Lines come from pages that are kept for the next communicators: a stream may look at its line a little later than the engine. For
//! the same reason a line's numbers go on where its last owner has stopped, so that whoever still waits for an old number sees
//! it reached.
//!
//! # Safety
//! Pages are never freed, so that their words live as long as the process; all sides store whole words.
#![allow(unsafe_code)]

use super::UserPointer;
use crate::driver::Driver;
use crate::error::Result;
use crate::sync::prim::AtomicU32;
use parking_lot::Mutex;

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 128;
const DONE_AT: usize = 64;
const FACTOR_AT: usize = 96;

/// Lines that nobody uses.
static SPARE: Mutex<Vec<Mailbox>> = Mutex::new(Vec::new());

/// One line. Everything may be used from any thread at any time.
#[derive(Debug)]
pub struct Mailbox {
    host: usize,
    device: usize,
    /// The last number that its earlier owners have used.
    before: u32,
}

/// The number after `last`; never 0.
pub fn number_after(last: u32) -> u32 {
    last.wrapping_add(1).max(1)
}

impl Mailbox {
    /// A line of memory that `driver` can reach. Drivers may wait for a device when they allocate, so nothing is locked meanwhile.
    pub fn take(driver: &dyn Driver) -> Result<Self> {
        if let Some(line) = SPARE.lock().pop() {
            return Ok(line);
        }
        let page = driver.allocate_pinned(PAGE_BYTES)?;
        let line = |at| Self { host: page.host + at, device: page.device + at, before: 0 };
        SPARE.lock().extend((LINE_BYTES..PAGE_BYTES).step_by(LINE_BYTES).map(line));
        Ok(line(0))
    }

    /// The last number that was used before this owner.
    pub fn before(&self) -> u32 {
        self.before
    }

    /// Gives the line back, whose last number was `last`; this is not to be used after that. No stream may come to it any more;
    /// those that wait at it may still do so.
    pub fn give_back(&self, last: u32) {
        // Numbers of a graph's launches must not come round to 0.
        const LAST: u32 = 0xff00_0000;
        let Self { host, device, .. } = *self;
        if last < LAST {
            SPARE.lock().push(Self { host, device, before: last });
        }
    }

    /// Where streams say that they have come to a launch; 0 when that has been seen.
    pub fn arrival(&self) -> &AtomicU32 {
        self.word(0)
    }

    /// Where the engine says which launch is over.
    pub fn done(&self) -> &AtomicU32 {
        self.word(DONE_AT)
    }

    /// The device's address of [`Self::arrival`].
    pub fn arrival_word(&self) -> usize {
        self.device
    }

    /// The device's address of [`Self::done`].
    pub fn done_word(&self) -> usize {
        self.device + DONE_AT
    }

    /// Where the engine has the device put the factor of a pre-multiplied sum.
    pub fn factor(&self) -> UserPointer {
        let place = std::ptr::with_exposed_provenance(self.host + FACTOR_AT);
        // SAFETY: the line is ours, and never freed.
        unsafe { UserPointer::new(place) }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        let word = std::ptr::with_exposed_provenance::<AtomicU32>(self.host + at);
        // SAFETY: the line is ours, aligned, zeroed when it was allocated, and never freed.
        unsafe { &*word }
    }
}
