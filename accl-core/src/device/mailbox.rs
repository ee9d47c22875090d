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

/// One line.
#[derive(Debug)]
pub struct Mailbox {
    host: usize,
    device: usize,
    /// The last number that was used.
    pub last: u32,
}

impl Mailbox {
    /// A line of memory that `driver` can reach.
    pub fn take(driver: &dyn Driver) -> Result<Self> {
        let mut spare = SPARE.lock();
        if spare.is_empty() {
            let page = driver.allocate_pinned(PAGE_BYTES)?;
            let line = |at| Self { host: page.host + at, device: page.device + at, last: 0 };
            spare.extend((0..PAGE_BYTES).step_by(LINE_BYTES).map(line));
        }
        spare.pop().ok_or_else(|| crate::error::Error::internal("a page without lines"))
    }

    /// Gives the line back; this is not to be used after that. No stream may come to it any more; those that wait at it may still
    /// do so.
    pub fn give_back(&mut self) {
        let Self { host, device, last } = *self;
        SPARE.lock().push(Self { host, device, last });
    }

    /// The number after the last one, which is the last one from now on; never 0.
    pub fn take_number(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
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
