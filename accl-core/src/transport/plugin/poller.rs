//! The thread `accl-plugin`: it polls links while nobody else does, since a plugin has nothing to wait for.
//!
//! A rank that is about to sleep says so; from then on its links are looked at every half millisecond, and its bell rings when something has
//! happened. Links that have something under way without anybody waiting for it are looked at less and less often; all others when something comes on
//! their TCP connection. The thread ends when there have been no links for a while.

use super::link::Core;
use crate::error::{Error, Result};
use crate::os::process;
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often links are polled that a rank sleeps for.
const NAP: Duration = Duration::from_micros(500);
/// How often links are that have something under way: at first, and at most, twice as long each time that nothing happens.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
/// How long the thread stays when there are no links.
const IDLE: Duration = Duration::from_secs(10);
/// The waker's own number.
const WAKER: u64 = 0;

/// How soon a link is to be looked at again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Urgency {
    /// When something comes.
    None,
    /// Something is under way.
    Restless,
    /// A rank waits for it.
    Waited,
    /// Something has just happened.
    Busy,
}

/// A link that is polled until this is dropped: afterwards the thread does not have it any more.
#[derive(Debug)]
pub(super) struct Polled {
    poller: Arc<Poller>,
    number: u64,
}

/// Wakes the thread. Takes no lock: it is used by links that are being tended.
#[derive(Debug)]
pub(super) struct Waker(Arc<Poller>);

impl Waker {
    pub(super) fn wake(&self) {
        self.0.wake();
    }
}

#[derive(Debug)]
struct Poller {
    epoll: OwnedFd,
    waker: OwnedFd,
    pid: u32,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    last_number: u64,
    polled: HashMap<u64, Entry>,
    ended: bool,
}

#[derive(Debug)]
struct Entry {
    core: Weak<Mutex<Core>>,
    /// The connection is among those that are watched; and an event of it is waited for.
    is_added: bool,
    is_watched: bool,
}

static POLLER: Mutex<Option<Arc<Poller>>> = Mutex::new(None);

impl Polled {
    pub(super) fn new(core: &Arc<Mutex<Core>>) -> Result<Self> {
        let entry = Entry { core: Arc::downgrade(core), is_added: false, is_watched: false };
        let mut slot = POLLER.lock();
        if let Some(poller) = slot.as_ref().filter(|poller| poller.pid == process::id()) {
            let mut links = poller.links.lock();
            if !links.ended {
                let number = links.add(entry);
                drop(links);
                return Ok(Self { poller: poller.clone(), number });
            }
        }
        let mut links = Links::default();
        let number = links.add(entry);
        let poller = Arc::new(Poller::new(links)?);
        let serving = poller.clone();
        std::thread::Builder::new()
            .name("accl-plugin".to_string())
            .spawn(move || serving.serve())
            .map_err(|error| Error::thread("the thread that polls a network plugin", error))?;
        *slot = Some(poller.clone());
        Ok(Self { poller, number })
    }

    /// Has all links looked at.
    pub(super) fn wake(&self) {
        self.poller.wake();
    }

    /// What does so without this.
    pub(super) fn waker(&self) -> Waker {
        Waker(self.poller.clone())
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        // Closing its connection takes that out of the kernel's list.
        self.poller.links.lock().polled.remove(&self.number);
    }
}

impl Links {
    fn add(&mut self, entry: Entry) -> u64 {
        self.last_number += 1;
        self.polled.insert(self.last_number, entry);
        self.last_number
    }
}

impl Poller {
    fn new(links: Links) -> Result<Self> {
        let cannot = |errno| Error::system("cannot make a descriptor to watch sockets", errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waker = rustix::event::eventfd(0, flags).map_err(cannot)?;
        let data = epoll::EventData::new_u64(WAKER);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN | epoll::EventFlags::ET).map_err(cannot)?;
        Ok(Self { epoll, waker, pid: process::id(), links: Mutex::new(links) })
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    fn serve(&self) {
        let mut events = Vec::with_capacity(64);
        let (mut limit, mut rest) = (REST.0, REST.0);
        loop {
            let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
            let ready = epoll::wait(self.epoll.as_fd(), spare_capacity(&mut events), Some(&timeout));
            // The lock is held while links are tended: who drops one is the last to have it.
            let mut links = self.links.lock();
            if ready.unwrap_or(0) == 0 && links.polled.is_empty() && limit == IDLE {
                links.ended = true;
                return;
            }
            for event in events.drain(..) {
                rest = REST.0;
                if let Some(entry) = links.polled.get_mut(&event.data.u64()) {
                    entry.is_watched = false;
                }
            }
            let mut urgency = Urgency::None;
            for (number, entry) in &mut links.polled {
                urgency = urgency.max(self.tend(*number, entry));
            }
            drop(links);
            limit = match urgency {
                Urgency::None => IDLE,
                Urgency::Restless => {
                    rest = (rest * 2).min(REST.1);
                    rest
                }
                Urgency::Waited => NAP,
                Urgency::Busy => {
                    rest = REST.0;
                    NAP
                }
            };
        }
    }

    fn tend(&self, number: u64, entry: &mut Entry) -> Urgency {
        let Some(core) = entry.core.upgrade() else { return Urgency::None };
        // Whoever has the lock does the same.
        let Some(mut core) = core.try_lock() else { return Urgency::Restless };
        let urgency = core.tend();
        if !entry.is_watched && !core.is_left_alone() {
            self.watch(number, entry, &core);
        }
        urgency
    }

    /// Has the thread wake up when something comes on the link's connection, once.
    fn watch(&self, number: u64, entry: &mut Entry, core: &Core) {
        let Ok(Some(socket)) = core.tcp.socket() else { return };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(number);
        let watched = if entry.is_added {
            epoll::modify(&self.epoll, socket, data, flags)
        } else {
            epoll::add(&self.epoll, socket, data, flags)
        };
        (entry.is_added, entry.is_watched) = (true, watched.is_ok());
    }
}
