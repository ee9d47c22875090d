//! Windows of users: buffers that every rank registers, to which the others write by themselves. (Windows of devices, in the
//! engine, are something else.)
//!
//! Puts and signals are messages of a communicator of their own, the *carrier*: the same ranks, made when they register their first
//! window, so that nothing else is in their way and they are in nobody's.

use super::group::{self, Work};
use super::{CommConfig, Communicator, Stream};
use crate::engine::{Action, OneSidedCall, Post, Put};
use crate::error::{Error, Result};
use crate::memory::UserPointer;
use crate::memory::regions::{self, Region};
use crate::transport::shm::PeerMemory;
use crate::types::Rank;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};

/// The windows of one rank.
#[derive(Debug, Default)]
pub(super) struct Windows {
    carrier: OnceLock<Carrier>,
    registered: Mutex<Vec<Arc<Registered>>>,
}

/// What moves puts and signals.
#[derive(Debug)]
struct Carrier {
    communicator: Communicator,
    post: Arc<Post>,
}

/// A window, as its rank knows it.
#[derive(Debug)]
struct Registered {
    start: UserPointer,
    bytes: usize,
    registration: usize,
    /// Of each rank, what it has registered; nothing, if peers do not know of this one.
    parts: Vec<Part>,
    /// The ranks on this rank's host.
    local: Vec<Rank>,
}

impl Registered {
    fn holds(&self, start: UserPointer, bytes: usize) -> bool {
        regions::lies_in(
            (self.start.address() as u64, self.bytes as u64),
            (start.address() as u64, bytes as u64),
        )
    }
}

/// What one rank has registered.
#[derive(Debug)]
struct Part {
    /// Its number of the window.
    number: u16,
    bytes: u64,
    /// Where this process can write to it, if it can.
    memory: Option<PeerMemory>,
}

/// A handle to a window. It does not keep the window.
#[derive(Clone, Debug)]
pub struct Window {
    communicator: usize,
    rank: Rank,
    ranks: usize,
    registered: Weak<Registered>,
}

impl Window {
    fn get(&self) -> Result<Arc<Registered>> {
        self.registered.upgrade().ok_or_else(|| {
            Error::argument(
                "the window is not there any more: its communicator has ended; register another one",
            )
        })
    }

    /// The buffer that this rank has registered.
    pub fn start(&self) -> Result<UserPointer> {
        Ok(self.get()?.start)
    }

    /// Where byte `offset` of what `peer` has registered lies in this process; none where it cannot be reached. Errors are
    /// InvalidArgument.
    pub fn place(&self, peer: Rank, offset: usize) -> Result<Option<UserPointer>> {
        let registered = self.get()?;
        let Some(part) = registered.parts.get(peer) else {
            // Of a window that is not symmetric, others know nothing.
            return Ok((peer == self.rank).then(|| registered.start.byte_add(offset)));
        };
        if offset as u64 > part.bytes {
            return Err(Error::argument(format!(
                "byte {offset} of the window of rank {peer}, which has {} bytes; pass a smaller offset",
                part.bytes
            )));
        }
        Ok(part.memory.as_ref().map(|memory| memory.place().byte_add(offset)))
    }

    /// How many ranks its communicator has.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The `index`th of the ranks on this rank's host. Errors are InvalidArgument.
    pub fn local_rank(&self, index: usize) -> Result<Rank> {
        let registered = self.get()?;
        let ranks = &registered.local;
        ranks.get(index).copied().ok_or_else(|| {
            Error::argument(format!(
                "lsaRank is {index}, and {} ranks are on this host; pass a smaller one",
                ranks.len()
            ))
        })
    }
}

/// What ranks tell each other of a window.
/// ```text
/// number, address, bytes, then the region that holds it: number (0: none), start, bytes, offset, file, inode; each u64
/// ```
#[derive(Clone, Copy)]
struct Word {
    number: Option<u16>,
    address: u64,
    bytes: u64,
    region: Region,
}

impl Word {
    const BYTES: usize = 72;

    fn pack(&self) -> [u8; Self::BYTES] {
        let Region { number, start, bytes, offset, file, inode } = self.region;
        let own = self.number.map_or(u64::MAX, u64::from);
        let words = [own, self.address, self.bytes, number, start, bytes, offset, file, inode];
        let mut packed = [0; Self::BYTES];
        for (place, word) in packed.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        packed
    }

    fn unpack(packed: &[u8]) -> Self {
        let mut words = [0u64; 9];
        for (word, bytes) in words.iter_mut().zip(packed.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let [own, address, its_bytes, number, start, bytes, offset, file, inode] = words;
        let region = Region { number, start, bytes, offset, file, inode };
        Self { number: u16::try_from(own).ok(), address, bytes: its_bytes, region }
    }
}

impl Communicator {
    /// Makes `bytes` at `start` a window. If `symmetric`, all ranks call, and may write to each other's; else it is this rank's alone, and
    /// only registered. `done` gets it: at once, or as for [`Communicator::split`].
    pub fn register_window(
        &self,
        start: UserPointer,
        bytes: usize,
        symmetric: bool,
        done: Box<dyn FnOnce(Window) + Send>,
    ) -> Result<()> {
        self.derive("accl-window", done, move |parent| parent.register_window_now(start, bytes, symmetric))
    }

    fn register_window_now(&self, start: UserPointer, bytes: usize, symmetric: bool) -> Result<Window> {
        let joined = self.joined()?;
        let registration = self.register(start, bytes)?;
        let parts = if symmetric { self.exchange_parts(start, bytes) } else { Ok(Vec::new()) };
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => {
                self.deregister(registration)?;
                return Err(error);
            }
        };
        let own = &joined.peers[self.rank()];
        let local = (0..self.ranks()).filter(|rank| joined.peers[*rank].shares_host(own)).collect();
        let registered = Arc::new(Registered { start, bytes, registration, parts, local });
        let (communicator, rank, ranks) = (self.key(), self.rank(), self.ranks());
        let window = Window { communicator, rank, ranks, registered: Arc::downgrade(&registered) };
        joined.windows.registered.lock().push(registered);
        Ok(window)
    }

    /// Tells all ranks of a registered buffer, to which they may write when this returns, and hears of theirs.
    fn exchange_parts(&self, start: UserPointer, bytes: usize) -> Result<Vec<Part>> {
        let carrier = self.carrier()?;
        let number = carrier.post.expose(start, bytes);
        let region = regions::find(start, bytes);
        let (address, region) = (start.address() as u64, region.unwrap_or_default());
        let word = Word { number: number.as_ref().ok().copied(), address, bytes: bytes as u64, region };
        let all = self.tell_all(&word.pack());
        let number = number?;
        let parts = all.and_then(|all| {
            let words = all.chunks_exact(Word::BYTES).map(Word::unpack);
            words.enumerate().map(|(peer, word)| self.part(peer, &word)).collect()
        });
        if parts.is_err() {
            carrier.post.withdraw(number);
        }
        parts
    }

    fn part(&self, peer: Rank, word: &Word) -> Result<Part> {
        let joined = self.joined()?;
        let number = word.number.ok_or_else(|| {
            Error::usage(format!("rank {peer} could not register its window; see its own error"))
        })?;
        let places = [self.rank(), peer].map(|rank| &joined.peers[rank].place);
        let memory = if places[0].shares_process(places[1]) {
            Some(PeerMemory::of_own_process(word.address))
        } else {
            let watch = joined.seat.peers.get(peer).and_then(|peer| peer.watch.as_ref());
            watch.and_then(|watch| PeerMemory::of_process(watch, &word.region, word.address, word.bytes))
        };
        Ok(Part { number, bytes: word.bytes, memory })
    }

    /// All ranks call when the first does.
    fn carrier(&self) -> Result<&Carrier> {
        let carrier = &self.joined()?.windows.carrier;
        if let Some(carrier) = carrier.get() {
            return Ok(carrier);
        }
        let name = self.config().name.unwrap_or_else(|| format!("{:#x}", self.public_number()));
        let name = Some(format!("windows of {name}"));
        let config = CommConfig { blocking: true, name, ..self.config() };
        let key = i32::try_from(self.rank()).unwrap_or(i32::MAX);
        let communicator = self
            .split_now("CommWindowRegister", Some(0), key, config)?
            .ok_or_else(|| Error::internal("a rank without a part in its own communicator"))?;
        let post = Post::new(communicator.joined()?.seat.clone());
        Ok(carrier.get_or_init(|| Carrier { communicator, post }))
    }

    /// Takes a window back. Only this rank calls; the ranks must be through with it.
    pub fn deregister_window(&self, window: &Window) -> Result<()> {
        let joined = self.joined()?;
        let registered = self.own(window)?;
        joined.windows.registered.lock().retain(|other| !Arc::ptr_eq(other, &registered));
        if let (Some(carrier), Some(own)) = (joined.windows.carrier.get(), registered.parts.get(self.rank()))
        {
            carrier.post.withdraw(own.number);
        }
        self.deregister(registered.registration)
    }

    /// A window of this communicator.
    fn own(&self, window: &Window) -> Result<Arc<Registered>> {
        if window.communicator != self.key() {
            return Err(Error::usage(
                "the window belongs to another communicator; pass that, or register the buffer with this one",
            ));
        }
        window.get()
    }

    /// Copies `bytes` from `local`, which must lie in a window of this rank, to byte `offset` of what `peer` has registered in `window`;
    /// then gives `peer` a signal. Over when `local` may change.
    pub fn put_signal(
        &self,
        (local, bytes): (UserPointer, usize),
        peer: Rank,
        window: &Window,
        offset: usize,
        stream: Stream<'_>,
    ) -> Result<()> {
        let target = self.own(window)?;
        let part = target.parts.get(peer).ok_or_else(|| {
            Error::argument(
                "the window is not symmetric; register it with NCCL_WIN_COLL_SYMMETRIC on all ranks",
            )
        })?;
        if !regions::lies_in((0, part.bytes), (offset as u64, bytes as u64)) {
            return Err(Error::argument(format!(
                "{bytes} bytes at byte {offset} of the window of rank {peer}, which has {} bytes; pass a smaller count or offset",
                part.bytes
            )));
        }
        let symmetric = |window: &Arc<Registered>| !window.parts.is_empty() && window.holds(local, bytes);
        if !self.joined()?.windows.registered.lock().iter().any(symmetric) {
            return Err(Error::argument(format!(
                "localbuff: the {bytes} bytes at {:#x} lie in no symmetric window of this communicator; register them",
                local.address()
            )));
        }
        let action = match &part.memory {
            Some(memory) => Action::Copy(local, memory.place().byte_add(offset), bytes, peer),
            None => {
                let put = Put { window: part.number, offset: offset as u64, signals: true };
                Action::Send(local, bytes, peer, put)
            }
        };
        self.one_sided(action, stream)
    }

    /// Gives `peer` a signal.
    pub fn signal(&self, peer: Rank, stream: Stream<'_>) -> Result<()> {
        self.one_sided(Action::Signal(peer), stream)
    }

    /// Waits until so many signals of each rank have come, and takes them. What was put before them is there then.
    pub fn wait_signals(&self, signals: &[(Rank, u64)], stream: Stream<'_>) -> Result<()> {
        let mut summed: Vec<(Rank, u64)> = Vec::new();
        for (peer, count) in signals {
            match summed.iter_mut().find(|(known, _)| known == peer) {
                Some((_, sum)) => *sum += count,
                None => summed.push((*peer, *count)),
            }
        }
        self.one_sided(Action::Wait(summed), stream)
    }

    fn one_sided(&self, action: Action, stream: Stream<'_>) -> Result<()> {
        let joined = self.joined()?;
        let carrier = joined.windows.carrier.get().ok_or_else(|| {
            Error::usage(
                "no window was registered, and signals go by what windows bring with them; call ncclCommWindowRegister with \
                 NCCL_WIN_COLL_SYMMETRIC on all ranks first",
            )
        })?;
        let call = OneSidedCall { seat: joined.seat.clone(), post: carrier.post.clone(), action };
        group::perform(self, Work::OneSided(call), stream)
    }

    /// What moves puts and signals, if there is something.
    pub(super) fn carrier_communicator(&self) -> Option<&Self> {
        Some(&self.shared.joined.get()?.windows.carrier.get()?.communicator)
    }

    /// Ends all windows in good order.
    pub(super) fn end_windows(&self) {
        let Some(joined) = self.shared.joined.get() else { return };
        if let Some(carrier) = joined.windows.carrier.get() {
            carrier.post.end(&ended("destroyed"));
            // What has failed there has failed here, or nobody waited for it.
            let _ = carrier.communicator.destroy();
        }
        joined.windows.registered.lock().clear();
    }

    /// Ends one-sided calls at once.
    pub(super) fn abort_windows(&self) {
        let Some(joined) = self.shared.joined.get() else { return };
        if let Some(carrier) = joined.windows.carrier.get() {
            let _ = carrier.communicator.abort();
            carrier.post.end(&ended("aborted"));
        }
        joined.windows.registered.lock().clear();
    }
}

fn ended(how: &str) -> Error {
    Error::usage(format!(
        "the communicator was {how} while a put or a wait for signals was under way; it may be done or not; make another \
         communicator to go on"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_was_packed() {
        let region = Region { number: 1, start: 2, bytes: 3, offset: 4, file: 5, inode: 6 };
        for number in [Some(0), Some(8190), None] {
            let word = Word { number, address: 7, bytes: 8, region };
            let read = Word::unpack(&word.pack());
            assert_eq!((read.number, read.address, read.bytes, read.region), (number, 7, 8, region));
        }
    }
}
