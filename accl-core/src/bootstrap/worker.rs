//! The thread of a service: connections, frames and proofs. All decisions about ranks are taken in [`super::root`].
//!
//! Over TCP anybody may come. Whoever proves nothing gets no answer but the listener's own proof, and is dropped at
//! the first byte that makes no sense; such visits are counted, and said once.

use super::auth::{Difference, Greeting, Nonce, Proof, Role, Token};
use super::links::{LinkRequest, LinkSink};
use super::pre_shared;
use super::root::{Connection, JoinRequest, Outbox};
use super::service::{Books, Door, Refused, Service, strays};
use super::wire::{MEMBER_BYTES, Message, STRANGER_BYTES};
use crate::encryption::Socket;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, network, random, socket};
use crate::telemetry;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a used or failed unique id is remembered, so that late ranks hear what became of it.
const REMEMBER: Duration = Duration::from_secs(30);
/// How long a connection may take to prove itself.
const STRANGER_PATIENCE: Duration = Duration::from_secs(10);
/// How long the thread stays when it has nothing to do: splits and short-lived communicators need it again soon.
const IDLE_PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time that have not proved themselves; more if more ranks are expected, but not above the second.
const MOST_STRANGERS: (usize, usize) = (256, 8192);
/// Connections that are accepted before those that are there are heard.
const MOST_ACCEPTED: usize = 64;
/// How long to leave callers in the queue when none can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// How far a connection has come.
#[derive(Debug)]
enum Stage {
    Stranger { since: Instant },
    Challenged { since: Instant, token: Token, greeting: Greeting },
    Member { token: Token },
}

#[derive(Debug)]
struct Client {
    stream: Socket,
    /// Where it comes from; none for local sockets.
    from: Option<SocketAddr>,
    stage: Stage,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Goes with the first byte of the outbox.
    descriptor: Option<Arc<OwnedFd>>,
    /// A rank of this very process.
    home: bool,
    /// Who gets the connection once the outbox is empty.
    handover: Option<(LinkRequest, Arc<dyn LinkSink>)>,
    /// Close once the outbox is empty.
    leaving: bool,
}

/// A socket that connections come by.
#[derive(Clone, Debug)]
enum Listener {
    Local(Arc<UnixListener>),
    Tcp(Arc<TcpListener>),
}

/// The thread.
#[derive(Debug)]
pub(super) struct Worker {
    service: Arc<Service>,
    /// None once the service has retired.
    listener: Option<Arc<UnixListener>>,
    waker: Arc<OwnedFd>,
    idle_since: Option<Instant>,
    clients: BTreeMap<Connection, Client>,
    last_connection: Connection,
}

impl Worker {
    pub(super) fn new(service: Arc<Service>, listener: UnixListener, waker: Arc<OwnedFd>) -> Self {
        Self {
            service,
            listener: Some(Arc::new(listener)),
            waker,
            idle_since: None,
            clients: BTreeMap::new(),
            last_connection: 0,
        }
    }

    pub(super) fn serve(mut self) {
        loop {
            let now = clock::now();
            self.tick(now);
            if self.retire(now) {
                return;
            }
            let (visited, readable) = self.wait(now);
            for listener in visited {
                self.accept(&listener);
            }
            for connection in readable {
                self.read(connection);
            }
            let asked_for = std::mem::take(&mut self.service.books.lock().outbox);
            self.post(asked_for);
            self.flush();
        }
    }

    /// Forgets what is over; true (and no longer reachable) if there has been nothing to serve for a while.
    fn retire(&mut self, now: Instant) -> bool {
        let mut books = self.service.books.lock();
        books.roots.retain(|_, gathering| {
            let memory = if matches!(gathering.door, Door::At(_)) { Duration::ZERO } else { REMEMBER };
            gathering.root.ended_at().is_none_or(|at| now < at + memory)
        });
        books.close_unused_port();
        let idle = books.are_empty() && self.clients.is_empty();
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
        for gathering in self.service.books.lock().roots.values_mut() {
            outbox.extend(gathering.root.handle_time(now));
        }
        self.post(outbox);
        self.clients.retain(|_, client| {
            let late = client.deadline().is_some_and(|deadline| now >= deadline);
            if late {
                client.note_stray(&Error::remote("it does not prove itself"));
            }
            !late
        });
        self.flush();
    }

    /// Waits for something to do: listeners that are called at, and connections to be read.
    fn wait(&self, now: Instant) -> (Vec<Listener>, Vec<Connection>) {
        let (listeners, deadline) = self.outlook(&self.service.books.lock());
        let longest = Duration::from_secs(5);
        let timeout =
            deadline.map_or(longest, |deadline| deadline.saturating_duration_since(now).min(longest));
        let connections: Vec<_> = self.clients.keys().copied().collect();
        let mut polled = vec![PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)];
        polled.extend(listeners.iter().map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)));
        for client in self.clients.values() {
            let flags = if client.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            polled.push(PollFd::new(&client.stream, flags));
        }
        let limit = rustix::time::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        if rustix::event::poll(&mut polled, Some(&limit)).is_err() {
            return (Vec::new(), Vec::new());
        }
        if !polled[0].revents().is_empty() {
            let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        }
        let (first, rest) = polled[1..].split_at(listeners.len());
        let ready = |entry: &PollFd<'_>| !entry.revents().is_empty();
        let visited = listeners.iter().zip(first).filter(|(_, entry)| ready(entry));
        let readable = connections.into_iter().zip(rest).filter(|(_, entry)| ready(entry));
        (visited.map(|(one, _)| one.clone()).collect(), readable.map(|(connection, _)| connection).collect())
    }

    /// What to listen at, and when somebody runs out of time.
    fn outlook(&self, books: &Books) -> (Vec<Listener>, Option<Instant>) {
        let mut listeners: Vec<_> = self.listener.iter().cloned().map(Listener::Local).collect();
        let of_port = books.port.iter().flat_map(|port| &port.listeners);
        listeners.extend(of_port.map(|listener| Listener::Tcp(listener.clone())));
        for gathering in books.roots.values() {
            if let Door::At(listener) = &gathering.door {
                listeners.push(Listener::Tcp(listener.clone()));
            }
        }
        let gatherings = books.roots.values().filter_map(|gathering| gathering.root.deadline());
        let strangers = self.clients.values().filter_map(Client::deadline);
        (listeners, gatherings.chain(strangers).min())
    }

    fn accept(&mut self, listener: &Listener) {
        let most_strangers = self.service.books.lock().expected().clamp(MOST_STRANGERS.0, MOST_STRANGERS.1);
        for _ in 0..MOST_ACCEPTED {
            let (stream, from) = match listener.accept() {
                Ok(visitor) => visitor,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => continue,
                // The port was closed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
                Err(error) if !socket::is_transient(&error) => {
                    self.refuse(error);
                    // No descriptors, say: whoever waits in the queue would wake us again at once.
                    clock::sleep(ACCEPT_PAUSE);
                    return;
                }
                Err(_) => return,
            };
            self.service.books.lock().refused = None;
            self.make_room(most_strangers);
            self.last_connection += 1;
            let client = Client {
                stream: stream.into(),
                from,
                stage: Stage::Stranger { since: clock::now() },
                inbox: Vec::new(),
                outbox: Vec::new(),
                descriptor: None,
                home: false,
                handover: None,
                leaving: false,
            };
            self.clients.insert(self.last_connection, client);
        }
    }

    fn refuse(&self, error: std::io::Error) {
        let now = clock::now();
        let mut books = self.service.books.lock();
        let earlier = books.refused.as_ref().filter(|refused| now - refused.latest < Duration::from_secs(1));
        let since = earlier.map_or(now, |refused| refused.since);
        let error = Error::system("cannot take a connection from another rank", error);
        books.refused = Some(Refused { since, latest: now, error });
    }

    /// Lets the one go who has been silent for longest if there are too many strangers: ranks say who they are at
    /// once, so that a crowd that says nothing does not keep them out.
    fn make_room(&mut self, most_strangers: usize) {
        let strangers =
            self.clients.iter().filter(|(_, client)| !matches!(client.stage, Stage::Member { .. }));
        if strangers.clone().count() < most_strangers {
            return;
        }
        let silent = |client: &Client| matches!(client.stage, Stage::Stranger { .. });
        let longest = strangers.min_by_key(|(connection, client)| (!silent(client), **connection));
        if let Some(connection) = longest.map(|(connection, _)| *connection) {
            self.clients.remove(&connection);
        }
    }

    fn read_piece(&mut self, connection: Connection) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let mut buffer = [0u8; 4096];
        let alive = match client.stream.read_some(&mut buffer) {
            Ok(Some(0)) | Err(_) => false,
            Ok(Some(count)) => {
                client.inbox.extend_from_slice(&buffer[..count]);
                true
            }
            Ok(None) => true,
        };
        let understood = if alive { self.understand(connection) } else { Ok(()) };
        if let (Err(error), Some(client)) = (&understood, self.clients.get(&connection)) {
            client.note_stray(error);
        }
        if !alive || understood.is_err() {
            self.drop_client(connection);
        }
    }

    /// Reads what the kernel does not know of, too: it wakes nobody.
    fn read(&mut self, connection: Connection) {
        loop {
            self.read_piece(connection);
            if !self.clients.get(&connection).is_some_and(|client| client.stream.has_waiting()) {
                return;
            }
        }
    }

    /// Handles every complete message that has come; an error means that the connection is not worth keeping.
    fn understand(&mut self, connection: Connection) -> Result<()> {
        loop {
            let Some(client) = self.clients.get_mut(&connection) else { return Ok(()) };
            let most =
                if matches!(client.stage, Stage::Member { .. }) { MEMBER_BYTES } else { STRANGER_BYTES };
            let Some(message) = Message::decode(&mut client.inbox, most)? else {
                // What comes before the answer would be lost to whoever gets the connection.
                let early = client.handover.is_some() && !client.inbox.is_empty();
                return if early { Err(Error::remote("data before the link was accepted")) } else { Ok(()) };
            };
            let outbox = match (&client.stage, message) {
                (Stage::Stranger { .. }, Message::Hello { protocol, token, nonce }) => {
                    self.greet(connection, protocol, token, nonce)?
                }
                (Stage::Challenged { token, greeting, .. }, Message::Proof(proof)) => {
                    let (token, greeting) = (*token, *greeting);
                    self.admit(connection, token, &greeting, &proof)?
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
            return Ok(vec![(connection, Message::Failure(ErrorKind::InvalidUsage, text))]);
        }
        let known = self.service.books.lock().secret_of(&token);
        let secret = known.ok_or_else(|| Error::remote("nothing is known by that token"))?;
        let server = random::bytes()?;
        let greeting = Greeting { secret, client: nonce, server };
        if let Some(client) = self.clients.get_mut(&connection) {
            client.stage = Stage::Challenged { since: clock::now(), token, greeting };
        }
        let proof = greeting.prove(Role::Server, pre_shared::key().as_ref());
        Ok(vec![(connection, Message::Challenge { nonce: server, proof })])
    }

    /// Lets a connection in by its proof, and encrypts from here on what comes over TCP, if both sides have the same key.
    fn admit(
        &mut self,
        connection: Connection,
        token: Token,
        greeting: &Greeting,
        proof: &Proof,
    ) -> Result<Outbox> {
        if !greeting.accepts(proof, Role::Client) {
            return Err(Error::remote("a wrong proof"));
        }
        let Some(client) = self.clients.get_mut(&connection) else { return Ok(Outbox::new()) };
        client.stage = Stage::Member { token };
        match greeting.agree(proof, Role::Client, pre_shared::key().as_ref()) {
            Ok(Some(session)) if client.from.is_some() => {
                client.stream.seal(session, std::mem::take(&mut client.inbox));
                Ok(Outbox::new())
            }
            Ok(_) => Ok(Outbox::new()),
            Err(difference) => {
                let from = client.from;
                self.refuse_key(token, from, difference);
                Err(Error::remote("another encryption key"))
            }
        }
    }

    /// A member of the job has another key, or only one side has one: all ranks hear that.
    fn refuse_key(&mut self, token: Token, from: Option<SocketAddr>, difference: Difference) {
        let whom = match from {
            Some(from) => format!("a process that came from {from}"),
            None => "another process of this host".to_string(),
        };
        let error = difference.between(&whom, &pre_shared::here());
        let mut books = self.service.books.lock();
        let gathering = books.roots.get_mut(&token);
        // A secret that was made of an address everybody may know: who knows it must not be able to end the job.
        let Some(gathering) = gathering.filter(|gathering| !matches!(gathering.door, Door::At(_))) else {
            drop(books);
            telemetry::warn(&format!("a connection was refused: {}", error.text()));
            return;
        };
        let outbox = gathering.root.handle_difference(error, clock::now());
        drop(books);
        self.post(outbox);
    }

    fn serve_member(&mut self, connection: Connection, token: Token, message: Message) -> Result<Outbox> {
        let now = clock::now();
        let mut books = self.service.books.lock();
        match message {
            Message::Join { ranks, rank, ids, stands, version, patience_ms, record } => {
                let mut local = true;
                if let Some(client) = self.clients.get_mut(&connection) {
                    client.home = record.place.shares_process(&self.service.process);
                    local = client.from.is_none();
                }
                let root = books.root_for(&token, !local)?;
                let join = JoinRequest { ranks, rank, ids, stands, version, patience_ms, record };
                Ok(root.handle_join(connection, join, now))
            }
            Message::Ready(failure) => {
                let root = books.root(&token)?;
                Ok(root.handle_ready(connection, failure, now))
            }
            Message::Share(list) => Ok(books.root(&token)?.handle_share(connection, list, now)),
            Message::Go => Ok(books.root(&token)?.handle_verdict(connection, None, now)),
            Message::Failure(kind, text) => {
                Ok(books.root(&token)?.handle_verdict(connection, Some(Error::new(kind, text)), now))
            }
            Message::Fetch if !books.memory.contains_key(&token) => {
                if let Some(shelving) = books.shelves.get_mut(&token) {
                    return Ok(shelving.shelf.handle_fetch(connection));
                }
                Ok(books.root(&token)?.handle_fetch(connection, now))
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
            Message::Link(request) => {
                let reception = books.links.get(&token);
                let sink = reception.and_then(|reception| reception.ranks.get(&request.to_rank)).cloned();
                drop(books);
                Ok(vec![(connection, self.take_in(connection, request, sink))])
            }
            _ => Err(Error::remote("a message out of turn")),
        }
    }

    /// Prepares to hand a connection over; the answer.
    fn take_in(
        &mut self,
        connection: Connection,
        request: LinkRequest,
        sink: Option<Arc<dyn LinkSink>>,
    ) -> Message {
        let (Some(sink), Some(client)) = (sink, self.clients.get_mut(&connection)) else {
            let text = format!(
                "rank {} wants a link to rank {}, which is not in process {} (any more)",
                request.from_rank, request.to_rank, self.service.process.pid
            );
            return Message::Failure(ErrorKind::Remote, text);
        };
        sink.expect(request);
        client.handover = Some((request, sink));
        Message::LinkAccepted
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

    /// Sends what is queued: to ranks of this process last, since it may end as soon as they have heard their verdict.
    fn flush(&mut self) {
        for home in [false, true] {
            self.flush_some(|client| client.home == home);
        }
    }

    fn flush_some(&mut self, whom: impl Fn(&Client) -> bool) {
        let mut gone = Vec::new();
        let mut taken = Vec::new();
        for (connection, client) in self.clients.iter_mut().filter(|(_, client)| whom(client)) {
            let flushed = client.flush();
            if flushed && client.handover.is_some() && client.outbox.is_empty() {
                taken.push(*connection);
            } else if !flushed || (client.leaving && client.outbox.is_empty()) {
                gone.push(*connection);
            }
        }
        for connection in taken {
            let Some(Client { stream, handover: Some((request, sink)), .. }) =
                self.clients.remove(&connection)
            else {
                continue;
            };
            sink.accept(request, stream);
        }
        for connection in gone {
            self.drop_client(connection);
        }
    }

    fn drop_client(&mut self, connection: Connection) {
        let Some(client) = self.clients.remove(&connection) else { return };
        if let Some((request, sink)) = &client.handover {
            sink.forget(*request);
        }
        let Stage::Member { token } = client.stage else { return };
        let mut books = self.service.books.lock();
        books.shelves.entry(token).and_modify(|shelving| shelving.shelf.handle_closed(connection));
        let Ok(root) = books.root(&token) else { return };
        let outbox = root.handle_closed(connection, clock::now());
        drop(books);
        self.post(outbox);
    }
}

impl Listener {
    /// Takes one caller out of the queue: its connection, which never makes anybody wait, and where it comes from.
    fn accept(&self) -> std::io::Result<(OwnedFd, Option<SocketAddr>)> {
        match self {
            Self::Local(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((stream.into(), None))
            }
            Self::Tcp(listener) => {
                let (stream, mut from) = listener.accept()?;
                from.set_ip(from.ip().to_canonical());
                stream.set_nonblocking(true)?;
                network::prepare_stream(stream.as_fd());
                Ok((stream.into(), Some(from)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Local(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Client {
    /// Until when it must have proved itself, if it has not.
    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Stranger { since } | Stage::Challenged { since, .. } => Some(since + STRANGER_PATIENCE),
            Stage::Member { .. } => None,
        }
    }

    /// Writes what the socket takes; false if the connection is broken.
    fn flush(&mut self) -> bool {
        while !self.outbox.is_empty() {
            let sent = match &self.descriptor {
                // It goes to processes of this host alone, and nothing is sealed there.
                Some(file) => {
                    socket::send_some(self.stream.as_fd(), &self.outbox, Some(file.as_fd())).map(Some)
                }
                None => self.stream.write_some(&self.outbox, &[]),
            };
            match sent {
                Ok(Some(0)) => return false,
                Ok(Some(count)) => {
                    self.descriptor = None;
                    self.outbox.drain(..count);
                }
                Ok(None) => return true,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Counts a visitor from the network who has proved nothing, and says so the first time.
    fn note_stray(&self, why: &Error) {
        let (Some(from), false) = (self.from, matches!(self.stage, Stage::Member { .. })) else { return };
        if strays::count_one() == 0 {
            telemetry::warn(&format!(
                "a connection from {from} to the port by which ranks find each other was dropped: {}; it does no \
                 harm, and more of them are not mentioned",
                why.text()
            ));
        }
    }
}
