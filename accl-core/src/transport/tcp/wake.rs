//! The thread `accl-network`: it watches this process's connections to other hosts, for all of its ranks.
//!
//! **Wake-ups.** A rank spins first, looking at its sockets itself. Before it sleeps it arms its bell, then the watch of each
//! socket that it waits for: once, for the next event. The thread rings the bell.
//!
//! **Silence.** The thread asks the kernel when anything last came from the other end. An end that owes an acknowledgement
//! and has been silent for PEER_TIMEOUT is lost, unless another connection to the same address has heard something: on
//! a slow and crowded link one connection may have to be silent for long. A process that is stopped still has a kernel that
//! answers.
//!
//! **Care.** Links that have something to do while none of their rank's calls looks at them are tended: see `rdma/care.rs`.
//!
//! **Control.** Where this process leads a host, the thread carries what hosts tell each other: see `control.rs`.
//!
//! It ends when there has been nothing to watch for a while.

use super::control::Control;
use crate::encryption::Socket;
use crate::error::{Error, Result};
use crate::os::network;
use crate::os::tcp::{self, Delivery};
use crate::os::{clock, process};
use crate::topo::interface_of;
use crate::transport::shm::Arena;
use crate::types::Rank;
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the thread stays when there is nothing to watch.
const IDLE: Duration = Duration::from_secs(10);
/// How often it looks for what other processes of its host have left in the arena.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How often links are tended, while one has something to do, and while none has.
const CARE: (Duration, Duration) = (LOOK, Duration::from_millis(500));
/// If a look comes so much later than it was to, this process has been stopped, and what it has not heard meanwhile proves nothing.
const LATE: Duration = Duration::from_secs(1);
/// How often silence is measured within the time that it may last.
pub(super) const MEASURES: u32 = 8;

/// A socket that can be watched; not any more when this is dropped, which must be before it is closed.
#[derive(Debug)]
pub(in crate::transport) struct Watched {
    watcher: Arc<Watcher>,
    number: u64,
}

/// Whose silence counts.
#[derive(Debug)]
pub(in crate::transport) struct Listened {
    pub(in crate::transport) socket: Weak<Socket>,
    pub(in crate::transport) peer: Rank,
    /// The peer, for people.
    pub(in crate::transport) whom: String,
    pub(in crate::transport) patience: Option<Duration>,
}

/// What has to be done now and then, though nothing comes.
pub(in crate::transport) trait Tend: Send + Sync + std::fmt::Debug {
    /// Does it, without waiting; true if there is more to do soon.
    fn tend(&self) -> bool;
}

/// What the thread tends, until this is dropped: afterwards it does not have it any more.
#[derive(Debug)]
pub(in crate::transport) struct Tended {
    watcher: Arc<Watcher>,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Watcher {
    epoll: OwnedFd,
    waker: OwnedFd,
    pid: u32,
    waiters: Mutex<Waiters>,
    /// Held while somebody is tended. Whoever has it takes the other locks, and not the other way round.
    tended: Mutex<HashMap<u64, Arc<dyn Tend>>>,
}

#[derive(Debug, Default)]
struct Waiters {
    last_number: u64,
    of_socket: HashMap<u64, Waiter>,
    controls: HashMap<u64, Arc<Control>>,
    /// How many are tended.
    tended: usize,
    ended: bool,
}

#[derive(Debug)]
struct Waiter {
    arena: Weak<Arena>,
    rank: Rank,
    listened: Listened,
    ip: Option<IpAddr>,
}

/// One look around.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round<'a> {
    pub(super) now: Instant,
    /// Since when this process has not been stopped.
    pub(super) awake_since: Instant,
    watcher: &'a Watcher,
}

static WATCHER: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);
/// A packet that was sent so often again without an answer may be one that does not fit through somewhere.
const SUSPICIOUS_ATTEMPTS: u8 = 3;
/// How many times as long a connection may be silent while others to the same host are not.
const CROWD: u32 = 3;
/// The waker's own number.
const WAKER: u64 = 0;

impl Watched {
    /// Watches a connection of `rank`.
    pub(in crate::transport) fn new(
        socket: BorrowedFd<'_>,
        arena: &Arc<Arena>,
        rank: Rank,
        listened: Listened,
    ) -> Result<Self> {
        let ip = network::peer_ip(socket);
        let waiter = Waiter { arena: Arc::downgrade(arena), rank, listened, ip };
        let (watcher, number) = Watcher::enter(|waiters, number| {
            waiters.of_socket.insert(number, waiter);
        })?;
        let watched = Self { watcher, number };
        let flags = epoll::EventFlags::ONESHOT;
        epoll::add(&watched.watcher.epoll, socket, epoll::EventData::new_u64(number), flags)
            .map_err(|errno| Error::system("cannot watch a socket", errno))?;
        Ok(watched)
    }

    /// Rings the rank's bell as soon as something comes, or there is room if that is waited for; at once if that is so already.
    pub(in crate::transport) fn arm(&self, socket: impl AsFd, reads: bool, writes: bool) -> Result<()> {
        let mut flags = epoll::EventFlags::ONESHOT;
        if reads {
            flags |= epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        }
        if writes {
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

impl Tended {
    /// Has the thread tend `what`.
    pub(in crate::transport) fn new(what: Arc<dyn Tend>) -> Result<Self> {
        let (watcher, number) = Watcher::enter(|waiters, _| waiters.tended += 1)?;
        watcher.tended.lock().insert(number, what);
        Ok(Self { watcher, number })
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        self.watcher.waiters.lock().tended -= 1;
        let kept = self.watcher.tended.lock().remove(&self.number);
        drop(kept);
    }
}

/// Has the thread carry a control from here on, until that is over; `control` is made with the number of its events.
pub(super) fn carry(control: Arc<Control>) -> Result<()> {
    let (watcher, number) = Watcher::enter(|waiters, number| {
        waiters.controls.insert(number, control.clone());
    })?;
    control.begin(number);
    watcher.visit(number, &control, &watcher.round(clock::now()));
    Ok(())
}

/// Has what has just happened to the ranks of `arena` told to other hosts at once, if it is this process that tells it.
pub fn tell(arena: &Arena) {
    if arena.members().local() == arena.members().ranks() {
        return;
    }
    let Some(watcher) = WATCHER.lock().clone().filter(|watcher| watcher.pid == process::id()) else { return };
    let concerned = |control: &Arc<Control>| std::ptr::eq(&raw const **control.arena(), arena);
    let controls: Vec<_> = {
        let waiters = watcher.waiters.lock();
        waiters
            .controls
            .iter()
            .filter(|(_, one)| concerned(one))
            .map(|(number, one)| (*number, one.clone()))
            .collect()
    };
    for (number, control) in controls {
        watcher.visit(number, &control, &watcher.round(clock::now()));
    }
}

impl Round<'_> {
    /// How long the address has been silent on the connections for data that lead there.
    pub(super) fn silence_of(&self, ip: Option<IpAddr>) -> Duration {
        let waiters = self.watcher.waiters.lock();
        waiters.silence_of(ip)
    }

    /// Has the thread wake up when there is something to read.
    pub(super) fn watch(&self, number: u64, descriptor: BorrowedFd<'_>, once: bool) -> Result<()> {
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if once {
            flags |= epoll::EventFlags::ONESHOT;
        }
        epoll::add(&self.watcher.epoll, descriptor, epoll::EventData::new_u64(number), flags)
            .map_err(|errno| Error::system("cannot watch a connection between hosts", errno))
    }

    /// Ends that, for descriptors that stay open.
    pub(super) fn unwatch(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.watcher.epoll, descriptor);
    }
}

impl Waiters {
    fn silence_of(&self, ip: Option<IpAddr>) -> Duration {
        let same = self.of_socket.values().filter(|waiter| waiter.ip == ip);
        let heard = same.filter_map(|waiter| tcp::hearing(waiter.listened.socket.upgrade()?.as_fd()));
        heard.map(|heard| heard.silence).min().unwrap_or(Duration::MAX)
    }

    /// Ends communicators with peers that have been silent for too long.
    fn measure(&self, now: Instant, awake_since: Instant) {
        for waiter in self.of_socket.values() {
            let Some(patience) = waiter.listened.patience else { continue };
            let (Some(arena), Some(socket)) = (waiter.arena.upgrade(), waiter.listened.socket.upgrade())
            else {
                continue;
            };
            let Some(heard) = tcp::hearing(socket.as_fd()).filter(|heard| heard.is_due) else { continue };
            let delivery = tcp::delivery(socket.as_fd()).filter(|delivery| delivery.missing_packets > 0);
            let vanishes = delivery.is_some_and(|delivery| delivery.attempts >= SUSPICIOUS_ATTEMPTS);
            if vanishes {
                tcp::allow_fragments(socket.as_fd());
            }
            // Asking all others is for those that have been silent for long.
            if heard.silence <= patience {
                continue;
            }
            let others = self.silence_of(waiter.ip);
            // On a crowded way a connection may wait for long while others are served; not for ever.
            let most = if others > patience { patience } else { patience * CROWD };
            if heard.silence > most
                && (vanishes || others > patience)
                && now - awake_since > most
                && !arena.has_failed()
                && !arena.state_of(waiter.listened.peer).is_gone()
            {
                arena.fail(&waiter.silence(most, delivery, socket.as_fd()));
            }
        }
    }

    fn limit(&self) -> Duration {
        let sockets = self.of_socket.values().filter_map(|waiter| waiter.listened.patience);
        let controls = self.controls.values().filter_map(|control| control.pace());
        let soonest = controls.chain(sockets.map(|patience| patience / MEASURES)).min();
        soonest.map_or(IDLE, |soonest| soonest.clamp(LOOK, IDLE))
    }
}

impl Waiter {
    /// The error of a connection on which nothing comes back, with what is known of it.
    fn silence(&self, time: Duration, delivery: Option<Delivery>, socket: BorrowedFd<'_>) -> Error {
        let error = silence(&self.listened.whom, time);
        let Some(Delivery { acknowledged_bytes, missing_packets, packet_bytes, .. }) = delivery else {
            return error;
        };
        let local = network::local_ip(socket);
        let interfaces = network::interfaces().unwrap_or_default();
        let interface = local.and_then(|ip| interface_of(&interfaces, ip)).unwrap_or("its interface");
        Error::remote(format!(
            "{}; {acknowledged_bytes} bytes were acknowledged, {missing_packets} packets of up to {packet_bytes} bytes are not: if small \
             messages pass and these do not, the way has a smaller MTU than {interface} and does not say so (ICMP is filtered): lower the \
             MTU of {interface}, or set net.ipv4.tcp_mtu_probing=1",
            error.text()
        ))
    }
}

/// The error of ranks that are silent.
pub(super) fn silence(whom: &str, patience: Duration) -> Error {
    Error::remote(format!(
        "no answer from {whom} for {:.1} s (the limit is ACCL_PEER_TIMEOUT): the host is down, or no way leads there; see \
         whether it answers, then shrink or abort this communicator",
        patience.as_secs_f64()
    ))
}

impl Watcher {
    /// The watcher of this process, which has one more thing to watch now.
    fn enter(add: impl FnOnce(&mut Waiters, u64)) -> Result<(Arc<Self>, u64)> {
        let mut slot = WATCHER.lock();
        let known = slot.as_ref().filter(|watcher| watcher.pid == process::id());
        if let Some(watcher) = known {
            let mut waiters = watcher.waiters.lock();
            if !waiters.ended {
                waiters.last_number += 1;
                let number = waiters.last_number;
                add(&mut waiters, number);
                drop(waiters);
                // It may have to look around more often now.
                let _ = rustix::io::write(&watcher.waker, &1u64.to_ne_bytes());
                return Ok((watcher.clone(), number));
            }
        }
        let cannot = |errno| Error::system("cannot make a descriptor to watch sockets", errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
        let waker =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(cannot)?;
        let data = epoll::EventData::new_u64(WAKER);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN | epoll::EventFlags::ET).map_err(cannot)?;
        let number = WAKER + 1;
        let mut waiters = Waiters { last_number: number, ..Waiters::default() };
        add(&mut waiters, number);
        let watcher = Arc::new(Self {
            epoll,
            waker,
            pid: process::id(),
            waiters: Mutex::new(waiters),
            tended: Mutex::default(),
        });
        let serving = watcher.clone();
        std::thread::Builder::new()
            .name("accl-network".to_string())
            .spawn(move || serving.serve())
            .map_err(|error| Error::thread("the thread that watches sockets", error))?;
        *slot = Some(watcher.clone());
        Ok((watcher, number))
    }

    /// A look that measures no silence.
    fn round(&self, now: Instant) -> Round<'_> {
        Round { now, awake_since: now, watcher: self }
    }

    fn visit(&self, number: u64, control: &Control, round: &Round<'_>) {
        if control.visit(round) {
            let over = self.waiters.lock().controls.remove(&number);
            drop(over);
        }
    }

    /// True if there is more to do soon.
    fn tend(&self) -> bool {
        self.tended.lock().values().fold(false, |more, one| one.tend() | more)
    }

    fn serve(&self) {
        let mut events = Vec::with_capacity(64);
        let mut limit = LOOK;
        let mut awake_since = clock::now();
        let (mut last_look, mut last_measure) = (awake_since, awake_since);
        let (mut last_care, mut care) = (awake_since, CARE.0);
        loop {
            let ready = epoll::wait(self.epoll.as_fd(), spare_capacity(&mut events), Some(&timespec(limit)));
            let now = clock::now();
            if now - last_look > limit + LATE {
                awake_since = now;
            }
            let mut waiters = self.waiters.lock();
            // An interrupted wait is like one that found nothing.
            let idle = waiters.of_socket.is_empty() && waiters.controls.is_empty() && waiters.tended == 0;
            if ready.unwrap_or(0) == 0 && idle && limit == IDLE {
                waiters.ended = true;
                return;
            }
            let mut due = now - last_look >= LOOK;
            for event in events.drain(..) {
                let number = event.data.u64();
                due |= number == WAKER || waiters.controls.contains_key(&number);
                let waiter = waiters.of_socket.get(&number);
                if let Some((Some(arena), rank)) = waiter.map(|waiter| (waiter.arena.upgrade(), waiter.rank))
                {
                    arena.block(rank).bell.ring();
                }
            }
            if !due {
                continue;
            }
            last_look = now;
            limit = waiters.limit();
            if now - last_measure >= limit {
                last_measure = now;
                waiters.measure(now, awake_since);
            }
            let controls: Vec<_> =
                waiters.controls.iter().map(|(number, control)| (*number, control.clone())).collect();
            let tends = waiters.tended > 0;
            drop(waiters);
            if tends && now - last_care >= care {
                last_care = now;
                care = if self.tend() { CARE.0 } else { CARE.1 };
            }
            if tends {
                limit = limit.min(care);
            }
            let round = Round { now, awake_since, watcher: self };
            for (number, control) in controls {
                self.visit(number, &control, &round);
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
