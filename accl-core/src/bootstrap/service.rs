//! What a process does for others, and the sockets by which they find it: roots of unique ids made here, shared memory
//! handed out, connections taken in for data.
//!
//! A thread (`worker.rs`) starts when first needed, and ends when it has had nothing to do for a while; then the local
//! socket is gone, too. The TCP port is open only as long as there is something that other hosts may want: it is
//! one port for all, and stays the same meanwhile, since others have been told of it.

use super::auth::{Secret, Token};
use super::links::LinkSink;
use super::root::{Outbox, Root};
use super::tree::{Roster, Shelf};
use super::worker::Worker;
use crate::config::Network;
use crate::error::{Error, Result};
use crate::os::{clock, network, socket};
use crate::topo::Place;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The service as the rest of the process sees it.
#[derive(Debug)]
pub(super) struct Service {
    name: String,
    pub(super) process: Place,
    pub(super) books: Mutex<Books>,
}

/// What the service is about.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) roots: HashMap<Token, Gathering>,
    pub(super) memory: HashMap<Token, (Secret, Arc<OwnedFd>)>,
    pub(super) links: HashMap<Token, Reception>,
    pub(super) shelves: HashMap<Token, Shelving>,
    /// What other threads want to be sent.
    pub(super) outbox: Outbox,
    pub(super) port: Option<Port>,
    /// Connections cannot be accepted.
    pub(super) refused: Option<Refused>,
    /// Those who have told others of the port.
    holds: usize,
    /// Of the running thread: wakes it.
    pub(super) waker: Option<Arc<OwnedFd>>,
}

/// Since when no connection could be accepted, when that was tried last, and why.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) since: Instant,
    pub(super) latest: Instant,
    pub(super) error: Error,
}

/// A root, and how its ranks come to it.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) secret: Secret,
    pub(super) root: Root,
    pub(super) door: Door,
    /// A rank has come from another host.
    pub(super) foreign: bool,
}

/// A shelf for the list of ranks, and for whom it is open.
#[derive(Debug)]
pub(super) struct Shelving {
    pub(super) secret: Secret,
    pub(super) shelf: Shelf,
    /// Which of several gatherings with one secret.
    generation: u64,
    holders: usize,
    came: Arc<OwnedFd>,
}

/// By which sockets the ranks of a root come.
#[derive(Clone, Debug)]
pub(super) enum Door {
    /// The local one alone.
    Local,
    /// The process's port, too.
    Open,
    /// A port that was agreed upon beforehand. What happened there is not remembered: the same ranks may meet again.
    At(Arc<TcpListener>),
}

/// Who waits for connections that carry data: ranks of one communicator in this process.
#[derive(Debug)]
pub(super) struct Reception {
    pub(super) secret: Secret,
    pub(super) ranks: BTreeMap<u32, Arc<dyn LinkSink>>,
}

/// The TCP port.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// One for all addresses, or one for each that the settings allow.
    pub(super) listeners: Vec<Arc<TcpListener>>,
    pub(super) number: u16,
}

static SERVICE: Mutex<Option<Arc<Service>>> = Mutex::new(None);

/// An error (System) if this process has not been able to take connections from other ranks for a while: who waits for these would
/// wait in vain. A lack of descriptors that passes is none.
pub fn check_service() -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let service = SERVICE.lock().clone();
    let refused = service.and_then(|service| service.books.lock().refused.clone());
    let Some(Refused { since, latest, error }) = refused else { return Ok(()) };
    // It is tried again and again while somebody is in the queue.
    let goes_on = clock::now() - latest < PATIENCE;
    if goes_on && latest - since > PATIENCE { Err(error) } else { Ok(()) }
}

impl Service {
    /// The service of this process. A forked child gets its own.
    pub(super) fn of_process() -> Result<Arc<Self>> {
        let mut slot = SERVICE.lock();
        let process = Place::here()?;
        if let Some(service) = slot.as_ref().filter(|service| service.process == process) {
            return Ok(service.clone());
        }
        let service = Arc::new(Self { name: process.service_name(), process, books: Mutex::default() });
        *slot = Some(service.clone());
        Ok(service)
    }

    /// Opens a root for those who know `secret`.
    pub(super) fn expect_ranks(self: &Arc<Self>, secret: Secret, door: Door) -> Result<()> {
        self.change(|books| {
            let gathering = Gathering { secret, root: Root::new(), door, foreign: false };
            books.roots.insert(secret.token(), gathering);
        })
    }

    /// The socket of a root that was agreed upon beforehand, if it is open.
    pub(super) fn agreed_door(&self, secret: Secret) -> Option<Arc<TcpListener>> {
        match &self.books.lock().roots.get(&secret.token())?.door {
            Door::At(listener) => Some(listener.clone()),
            Door::Local | Door::Open => None,
        }
    }

    /// Hands `file` to everybody who knows `secret`, until it is withdrawn.
    pub(super) fn offer_memory(self: &Arc<Self>, secret: Secret, file: OwnedFd) -> Result<()> {
        self.change(|books| {
            books.memory.insert(secret.token(), (secret, Arc::new(file)));
        })
    }

    /// Ends such an offer.
    pub(super) fn withdraw_memory(&self, secret: Secret) {
        self.books.lock().memory.remove(&secret.token());
    }

    /// Hands connections of those who know `secret` and want `rank` to `sink`, until it is withdrawn.
    pub(super) fn expect_links(
        self: &Arc<Self>,
        secret: Secret,
        rank: u32,
        sink: Arc<dyn LinkSink>,
    ) -> Result<()> {
        self.change(|books| {
            let reception = books.links.entry(secret.token());
            let reception = reception.or_insert_with(|| Reception { secret, ranks: BTreeMap::new() });
            reception.ranks.insert(rank, sink);
        })
    }

    /// Ends that.
    pub(super) fn withdraw_links(&self, secret: Secret, rank: u32) {
        let mut books = self.books.lock();
        let token = secret.token();
        let Some(reception) = books.links.get_mut(&token) else { return };
        // Dropped when nothing is locked: what a sink does at its end is not for us to know.
        let sink = reception.ranks.remove(&rank);
        if reception.ranks.is_empty() {
            books.links.remove(&token);
            books.close_unused_port();
        }
        drop(books);
        drop(sink);
    }

    /// Opens the shelf for those who know `secret`, for one more rank: its generation, and the descriptor that says
    /// that the list has come, which is `came` for the first rank.
    pub(super) fn open_shelf(self: &Arc<Self>, secret: Secret, came: OwnedFd) -> Result<(u64, Arc<OwnedFd>)> {
        let mut opened = None;
        self.change(|books| {
            let old = books.shelves.get(&secret.token());
            let last = old.map_or(0, |shelving| shelving.generation);
            // Ranks open it before any of them can have the list: that one is of an earlier gathering.
            if old.is_none_or(|shelving| shelving.shelf.roster().is_some()) {
                let shelf = Shelf::default();
                let shelving =
                    Shelving { secret, shelf, generation: last + 1, holders: 0, came: Arc::new(came) };
                books.shelves.insert(secret.token(), shelving);
            }
            if let Some(shelving) = books.shelves.get_mut(&secret.token()) {
                shelving.holders += 1;
                opened = Some((shelving.generation, shelving.came.clone()));
            }
        })?;
        opened.ok_or_else(|| Error::internal("a shelf that is not there"))
    }

    /// Puts the list there, for the other ranks of this process and for those who ask.
    pub(super) fn put_roster(&self, token: &Token, generation: u64, roster: &Roster) {
        let mut books = self.books.lock();
        let Some(shelving) = books.shelves.get_mut(token) else { return };
        if shelving.generation != generation || shelving.shelf.roster().is_some() {
            return;
        }
        let outbox = shelving.shelf.handle_roster(roster.clone());
        wake(&shelving.came);
        books.outbox.extend(outbox);
        if let (Some(waker), false) = (&books.waker, books.outbox.is_empty()) {
            wake(waker);
        }
    }

    /// The list, if it has come.
    pub(super) fn roster(&self, token: &Token, generation: u64) -> Option<Roster> {
        let books = self.books.lock();
        let shelving = books.shelves.get(token).filter(|shelving| shelving.generation == generation)?;
        shelving.shelf.roster().cloned()
    }

    /// One rank less; the last one closes it.
    pub(super) fn close_shelf(&self, token: &Token, generation: u64) {
        let mut books = self.books.lock();
        let shelving = books.shelves.get_mut(token).filter(|shelving| shelving.generation == generation);
        let Some(shelving) = shelving else { return };
        shelving.holders -= 1;
        if shelving.holders == 0 {
            books.shelves.remove(token);
        }
    }

    /// Keeps the TCP port open until [`Service::release_port`], on the addresses of `only`, or on all if there are none. The inner error
    /// is the system's refusal; it must be released all the same.
    pub(super) fn hold_port(
        self: &Arc<Self>,
        settings: &Network,
        only: &[SocketAddr],
    ) -> Result<std::io::Result<u16>> {
        let mut outcome = Ok(0);
        self.change(|books| {
            books.holds += 1;
            outcome = books.open_port(settings, only, self.process.pid);
        })?;
        Ok(outcome)
    }

    /// Lets go of the port: it is closed once nobody needs it.
    pub(super) fn release_port(&self) {
        let mut books = self.books.lock();
        books.holds = books.holds.saturating_sub(1);
        books.close_unused_port();
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Books)) -> Result<()> {
        let mut books = self.books.lock();
        if let Some(waker) = &books.waker {
            wake(waker);
        } else {
            let listener = socket::listen(&self.name)?;
            let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|errno| Error::system("cannot make a descriptor to wake a thread", errno))?;
            let waker = Arc::new(waker);
            let thread = Worker::new(self.clone(), listener, waker.clone());
            std::thread::Builder::new()
                .name("accl-service".to_string())
                .spawn(move || thread.serve())
                .map_err(|error| Error::thread("the thread by which ranks find each other", error))?;
            books.waker = Some(waker);
        }
        change(&mut books);
        Ok(())
    }
}

impl Books {
    /// True if there is something that other hosts may come for.
    fn needs_port(&self) -> bool {
        // Late ranks of other hosts are to hear what became of an id only if there were any of them.
        let open = |gathering: &Gathering| {
            matches!(gathering.door, Door::Open) && (gathering.foreign || gathering.root.ended_at().is_none())
        };
        self.holds > 0 || !self.links.is_empty() || self.roots.values().any(open)
    }

    fn open_port(&mut self, settings: &Network, only: &[SocketAddr], start: u32) -> std::io::Result<u16> {
        if self.port.is_none() {
            let ports = settings.ports.as_ref();
            let (listeners, number) = if only.is_empty() {
                let (listener, number) = network::listen_any(ports, settings.family, start)?;
                (vec![listener], number)
            } else {
                network::listen_on(only, ports, start)?
            };
            self.port = Some(Port { listeners: listeners.into_iter().map(Arc::new).collect(), number });
        }
        Ok(self.port.as_ref().map_or(0, |port| port.number))
    }

    /// Closes the port if it is of no use any more.
    pub(super) fn close_unused_port(&mut self) {
        if self.needs_port() {
            return;
        }
        if let (Some(port), Some(waker)) = (self.port.take(), &self.waker) {
            // At once, though the thread may still be looking at the socket.
            port.listeners.iter().for_each(|listener| network::stop_listening(listener));
            wake(waker);
        }
    }

    /// True if there is nothing to do for anybody.
    pub(super) fn are_empty(&self) -> bool {
        self.roots.is_empty() && self.memory.is_empty() && self.shelves.is_empty() && !self.needs_port()
    }

    /// How many ranks may be on their way here.
    pub(super) fn expected(&self) -> usize {
        self.roots.values().map(|gathering| gathering.root.expected()).max().unwrap_or(0)
    }

    /// The root that a token stands for.
    pub(super) fn root(&mut self, token: &Token) -> Result<&mut Root> {
        let gathering = self.roots.get_mut(token).ok_or_else(|| Error::remote("no such id"))?;
        Ok(&mut gathering.root)
    }

    /// The same for a rank that joins, perhaps from another host.
    pub(super) fn root_for(&mut self, token: &Token, foreign: bool) -> Result<&mut Root> {
        let gathering = self.roots.get_mut(token).ok_or_else(|| Error::remote("no such id"))?;
        gathering.foreign |= foreign;
        Ok(&mut gathering.root)
    }

    /// The secret behind a token.
    pub(super) fn secret_of(&self, token: &Token) -> Option<Secret> {
        let root = self.roots.get(token).map(|gathering| gathering.secret);
        let memory = || self.memory.get(token).map(|(secret, _)| *secret);
        let links = || self.links.get(token).map(|reception| reception.secret);
        let shelf = || self.shelves.get(token).map(|shelving| shelving.secret);
        root.or_else(memory).or_else(links).or_else(shelf)
    }
}

fn wake(waker: &OwnedFd) {
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

/// What is said over TCP by those who prove nothing, counted: see [`super::strays`].
pub(super) mod strays {
    use crate::sync::prim::{AtomicU64, Ordering};

    static COUNT: AtomicU64 = AtomicU64::new(0);

    /// One more; how many there were before.
    pub(in super::super) fn count_one() -> u64 {
        COUNT.fetch_add(1, Ordering::Relaxed)
    }

    /// How many there were.
    pub(in super::super) fn count() -> u64 {
        COUNT.load(Ordering::Relaxed)
    }
}
