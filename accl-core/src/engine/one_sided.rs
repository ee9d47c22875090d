//! What peers write to this rank's memory by themselves, and the signals that tell of it: `ncclPutSignal`, `ncclSignal`,
//! `ncclWaitSignal`.
//!
//! A put is a message like those with tags, and its tag says where its bytes go:
//! ```text
//! bit 63: 1 | 62: 1 | 61: it is a signal, too | 60..48: the receiver's number of the window | 47..0: bytes behind its beginning
//! ```
//! Messages between two ranks keep their order, so whoever sees a signal sees all that was put before it. Where a rank
//! can write to a peer's window by itself, it does, and only the signal is a message.

use super::drive::fail;
use super::post::Post;
use super::seat::Seat;
use super::tagged::{Label, Message, Request};
use crate::device::{Device, Host, UserPointer};
use crate::error::{Error, Result};
use crate::types::{Rank, named_ranks};
use std::collections::BTreeMap;
use std::sync::Arc;

const ONE_SIDED: u64 = 1 << 62;
const SIGNAL: u64 = 1 << 61;
const WINDOW_SHIFT: u32 = 48;
/// The number of no window: of a signal without bytes.
const NO_WINDOW: u16 = 0x1fff;

/// How many windows a rank can have at a time.
pub const MOST_WINDOWS: u16 = NO_WINDOW;

/// Where a message goes that nobody receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// The receiver's number of the window.
    pub window: u16,
    /// Bytes behind its beginning.
    pub offset: u64,
    /// True if it is a signal, too.
    pub signals: bool,
}

impl Put {
    /// A signal, and no bytes.
    pub const SIGNAL: Self = Self { window: NO_WINDOW, offset: 0, signals: true };

    pub(super) fn word(self) -> u64 {
        let signal = if self.signals { SIGNAL } else { 0 };
        ONE_SIDED | signal | u64::from(self.window) << WINDOW_SHIFT | self.offset
    }

    /// None for a message that is to be received.
    pub(super) fn of_word(word: u64) -> Option<Self> {
        (word & ONE_SIDED != 0).then_some(Self {
            window: (word >> WINDOW_SHIFT) as u16 & NO_WINDOW,
            offset: word & ((1 << WINDOW_SHIFT) - 1),
            signals: word & SIGNAL != 0,
        })
    }

    pub(super) fn describe(self, bytes: usize, peer: Option<Rank>) -> String {
        let peer = peer.map_or_else(String::new, |peer| format!(" to rank {peer}"));
        if self.window == NO_WINDOW {
            return format!("the signal{peer}");
        }
        format!("the put of {bytes} bytes{peer}")
    }
}

/// A put that has begun to come.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) place: UserPointer,
    pub(super) bytes: usize,
    signals: bool,
}

/// A wait for signals.
#[derive(Debug)]
struct Wait {
    /// How many of each rank.
    signals: Vec<(Rank, u64)>,
    request: Arc<Request>,
}

/// One rank's side of it.
#[derive(Debug, Default)]
pub(super) struct OneSided {
    /// Peers may write at any time.
    open: bool,
    windows: BTreeMap<u16, (UserPointer, usize)>,
    /// Signals that nobody has waited for yet.
    signals: BTreeMap<Rank, u64>,
    waits: Vec<Wait>,
}

impl OneSided {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Lets peers write to `bytes` at `start`; the number by which they name that. None if there are too many windows.
    pub(super) fn expose(&mut self, start: UserPointer, bytes: usize) -> Option<u16> {
        let number = (0..MOST_WINDOWS).find(|number| !self.windows.contains_key(number))?;
        self.windows.insert(number, (start, bytes));
        self.open = true;
        Some(number)
    }

    pub(super) fn withdraw(&mut self, number: u16) {
        self.windows.remove(&number);
    }

    /// How many waits are not over.
    pub(super) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// Begins a wait.
    pub(super) fn wait(&mut self, signals: Vec<(Rank, u64)>, request: Arc<Request>) {
        self.waits.push(Wait { signals, request });
        self.end_waits();
    }

    /// Where a put goes.
    pub(super) fn place(&self, put: Put, bytes: usize, peer: Rank) -> Result<Written> {
        let written = |place| Ok(Written { place, bytes, signals: put.signals });
        if put.window == NO_WINDOW && bytes == 0 {
            return written(UserPointer::null());
        }
        let there = self.windows.get(&put.window).filter(|(_, length)| {
            let end = put.offset.checked_add(bytes as u64);
            end.is_some_and(|end| end <= *length as u64)
        });
        match there {
            Some((start, _)) => written(start.byte_add(put.offset as usize)),
            None => Err(Error::usage(format!(
                "rank {peer} puts {bytes} bytes at byte {} of a window that is not there, or not any more; deregister a window when \
                 all ranks are through with it",
                put.offset
            ))),
        }
    }

    /// A put is there.
    pub(super) fn arrived(&mut self, written: Written, peer: Rank) {
        if written.signals {
            self.signalled(peer);
        }
    }

    /// A rank has given a signal.
    pub(super) fn signalled(&mut self, peer: Rank) {
        *self.signals.entry(peer).or_default() += 1;
        self.end_waits();
    }

    /// How many signals of a rank are there.
    fn there(&self, peer: Rank) -> u64 {
        self.signals.get(&peer).copied().unwrap_or(0)
    }

    /// Ends the waits that have what they need, the oldest first, and takes their signals.
    fn end_waits(&mut self) {
        let mut at = 0;
        while let Some(wait) = self.waits.get(at) {
            if wait.signals.iter().any(|(peer, count)| self.there(*peer) < *count) {
                at += 1;
                continue;
            }
            let wait = self.waits.remove(at);
            for (peer, count) in &wait.signals {
                if let Some(there) = self.signals.get_mut(peer) {
                    *there -= count;
                }
            }
            wait.request.end(Ok(0));
        }
    }

    /// The ranks whose signals are missing.
    pub(super) fn waits_for(&self, missing: &mut Vec<Rank>) {
        let all = self.waits.iter().flat_map(|wait| &wait.signals);
        missing.extend(all.filter(|(peer, count)| self.there(*peer) < *count).map(|(peer, _)| *peer));
    }

    /// True if signals of a rank are missing.
    pub(super) fn lacks(&self, peer: Rank) -> bool {
        let all = self.waits.iter().flat_map(|wait| &wait.signals);
        all.clone().any(|(from, count)| *from == peer && self.there(peer) < *count)
    }

    /// As [`super::tagged::TaggedOp::waiting`].
    pub(super) fn waiting(&self) -> Option<(bool, Rank, u64)> {
        let mut all = self.waits.iter().flat_map(|wait| &wait.signals);
        all.find(|(peer, count)| self.there(*peer) < *count).map(|(peer, count)| (false, *peer, *count))
    }

    pub(super) fn describe(&self) -> Option<String> {
        let wait = self.waits.first()?;
        let ranks: Vec<Rank> = wait.signals.iter().map(|(peer, _)| *peer).collect();
        let count: u64 = wait.signals.iter().map(|(_, count)| count).sum();
        let there: u64 = wait.signals.iter().map(|(peer, count)| self.there(*peer).min(*count)).sum();
        Some(format!("WaitSignal (has {there} of {count} signals of {})", named_ranks(&ranks)))
    }

    /// Ends everything.
    pub(super) fn fail(&mut self, error: &Error) {
        for wait in std::mem::take(self).waits {
            wait.request.end(Err(error.clone()));
        }
    }
}

/// A one-sided call of a rank.
#[derive(Clone, Debug)]
pub struct OneSidedCall {
    /// Whose call it is. The messages of `post` are those of another communicator of the same ranks.
    pub seat: Arc<Seat>,
    /// Who moves them.
    pub post: Arc<Post>,
    /// What is to be done.
    pub action: Action,
}

/// What a one-sided call does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Copies `bytes` from the first place to the second, both within reach, then signals.
    Copy(UserPointer, UserPointer, usize, Rank),
    /// Sends `bytes` to where they go.
    Send(UserPointer, usize, Rank, Put),
    /// Signals.
    Signal(Rank),
    /// Waits for so many signals of each rank, and takes them.
    Wait(Vec<(Rank, u64)>),
}

impl OneSidedCall {
    /// Whom it sends something, and how many bytes; none for a wait.
    pub fn puts(&self) -> Option<(Rank, usize)> {
        match &self.action {
            Action::Copy(_, _, bytes, peer) | Action::Send(_, bytes, peer, _) => Some((*peer, *bytes)),
            Action::Signal(peer) => Some((*peer, 0)),
            Action::Wait(_) => None,
        }
    }

    /// Begins it. Its memory must stay as it is until the request is over, which rings the seat's bell.
    pub(super) fn begin(&self) -> Result<Arc<Request>> {
        let request = Arc::new(Request::that_wakes(self.seat.clone()));
        let own = self.seat.rank;
        let message = |buffer, bytes, peer, put| Message {
            buffer,
            bytes,
            peer: Some(peer),
            label: Label::Put(put),
            deadline: None,
        };
        match &self.action {
            Action::Copy(from, to, bytes, peer) => {
                Host.copy(*to, *from, *bytes);
                if *peer == own {
                    self.post.signal_self(request)
                } else {
                    self.post.send(message(UserPointer::null(), 0, *peer, Put::SIGNAL), request)
                }
            }
            Action::Signal(peer) if *peer == own => self.post.signal_self(request),
            Action::Signal(peer) => {
                self.post.send(message(UserPointer::null(), 0, *peer, Put::SIGNAL), request)
            }
            Action::Send(from, bytes, peer, put) => {
                self.post.send(message(*from, *bytes, *peer, *put), request)
            }
            Action::Wait(signals) => self.post.wait_signals(signals.clone(), request),
        }
    }
}

/// Carries one out, for a caller who waits for it.
pub fn run_one_sided(call: &OneSidedCall) -> Result<()> {
    let seat = &call.seat;
    // After everything that is queued on host streams.
    drop(seat.take_turn());
    let outcome = call.begin().and_then(|request| {
        call.post.wait(&request, None);
        request.error().map_or(Ok(()), |error| Err(error.clone()))
    });
    outcome.map_err(|error| fail(seat, &mut seat.endpoint.lock(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_what_its_word_says() {
        for put in [
            Put::SIGNAL,
            Put { window: 0, offset: 0, signals: false },
            Put { window: 8190, offset: (1 << 48) - 1, signals: true },
            Put { window: 5, offset: 4096, signals: true },
        ] {
            assert_eq!(Put::of_word(put.word() | 1 << 63), Some(put));
        }
        assert_eq!(Put::of_word(1 << 63 | u64::from(u32::MAX)), None);
    }

    #[test]
    fn a_wait_takes_its_signals_once_all_are_there() {
        let mut one_sided = OneSided::default();
        let requests = [(); 2].map(|()| Arc::new(Request::default()));
        one_sided.signalled(1);
        one_sided.wait(vec![(1, 2), (2, 1)], requests[0].clone());
        one_sided.wait(vec![(1, 1)], requests[1].clone());
        assert_eq!(requests.each_ref().map(|request| request.is_over()), [false, true]);
        one_sided.signalled(1);
        one_sided.signalled(2);
        assert!(!requests[0].is_over() && one_sided.lacks(1) && !one_sided.lacks(2));
        let mut missing = Vec::new();
        one_sided.waits_for(&mut missing);
        assert_eq!((missing, one_sided.waiting()), (vec![1], Some((false, 1, 2))));
        one_sided.signalled(1);
        assert!(requests[0].is_over() && one_sided.waits() == 0);
        assert_eq!(one_sided.signals.values().sum::<u64>(), 0);
    }

    #[test]
    fn puts_stay_within_their_window() {
        let mut one_sided = OneSided::default();
        let mut memory = [0u64; 8];
        // SAFETY: an address that is compared and never used.
        #[expect(unsafe_code)]
        let start = unsafe { UserPointer::new(memory.as_mut_ptr().cast()) };
        let window = one_sided.expose(start, 64).unwrap();
        let place = |offset, bytes| {
            one_sided.place(Put { window, offset, signals: true }, bytes, 3).map(|written| written.place)
        };
        assert_eq!(place(56, 8), Ok(start.byte_add(56)));
        assert_eq!(place(64, 0), Ok(start.byte_add(64)));
        for (offset, bytes) in [(57, 8), (65, 0), ((1 << 48) - 1, usize::MAX)] {
            assert_eq!(place(offset, bytes).unwrap_err().kind(), crate::ErrorKind::InvalidUsage);
        }
        let other = Put { window: window + 1, offset: 0, signals: true };
        assert_eq!(one_sided.place(other, 1, 3).unwrap_err().kind(), crate::ErrorKind::InvalidUsage);
    }
}
