//! Wakes ranks that sleep until a socket is ready: one thread of the process watches the sockets for all of them.
//!
//! A rank spins first, looking at its sockets itself. Before it sleeps it arms its bell, then the watch of each socket that
//! it waits for: once, for the next event. The thread rings the bell. It ends when no socket has been watched for a while.

use crate::error::{Error, Result};
use crate::os::process;
use crate::transport::shm::Arena;
use crate::types::Rank;
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// How long the thread stays when there is nothing to watch, in seconds.
const IDLE_SECONDS: i64 = 10;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// Something to read.
    Read,
    /// The same, or room to write.
    ReadOrWrite,
}

/// A socket that can be watched; not any more when this is dropped, which must be before it is closed.
#[derive(Debug)]
pub(super) struct Watched {
    watcher: Arc<Watcher>,
    number: u64,
}

#[derive(Debug)]
struct Watcher {
    epoll: OwnedFd,
    pid: u32,
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    last_number: u64,
    of_socket: HashMap<u64, (Weak<Arena>, Rank)>,
    ended: bool,
}

static WATCHER: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);

impl Watched {
    pub(super) fn new(socket: BorrowedFd<'_>, arena: &Arc<Arena>, rank: Rank) -> Result<Self> {
        let (watcher, number) = Watcher::enter(arena, rank)?;
        let watched = Self { watcher, number };
        let flags = epoll::EventFlags::ONESHOT;
        epoll::add(&watched.watcher.epoll, socket, epoll::EventData::new_u64(number), flags)
            .map_err(|errno| Error::system("cannot watch a socket", errno))?;
        Ok(watched)
    }

    /// Rings the rank's bell at the next event, or at once if the socket is ready.
    pub(super) fn arm(&self, socket: &OwnedFd, readiness: Readiness) -> Result<()> {
        let mut flags = epoll::EventFlags::ONESHOT | epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if readiness == Readiness::ReadOrWrite {
            flags |= epoll::EventFlags::OUT;
        }
        epoll::modify(&self.watcher.epoll, socket, epoll::EventData::new_u64(self.number), flags)
            .map_err(|errno| Error::system("cannot watch a socket", errno))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Closing the socket takes it out of the kernel's list.
        self.watcher.waiters.lock().of_socket.remove(&self.number);
    }
}

impl Watcher {
    /// The watcher of this process, which has one more socket now.
    fn enter(arena: &Arc<Arena>, rank: Rank) -> Result<(Arc<Self>, u64)> {
        let mut slot = WATCHER.lock();
        if let Some(watcher) = slot.as_ref().filter(|watcher| watcher.pid == process::id())
            && let Some(number) = watcher.add(arena, rank)
        {
            return Ok((watcher.clone(), number));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::system("cannot make a descriptor to watch sockets", errno))?;
        let watcher = Arc::new(Self { epoll, pid: process::id(), waiters: Mutex::default() });
        let number = watcher.add(arena, rank).unwrap_or_default();
        let serving = watcher.clone();
        std::thread::Builder::new()
            .name("accl-network".to_string())
            .spawn(move || serving.serve())
            .map_err(|error| Error::system("cannot start the thread that watches sockets", error))?;
        *slot = Some(watcher.clone());
        Ok((watcher, number))
    }

    /// None if the thread has ended.
    fn add(&self, arena: &Arc<Arena>, rank: Rank) -> Option<u64> {
        let mut waiters = self.waiters.lock();
        if waiters.ended {
            return None;
        }
        waiters.last_number += 1;
        let number = waiters.last_number;
        waiters.of_socket.insert(number, (Arc::downgrade(arena), rank));
        Some(number)
    }

    fn serve(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let limit = Timespec { tv_sec: IDLE_SECONDS, tv_nsec: 0 };
            let ready = epoll::wait(self.epoll.as_fd(), spare_capacity(&mut events), Some(&limit));
            let mut waiters = self.waiters.lock();
            // An interrupted wait is like one that found nothing.
            if ready.unwrap_or(0) == 0 && waiters.of_socket.is_empty() {
                waiters.ended = true;
                return;
            }
            for event in events.drain(..) {
                let number = event.data.u64();
                let waiter = waiters.of_socket.get(&number);
                if let Some((Some(arena), rank)) = waiter.map(|(arena, rank)| (arena.upgrade(), *rank)) {
                    arena.block(rank).bell.ring();
                }
            }
        }
    }
}
