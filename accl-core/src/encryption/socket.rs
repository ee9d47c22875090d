//! A stream socket whose bytes are plain, or sealed as records: whoever reads and writes need not know.
//!
//! Sealed, it keeps what a plain one leaves to the kernel. **Reading**: records are received into a buffer, and opened there; so there may be
//! bytes of which the kernel does not know, and whoever is about to wait for the kernel asks [`Socket::has_waiting`] first. A read that gets less
//! than it asked for leaves none. **Writing**: bytes count as gone when the record that has them is in the kernel's hands as a whole. Of one that
//! is there in part the rest is kept, and goes with the next write; so, as with a plain socket, bytes that have not gone must be written
//! again, the same ones first.

use super::key::Session;
use super::record::{MOST_SEALED_BYTES, Opener, RECORD_OVERHEAD_BYTES, Sealer};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, network, socket};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How many bytes are sealed, and received, for one system call at most: enough to make it cheap, and within the second cache.
const BATCH_BYTES: usize = 16 * (MOST_SEALED_BYTES + RECORD_OVERHEAD_BYTES);
/// What is received at once before much has come: connections that only tell of failures need no more.
const FEW_BYTES: usize = 4 << 10;
/// How often `give_up` is asked.
const STEP: Duration = Duration::from_millis(100);

/// A connection.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
    sealed: Option<Box<Sealed>>,
}

/// Both directions have owners of their own, which may be different threads.
#[derive(Debug)]
struct Sealed {
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
}

#[derive(Debug)]
struct Incoming {
    opener: Opener,
    buffer: Vec<u8>,
    /// What is opened, and was not read.
    opened: std::ops::Range<usize>,
    /// What has come and is not opened.
    next: usize,
    end: usize,
}

#[derive(Debug)]
struct Outgoing {
    sealer: Sealer,
    /// Records, all of them but the last as long as can be.
    records: Vec<u8>,
    /// What they carry, in all.
    bytes: usize,
    /// How much of them the kernel has.
    gone: usize,
}

impl From<OwnedFd> for Socket {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor, sealed: None }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Socket {
    /// From here on both directions are sealed. `early` has been received already.
    pub fn seal(&mut self, session: Session, early: Vec<u8>) {
        let Session { sealer, opener } = session;
        let end = early.len();
        let incoming = Incoming { opener, buffer: early, opened: 0..0, next: 0, end };
        let outgoing = Outgoing { sealer, records: Vec::new(), bytes: 0, gone: 0 };
        self.sealed =
            Some(Box::new(Sealed { incoming: Mutex::new(incoming), outgoing: Mutex::new(outgoing) }));
    }

    /// True if what passes is encrypted.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// True if there is something to read, or an error to tell, of which the kernel does not know.
    pub fn has_waiting(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.incoming.lock().has_waiting())
    }

    /// Reads what is there without waiting; `None` when there is nothing yet, 0 bytes at the end.
    pub fn read_some(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match &self.sealed {
            None => socket::read_some(self.as_fd(), buffer),
            Some(sealed) => sealed.incoming.lock().read(self.as_fd(), [buffer, &mut []]),
        }
    }

    /// The same, for one piece of memory and the next.
    pub fn read_some_into(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<Option<usize>> {
        match &self.sealed {
            None => socket::read_some_into(self.as_fd(), first, second),
            Some(sealed) => sealed.incoming.lock().read(self.as_fd(), [first, second]),
        }
    }

    /// Writes what the socket takes of one piece and the next without waiting; `None` when it takes nothing now.
    pub fn write_some(&self, first: &[u8], second: &[u8]) -> io::Result<Option<usize>> {
        match &self.sealed {
            None => socket::write_some(self.as_fd(), first, second),
            Some(sealed) => sealed.outgoing.lock().write(self.as_fd(), [first, second]),
        }
    }

    /// Sends all of `bytes` before `deadline`, asking `give_up` every tenth of a second.
    pub fn send_all(
        &self,
        mut bytes: &[u8],
        deadline: Instant,
        give_up: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        while !bytes.is_empty() {
            match self.write_some(bytes, &[]) {
                Ok(Some(count)) => bytes = &bytes[count..],
                Ok(None) => {
                    network::wait_any(&[(self.as_fd(), true)], STEP)?;
                    give_up()?;
                    if clock::now() >= deadline {
                        return Err(Error::new(ErrorKind::Timeout, "the other side does not listen"));
                    }
                }
                Err(error) => return Err(Error::remote(format!("connection lost: {error}"))),
            }
        }
        Ok(())
    }

    /// Reads exactly `buffer.len()` bytes before `deadline`, asking `give_up` every tenth of a second. A descriptor that comes along, as
    /// it can where nothing is sealed, is returned.
    pub fn receive_exact(
        &self,
        buffer: &mut [u8],
        deadline: Instant,
        give_up: &dyn Fn() -> Result<()>,
    ) -> Result<Option<OwnedFd>> {
        if !self.is_sealed() {
            return socket::receive_exact(self.as_fd(), buffer, deadline, give_up);
        }
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_some(&mut buffer[filled..]) {
                Ok(Some(0)) => return Err(Error::remote("the other side closed the connection")),
                Ok(Some(count)) => filled += count,
                Ok(None) => {
                    if socket::wait_readable(&[self.as_fd()], STEP)? {
                        continue;
                    }
                    give_up()?;
                    if clock::now() >= deadline {
                        return Err(Error::new(ErrorKind::Timeout, "no answer in time"));
                    }
                }
                Err(error) => return Err(Error::remote(format!("connection lost: {error}"))),
            }
        }
        Ok(None)
    }
}

impl Incoming {
    fn has_waiting(&self) -> bool {
        let received = &self.buffer[self.next..self.end];
        let whole = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes <= received.len());
        !self.opened.is_empty() || self.opener.record_bytes(received).map_or(true, whole)
    }

    /// Reads what has come, and what comes with one system call.
    fn read(&mut self, socket: BorrowedFd<'_>, mut places: [&mut [u8]; 2]) -> io::Result<Option<usize>> {
        let mut filled = self.take(&mut places);
        if filled > 0 && places.iter().all(|place| place.is_empty()) {
            return Ok(Some(filled));
        }
        let received = self.receive(socket);
        filled += self.take(&mut places);
        if filled > 0 {
            return Ok(Some(filled));
        }
        // What does not open is an error when all before it has been read.
        self.opener.record_bytes(&self.buffer[self.next..self.end])?;
        match received? {
            Some(0) if self.next == self.end => Ok(Some(0)),
            Some(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it ended amid what was encrypted as a whole",
            )),
            // A part of a record is nothing yet.
            _ => Ok(None),
        }
    }

    /// Moves what has come to where it is wanted, which is shortened by that; how much. What does not open ends it.
    fn take(&mut self, places: &mut [&mut [u8]; 2]) -> usize {
        let mut filled = 0;
        for place in places {
            while !place.is_empty() {
                if self.opened.is_empty() && !self.open().unwrap_or(false) {
                    return filled;
                }
                let count = self.opened.len().min(place.len());
                let (now, later) = std::mem::take(place).split_at_mut(count);
                now.copy_from_slice(&self.buffer[self.opened.start..self.opened.start + count]);
                self.opened.start += count;
                *place = later;
                filled += count;
            }
        }
        filled
    }

    /// Opens the next record, if it has come as a whole.
    fn open(&mut self) -> io::Result<bool> {
        let received = &mut self.buffer[self.next..self.end];
        let Some(bytes) = self.opener.record_bytes(received)?.filter(|bytes| *bytes <= received.len()) else {
            return Ok(false);
        };
        let carried = self.opener.open(&mut received[..bytes])?.len();
        let start = self.next + super::record::HEAD_BYTES;
        self.opened = start..start + carried;
        self.next += bytes;
        Ok(true)
    }

    /// Receives what is there, as far as there is room; nothing is opened.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        // Whatever fills the room may have more behind it.
        let is_full = self.end == self.buffer.len();
        // At most the beginning of one record.
        self.buffer.copy_within(self.next..self.end, 0);
        (self.next, self.end) = (0, self.end - self.next);
        self.opened = 0..0;
        if is_full {
            let room = if self.buffer.len() < FEW_BYTES { FEW_BYTES } else { BATCH_BYTES };
            self.buffer.resize(room, 0);
        }
        let received = socket::read_some(socket, &mut self.buffer[self.end..])?;
        self.end += received.unwrap_or(0);
        Ok(received)
    }
}

impl Outgoing {
    fn write(&mut self, socket: BorrowedFd<'_>, pieces: [&[u8]; 2]) -> io::Result<Option<usize>> {
        let offered = pieces[0].len() + pieces[1].len();
        if self.records.is_empty() {
            if offered == 0 {
                return Ok(Some(0));
            }
            self.seal(pieces);
        } else if offered < self.bytes - self.carried() {
            // It cannot be taken back, and what follows it would be taken for its end.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "what was half sent was not sent on"));
        }
        let before = self.carried();
        let Some(count) = socket::write_some(socket, &self.records[self.gone..], &[])? else {
            return Ok(None);
        };
        self.gone += count;
        let carried = self.carried() - before;
        if self.gone == self.records.len() {
            self.records.clear();
            (self.bytes, self.gone) = (0, 0);
        }
        // The kernel has no room for more if it has a part of a record.
        Ok(if carried > 0 { Some(carried) } else { None })
    }

    /// Seals as much as goes at once.
    fn seal(&mut self, [first, second]: [&[u8]; 2]) {
        let (mut first, mut second) = (first, second);
        while !(first.is_empty() && second.is_empty()) && self.records.len() < BATCH_BYTES {
            let (now, later) = first.split_at(first.len().min(MOST_SEALED_BYTES));
            let (now_too, later_too) = second.split_at(second.len().min(MOST_SEALED_BYTES - now.len()));
            self.sealer.seal([now, now_too], &mut self.records);
            self.bytes += now.len() + now_too.len();
            (first, second) = (later, later_too);
        }
    }

    /// What those records carry that the kernel has as a whole.
    fn carried(&self) -> usize {
        if self.gone == self.records.len() {
            self.bytes
        } else {
            self.gone / (MOST_SEALED_BYTES + RECORD_OVERHEAD_BYTES) * MOST_SEALED_BYTES
        }
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
