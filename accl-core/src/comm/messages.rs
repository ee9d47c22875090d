//! Messages with tags between two ranks: sends and receives that wait for nobody, of which any number may be under way.

use super::{Communicator, Joined};
use crate::engine::{Label, Message, Post, Request};
use crate::error::{Error, Result};
use crate::memory::UserPointer;
use crate::os::clock;
use crate::sync::prim::{AtomicU8, Ordering};
use crate::types::Rank;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a communicator's ranks send to each other: either messages without tags, each in the order of calls (`send`, `recv`), or with tags.
/// Both use the same links.
#[derive(Debug, Default)]
pub(super) struct Messages {
    kind: AtomicU8,
    post: OnceLock<Arc<Post>>,
}

const PLAIN: u8 = 1;
const TAGGED: u8 = 2;

impl Messages {
    /// An error (InvalidUsage) if this rank has exchanged messages with tags.
    #[inline]
    pub(super) fn are_plain(&self) -> Result<()> {
        if self.kind.load(Ordering::Relaxed) == PLAIN { Ok(()) } else { self.become_of(PLAIN) }
    }

    #[cold]
    fn become_of(&self, kind: u8) -> Result<()> {
        match self.kind.compare_exchange(0, kind, Ordering::AcqRel, Ordering::Acquire) {
            Err(other) if other != kind => Err(Error::usage(
                "messages with and without tags on one communicator: they would take each other's places; make another communicator for \
                 one of them",
            )),
            _ => Ok(()),
        }
    }

    fn post(&self, joined: &Joined) -> Result<&Arc<Post>> {
        self.become_of(TAGGED)?;
        Ok(self.post.get_or_init(|| Post::new(joined.seat.clone())))
    }
}

/// A send or a receive that has begun.
#[derive(Clone, Debug)]
pub struct PostedMessage {
    post: Arc<Post>,
    request: Arc<Request>,
}

impl PostedMessage {
    /// True once its memory is the caller's again. An error is what ended it.
    pub fn test(&self) -> Result<bool> {
        self.post.check_process()?;
        if !self.request.is_over() {
            self.post.poll();
        }
        self.outcome()
    }

    /// The same after a wait of so long at most; none: as long as it takes.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        self.post.check_process()?;
        self.post.wait(&self.request, limit);
        self.outcome()
    }

    /// Of a receive that is over: who has sent the message.
    pub fn source(&self) -> Rank {
        self.request.source()
    }

    fn outcome(&self) -> Result<bool> {
        let over = self.request.is_over();
        self.request.error().map_or(Ok(over), |error| Err(error.clone()))
    }
}

impl Communicator {
    /// Sends `bytes` to `peer`, to a receive of that tag there; the memory must stay as it is until it is over. Small messages may be over
    /// before they are received. After `limit`, if there is one, it fails, and with it the communicator.
    pub fn send_tagged(
        &self,
        buffer: UserPointer,
        bytes: usize,
        peer: Rank,
        tag: u32,
        limit: Option<Duration>,
    ) -> Result<PostedMessage> {
        let message = self.message("Isend", (buffer, bytes), Some(peer), tag, limit)?;
        let joined = self.joined()?;
        let post = joined.messages.post(joined)?;
        Ok(PostedMessage { post: post.clone(), request: post.send(message, Arc::default())? })
    }

    /// Receives a message of exactly `bytes` with that tag from `peer`, or (none) from whoever sends one first.
    pub fn receive_tagged(
        &self,
        buffer: UserPointer,
        bytes: usize,
        peer: Option<Rank>,
        tag: u32,
        limit: Option<Duration>,
    ) -> Result<PostedMessage> {
        let message = self.message("Irecv", (buffer, bytes), peer, tag, limit)?;
        let joined = self.joined()?;
        let post = joined.messages.post(joined)?;
        Ok(PostedMessage { post: post.clone(), request: post.receive(message, Arc::default())? })
    }

    fn message(
        &self,
        name: &str,
        (buffer, bytes): (UserPointer, usize),
        peer: Option<Rank>,
        tag: u32,
        limit: Option<Duration>,
    ) -> Result<Message> {
        if self.has_device() {
            return Err(Error::usage(
                "messages with tags are of host memory; make the communicator by acclCommInitRankHost",
            ));
        }
        if bytes > 0 && buffer.is_null() {
            return Err(Error::argument(format!("{name}: the buffer is NULL, need {bytes} bytes there")));
        }
        if isize::try_from(bytes).is_err() {
            return Err(Error::argument(format!(
                "{name}: {bytes} bytes are more than the address space has; pass a smaller count"
            )));
        }
        if peer == Some(self.rank()) || self.ranks() == 1 {
            return Err(Error::usage(format!(
                "{name}: rank {} would exchange a message with itself; copy the memory instead",
                self.rank()
            )));
        }
        Ok(Message {
            buffer,
            bytes,
            peer,
            label: Label::Tag(tag),
            deadline: limit.map(|limit| clock::now() + limit),
        })
    }

    /// Nobody uses the memory of messages any more when this returns.
    pub(super) fn end_messages(&self, how: &str) {
        if let Some(post) = self.shared.joined.get().and_then(|joined| joined.messages.post.get()) {
            post.end(&Error::usage(format!(
                "the communicator was {how} while a message was under way; it may have come or not; make another communicator to go on"
            )));
        }
    }
}
