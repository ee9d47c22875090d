//! The one local socket and thread of a process: roots of unique ids made here, and shared memory handed out.
//!
//! The thread starts when first needed, and ends when it has had nothing to do for a while; then the socket is
//! gone, too. All decisions are taken in [`Root`]; here are connections, frames and proofs.

use super::auth::{Nonce, Role, Secret, Token};
use super::root::{Connection, JoinRequest, Outbox, Root};
use super::wire::{MEMBER_BYTES, Message, STRANGER_BYTES};
use crate::error::{Error, Result};
use crate::os::{clock, random, socket};
use crate::topo::Place;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a used or failed unique id is remembered, so that late ranks hear what became of it.
const REMEMBER: Duration = Duration::from_secs(30);
/// How long a connection may take to prove itself.
const STRANGER_PATIENCE: Duration = Duration::from_secs(10);
/// How long the thread stays when it has nothing to do: splits and short-lived communicators need it again soon.
const IDLE_PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time that have not proved themselves.
const MOST_STRANGERS: usize = 256;
/// Connections that are accepted before those that are there are heard.
const MOST_ACCEPTED: usize = 64;
/// How long to leave callers in the queue when none can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The service as the rest of the process sees it.
#[derive(Debug)]
pub(super) struct Service {
    name: String,
    process: Place,
    books: Mutex<Books>,
}

/// What the service is about.
#[derive(Debug, Default)]
struct Books {
    roots: HashMap<Token, (Secret, Root)>,
    memory: HashMap<Token, (Secret, Arc<OwnedFd>)>,
    /// Of the running thread: wakes it.
    waker: Option<Arc<OwnedFd>>,
}

static SERVICE: Mutex<Option<Arc<Service>>> = Mutex::new(None);

impl Service {
    /// The service of this process. A forked child gets its own.
    pub(super) fn of_process() -> Result<Arc<Self>> {
        let mut slot = SERVICE.lock();
        let process = Place::here()?;
        if let Some(service) = slot.as_ref().filter(|service| service.process == process) {
            return Ok(service.clone());
        }
        let nonce = u64::from_ne_bytes(random::bytes()?);
        let name = format!("accl-{}-{nonce:016x}", process.pid);
        let service = Arc::new(Self { name, process, books: Mutex::default() });
        *slot = Some(service.clone());
        Ok(service)
    }

    /// The local address at which the service listens while it has something to do.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Opens a root for those who know `secret`.
    pub(super) fn expect_ranks(self: &Arc<Self>, secret: Secret) -> Result<()> {
        self.change(|books| {
            books.roots.insert(secret.token(), (secret, Root::new()));
        })
    }

    /// Closes a root that nobody will come to, if it is one of this process.
    pub(super) fn expect_nobody(&self, secret: Secret) {
        self.books.lock().roots.remove(&secret.token());
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
                .map_err(|error| {
                    Error::system("cannot start the thread by which ranks find each other", error)
                })?;
            books.waker = Some(waker);
        }
        change(&mut books);
        Ok(())
    }
}

fn wake(waker: &OwnedFd) {
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

/// How far a connection has come.
#[derive(Debug)]
enum Stage {
    Stranger { since: Instant },
    Challenged { since: Instant, secret: Secret, token: Token, client: Nonce, server: Nonce },
    Member { token: Token },
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    stage: Stage,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Goes with the first byte of the outbox.
    descriptor: Option<Arc<OwnedFd>>,
    /// Close once the outbox is empty.
    leaving: bool,
}

/// The thread.
#[derive(Debug)]
struct Worker {
    service: Arc<Service>,
    /// None once the service has retired.
    listener: Option<UnixListener>,
    waker: Arc<OwnedFd>,
    idle_since: Option<Instant>,
    clients: BTreeMap<Connection, Client>,
    last_connection: Connection,
}

impl Worker {
    fn new(service: Arc<Service>, listener: UnixListener, waker: Arc<OwnedFd>) -> Self {
        Self {
            service,
            listener: Some(listener),
            waker,
            idle_since: None,
            clients: BTreeMap::new(),
            last_connection: 0,
        }
    }

    fn serve(mut self) {
        loop {
            let now = clock::now();
            self.tick(now);
            if self.retire(now) {
                return;
            }
            let (listening, readable) = self.wait(now);
            if listening {
                self.accept();
            }
            for connection in readable {
                self.read(connection);
            }
            self.flush();
        }
    }

    /// Forgets what is over; true (and no longer reachable) if there has been nothing to serve for a while.
    fn retire(&mut self, now: Instant) -> bool {
        let mut books = self.service.books.lock();
        let over = |root: &Root| root.ended_at().is_some_and(|at| now >= at + REMEMBER);
        books.roots.retain(|_, (_, root)| !over(root));
        let idle = books.roots.is_empty() && books.memory.is_empty() && self.clients.is_empty();
        if !idle {
            self.idle_since = None;
            return false;
        }
        if now < *self.idle_since.get_or_insert(now) + IDLE_PATIENCE {
            return false;
        }
        // The name is free before anybody can start the service again.
        self.listener = None;
        books.waker = None;
        true
    }

    /// Time limits: of gatherings, and of connections that do not prove themselves.
    fn tick(&mut self, now: Instant) {
        let mut outbox = Outbox::new();
        for (_, root) in self.service.books.lock().roots.values_mut() {
            outbox.extend(root.handle_time(now));
        }
        self.post(outbox);
        self.clients.retain(|_, client| match client.stage {
            Stage::Stranger { since } | Stage::Challenged { since, .. } => now < since + STRANGER_PATIENCE,
            Stage::Member { .. } => true,
        });
        self.flush();
    }

    /// Waits for something to do: a new connection, or connections to be read.
    fn wait(&self, now: Instant) -> (bool, Vec<Connection>) {
        let deadline = self.service.books.lock().roots.values().filter_map(|(_, root)| root.deadline()).min();
        let longest = Duration::from_secs(5);
        let timeout =
            deadline.map_or(longest, |deadline| deadline.saturating_duration_since(now).min(longest));
        let connections: Vec<_> = self.clients.keys().copied().collect();
        let Some(listener) = &self.listener else { return (false, Vec::new()) };
        let mut polled = vec![
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
        ];
        for client in self.clients.values() {
            let flags = if client.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            polled.push(PollFd::new(&client.stream, flags));
        }
        let limit = rustix::time::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        if rustix::event::poll(&mut polled, Some(&limit)).is_err() {
            return (false, Vec::new());
        }
        if !polled[1].revents().is_empty() {
            let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        }
        let ready =
            connections.into_iter().zip(&polled[2..]).filter(|(_, entry)| !entry.revents().is_empty());
        (!polled[0].revents().is_empty(), ready.map(|(connection, _)| connection).collect())
    }

    fn accept(&mut self) {
        for _ in 0..MOST_ACCEPTED {
            let stream = match self.listener.as_ref().map(UnixListener::accept) {
                Some(Ok((stream, _))) => stream,
                Some(Err(error)) if !socket::is_transient(&error) => {
                    // No descriptors, say: whoever waits in the queue would wake us again at once.
                    clock::sleep(ACCEPT_PAUSE);
                    return;
                }
                _ => return,
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.make_room();
            self.last_connection += 1;
            let client = Client {
                stream,
                stage: Stage::Stranger { since: clock::now() },
                inbox: Vec::new(),
                outbox: Vec::new(),
                descriptor: None,
                leaving: false,
            };
            self.clients.insert(self.last_connection, client);
        }
    }

    /// Lets the one go who has been silent for longest if there are too many strangers: ranks say who they are at
    /// once, so that a crowd that says nothing does not keep them out.
    fn make_room(&mut self) {
        let strangers =
            self.clients.iter().filter(|(_, client)| !matches!(client.stage, Stage::Member { .. }));
        if strangers.clone().count() < MOST_STRANGERS {
            return;
        }
        let silent = |client: &Client| matches!(client.stage, Stage::Stranger { .. });
        let longest = strangers.min_by_key(|(connection, client)| (!silent(client), **connection));
        if let Some(connection) = longest.map(|(connection, _)| *connection) {
            self.clients.remove(&connection);
        }
    }

    fn read(&mut self, connection: Connection) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let mut buffer = [0u8; 4096];
        let alive = match socket::read_some(&client.stream, &mut buffer) {
            Ok(Some(0)) | Err(_) => false,
            Ok(Some(count)) => {
                client.inbox.extend_from_slice(&buffer[..count]);
                true
            }
            Ok(None) => true,
        };
        let understood = alive && self.understand(connection).is_ok();
        if !understood {
            self.drop_client(connection);
        }
    }

    /// Handles every complete message that has come; an error means that the connection is not worth keeping.
    fn understand(&mut self, connection: Connection) -> Result<()> {
        loop {
            let Some(client) = self.clients.get_mut(&connection) else { return Ok(()) };
            let most =
                if matches!(client.stage, Stage::Member { .. }) { MEMBER_BYTES } else { STRANGER_BYTES };
            let Some(message) = Message::decode(&mut client.inbox, most)? else { return Ok(()) };
            let outbox = match (&client.stage, message) {
                (Stage::Stranger { .. }, Message::Hello { protocol, token, nonce }) => {
                    self.greet(connection, protocol, token, nonce)?
                }
                (Stage::Challenged { secret, token, client: theirs, server, .. }, Message::Proof(proof)) => {
                    if !secret.accepts(&proof, Role::Client, theirs, server) {
                        return Err(Error::remote("a wrong proof"));
                    }
                    client.stage = Stage::Member { token: *token };
                    Outbox::new()
                }
                (Stage::Member { token }, message) => {
                    let token = *token;
                    self.serve_member(connection, token, message)?
                }
                _ => return Err(Error::remote("a message out of turn")),
            };
            self.post(outbox);
        }
    }

    fn greet(&mut self, connection: Connection, protocol: u32, token: Token, nonce: Nonce) -> Result<Outbox> {
        if protocol != super::PROTOCOL {
            let text = format!(
                "protocols differ: this process speaks {protocol}, process {} speaks {}; install the same library for all \
                 ranks",
                self.service.process.pid,
                super::PROTOCOL
            );
            return Ok(vec![(connection, Message::Failure(crate::ErrorKind::InvalidUsage, text))]);
        }
        let books = self.service.books.lock();
        let root = books.roots.get(&token).map(|(secret, _)| *secret);
        let Some(secret) = root.or_else(|| books.memory.get(&token).map(|(secret, _)| *secret)) else {
            return Err(Error::remote("nothing is known by that token"));
        };
        drop(books);
        let server = random::bytes()?;
        if let Some(client) = self.clients.get_mut(&connection) {
            client.stage = Stage::Challenged { since: clock::now(), secret, token, client: nonce, server };
        }
        let proof = secret.prove(Role::Server, &nonce, &server);
        Ok(vec![(connection, Message::Challenge { nonce: server, proof })])
    }

    fn serve_member(&mut self, connection: Connection, token: Token, message: Message) -> Result<Outbox> {
        let now = clock::now();
        let mut books = self.service.books.lock();
        match message {
            Message::Join { ranks, rank, version, patience_ms, record } => {
                let Some((_, root)) = books.roots.get_mut(&token) else {
                    return Err(Error::remote("no such id"));
                };
                let join = JoinRequest { ranks, rank, version, patience_ms, record };
                Ok(root.handle_join(connection, join, now))
            }
            Message::Ready(failure) => {
                let Some((_, root)) = books.roots.get_mut(&token) else {
                    return Err(Error::remote("no such id"));
                };
                Ok(root.handle_ready(connection, failure, now))
            }
            Message::Fetch => {
                let file = books.memory.get(&token).map(|(_, file)| file.clone());
                let (Some(file), Some(client)) = (file, self.clients.get_mut(&connection)) else {
                    return Err(Error::remote("no such memory"));
                };
                client.descriptor = Some(file);
                client.leaving = true;
                Ok(vec![(connection, Message::Grant)])
            }
            _ => Err(Error::remote("a message out of turn")),
        }
    }

    /// Queues messages; a verdict is the last thing that a connection hears.
    fn post(&mut self, outbox: Outbox) {
        for (connection, message) in outbox {
            if let Some(client) = self.clients.get_mut(&connection) {
                client.outbox.extend(message.encode());
                client.leaving |= matches!(message, Message::Go | Message::Failure(..));
            }
        }
    }

    fn flush(&mut self) {
        let mut gone = Vec::new();
        for (connection, client) in &mut self.clients {
            if !client.flush() || (client.leaving && client.outbox.is_empty()) {
                gone.push(*connection);
            }
        }
        for connection in gone {
            self.drop_client(connection);
        }
    }

    fn drop_client(&mut self, connection: Connection) {
        let Some(client) = self.clients.remove(&connection) else { return };
        let Stage::Member { token } = client.stage else { return };
        let mut books = self.service.books.lock();
        let Some((_, root)) = books.roots.get_mut(&token) else { return };
        let outbox = root.handle_closed(connection, clock::now());
        drop(books);
        self.post(outbox);
    }
}

impl Client {
    /// Writes what the socket takes; false if the connection is broken.
    fn flush(&mut self) -> bool {
        if let (Some(descriptor), false) = (&self.descriptor, self.outbox.is_empty()) {
            let sent = socket::send_with(&self.stream, &self.outbox, Some(descriptor.as_fd()));
            if sent.is_ok() {
                self.outbox.clear();
                self.descriptor = None;
            }
            return sent.is_ok();
        }
        while !self.outbox.is_empty() {
            match (&self.stream).write(&self.outbox) {
                Ok(0) => return false,
                Ok(count) => {
                    self.outbox.drain(..count);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}
