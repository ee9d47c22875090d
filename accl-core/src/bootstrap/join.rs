//! A rank's side: it connects to the root, proves itself, learns who the others are, and hears the verdict.

use super::auth::{Role, Secret};
use super::id::UniqueId;
use super::wire::{MEMBER_BYTES, Message, PeerRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, random, socket};
use crate::topo::Place;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How much longer than its own patience a rank waits for the root, which keeps the time.
const GRACE: Duration = Duration::from_secs(5);
/// How long "for ever" is.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long the other side of a connection may take for its proof.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// A connection whose other side has proved that it knows the secret.
pub(super) struct Trusted<'a> {
    stream: UnixStream,
    inbox: Vec<u8>,
    descriptor: Option<OwnedFd>,
    give_up: &'a dyn Fn() -> Result<()>,
}

impl std::fmt::Debug for Trusted<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Trusted").finish_non_exhaustive()
    }
}

impl<'a> Trusted<'a> {
    /// Makes both sides prove themselves. `closed` explains a listener that hangs up on us.
    pub(super) fn greet(
        stream: UnixStream,
        secret: Secret,
        closed: &str,
        give_up: &'a dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let mut connection = Self { stream, inbox: Vec::new(), descriptor: None, give_up };
        let client = random::bytes()?;
        connection.send(&Message::Hello {
            protocol: super::PROTOCOL,
            token: secret.token(),
            nonce: client,
        })?;
        let answer =
            connection.receive(clock::now() + GREETING_PATIENCE).map_err(|error| match error.kind() {
                ErrorKind::Remote => Error::usage(closed),
                ErrorKind::Timeout => error.within(
                    "the process at the other end of a local socket does not prove itself; it may be stopped",
                ),
                _ => error,
            })?;
        let Message::Challenge { nonce: server, proof } = answer else { return Err(unexpected(answer)) };
        if !secret.accepts(&proof, Role::Server, &client, &server) {
            return Err(Error::usage("the process that answered does not know the secret of this unique id"));
        }
        connection.send(&Message::Proof(secret.prove(Role::Client, &client, &server)))?;
        Ok(connection)
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<()> {
        (&self.stream)
            .write_all(&message.encode())
            .map_err(|error| Error::remote(format!("cannot send to the creator of the unique id: {error}")))
    }

    /// The next message before `deadline`.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message> {
        loop {
            if let Some(message) = Message::decode(&mut self.inbox, MEMBER_BYTES)? {
                return Ok(message);
            }
            let mut head = [0u8; 4];
            let have = self.inbox.len().min(4);
            head[..have].copy_from_slice(&self.inbox[..have]);
            let missing = if have < 4 {
                4 - have
            } else {
                (4 + u32::from_le_bytes(head) as usize).saturating_sub(self.inbox.len()).min(MEMBER_BYTES)
            };
            let mut buffer = vec![0; missing.max(1)];
            let extra = socket::receive_exact(&self.stream, &mut buffer, deadline, self.give_up)?;
            self.descriptor = extra.or_else(|| self.descriptor.take());
            self.inbox.extend(buffer);
        }
    }

    /// True if there is something to receive, or the other side is gone.
    fn has_word(&self) -> bool {
        !self.inbox.is_empty()
            || socket::wait_readable(&[self.stream.as_fd()], Duration::ZERO).unwrap_or(true)
    }

    /// A descriptor that came with a message.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }
}

/// The error that a message which makes no sense here stands for.
pub(super) fn unexpected(message: Message) -> Error {
    match message {
        Message::Failure(kind, text) => Error::new(kind, text),
        other => Error::internal(format!("an answer that makes no sense here: {other:?}")),
    }
}

/// A rank that has been let in, and that all others know of.
#[derive(Debug)]
pub struct Membership<'a> {
    /// All ranks, in order.
    pub peers: Vec<PeerRecord>,
    /// What only they know.
    pub secret: Secret,
    connection: Trusted<'a>,
    deadline: Instant,
    creator: u32,
}

/// What a rank asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// How many ranks there are.
    pub ranks: usize,
    /// Which one this is.
    pub rank: usize,
    /// The library's version.
    pub version: i32,
    /// How long to wait for the others; none is for ever.
    pub patience: Option<Duration>,
}

/// Joins the others who hold the same id. `give_up` is asked every tenth of a second while waiting.
pub fn join<'a>(
    id: &UniqueId,
    request: Request,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Membership<'a>> {
    let invitation = id.decode()?;
    let place = Place::here()?;
    if invitation.kernel != place.kernel {
        return Err(Error::usage(
            "the unique id was made on another host; this version connects ranks of one host only",
        ));
    }
    let stream = socket::connect(&invitation.service)?.map_err(|error| {
        Error::remote(format!(
            "the creator of the unique id (process {}) is gone, or has made its communicator with it already: {error}; \
             keep that process alive until all ranks have joined, and make a new id for each communicator",
            invitation.creator
        ))
    })?;
    let closed = "the creator of the unique id does not know it any more: it was already used; make a new one with \
                  ncclGetUniqueId for each communicator";
    let mut connection = Trusted::greet(stream, invitation.secret, closed, give_up)?;
    let deadline = clock::now() + request.patience.map_or(FOR_EVER, |patience| patience + GRACE);
    connection.send(&Message::Join {
        ranks: request.ranks as u32,
        rank: request.rank as u32,
        version: request.version,
        patience_ms: request.patience.map_or(0, |patience| patience.as_millis().max(1) as u64),
        record: PeerRecord { place, service: super::service_name()? },
    })?;
    match connection.receive(deadline).map_err(|error| lost(error, invitation.creator))? {
        Message::Roster(peers) if peers.len() == request.ranks => {
            let (secret, creator) = (invitation.secret, invitation.creator);
            Ok(Membership { peers, secret, connection, deadline, creator })
        }
        other => Err(unexpected(other)),
    }
}

impl Membership<'_> {
    /// An error if the verdict has come before this rank was ready: somebody else has failed.
    pub fn check_verdict(&self) -> Result<()> {
        if self.connection.has_word() {
            return Err(Error::remote("another rank could not be set up"));
        }
        Ok(())
    }

    /// Says whether this rank has set itself up, and returns everybody's verdict.
    pub fn confirm(mut self, outcome: Result<()>) -> Result<()> {
        let failure = outcome.as_ref().err().map(|error| (error.kind(), error.text().to_string()));
        // Whoever cannot say so may be too late: the verdict has come, and the root has hung up.
        let said = self.connection.send(&Message::Ready(failure));
        match (self.connection.receive(self.deadline), said) {
            (Ok(Message::Go), _) => outcome,
            (Ok(other), _) => Err(unexpected(other)),
            (Err(_), Err(unsaid)) => Err(unsaid),
            (Err(error), Ok(())) => Err(lost(error, self.creator)),
        }
    }
}

fn lost(error: Error, creator: u32) -> Error {
    match error.kind() {
        ErrorKind::Remote => error.within(format!("process {creator}, the creator of the unique id, ended")),
        ErrorKind::Timeout => error.within(format!(
            "process {creator}, the creator of the unique id, does not answer; it may be stopped (ACCL_INIT_TIMEOUT)"
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_crowd_does_not_keep_a_rank_out() {
        let id = UniqueId::create().unwrap();
        let service = super::super::service_name().unwrap();
        let crowd: Vec<_> = (0..300).map(|_| socket::connect(&service).unwrap().unwrap()).collect();
        let request = Request { ranks: 1, rank: 0, version: 1, patience: Some(Duration::from_secs(10)) };
        join(&id, request, &|| Ok(())).unwrap().confirm(Ok(())).unwrap();
        drop(crowd);
    }

    #[test]
    fn a_rank_that_is_late_for_the_verdict_hears_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let verdict = Message::Failure(ErrorKind::Remote, "rank 2 left".to_string());
        (&theirs).write_all(&verdict.encode()).unwrap();
        drop(theirs);
        let connection = Trusted { stream: ours, inbox: Vec::new(), descriptor: None, give_up: &|| Ok(()) };
        let deadline = clock::now() + Duration::from_secs(10);
        let secret = UniqueId::create().unwrap().decode().unwrap().secret;
        let membership = Membership { peers: Vec::new(), secret, creator: 1, connection, deadline };
        let error = membership.confirm(Ok(())).unwrap_err();
        assert_eq!((error.kind(), error.text()), (ErrorKind::Remote, "rank 2 left"));
    }
}
