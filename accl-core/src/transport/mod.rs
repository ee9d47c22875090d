//! Links: one direction between two ranks, with credits.
//!
//! A message is a run of bytes with a small head. A sender *offers* a message; the link copies what it has room
//! for, or *lends* the user's memory to the peer, which then reads it in place. Either way the user's memory must
//! stay as it is until the message is done. A receiver sees the head first, then reads the bytes piece by piece,
//! in place where it can. Nothing here ever waits: waiting is the engine's business.
//!
//! Messages of one link arrive in the order in which they were offered.

pub mod board;
#[cfg(test)]
mod conformance;
pub mod mem;
pub mod plugin;
pub mod rdma;
pub mod shm;
pub mod tcp;

use crate::device::{Device, UserPointer};
use crate::error::{Error, Result};
use crate::types::Scalar;
use board::PostedCall;

/// What the receiver learns before the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageHead {
    /// Length of the message.
    pub bytes: usize,
    /// What the sender calls it: the operation's sequence number, or the message's ordinal.
    pub tag: u64,
    /// A factor that the receiver must apply to each element.
    pub scale: Option<Scalar>,
    /// The call that the message belongs to, where ranks do not see each other's calls on a board.
    pub call: Option<PostedCall>,
}

/// A message on its way into a link.
#[derive(Debug)]
pub struct Outgoing {
    /// What the receiver will see first.
    pub head: MessageHead,
    /// Where the bytes lie.
    pub source: UserPointer,
    /// True if the bytes are to be copied into the link even where the peer could read them.
    pub copied: bool,
    progress: Progress,
}

/// How far an outgoing message has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// So many bytes have been copied into the link; the first copy also carries the head.
    Copied(usize),
    /// The peer reads the user's memory; done when it has finished its message of this number.
    Lent(u64),
    /// The user's memory is no longer needed.
    Done,
}

impl Outgoing {
    /// How many of its bytes have gone, or were lent.
    pub fn gone_bytes(&self) -> usize {
        if let Progress::Copied(bytes) = self.progress { bytes } else { self.head.bytes }
    }

    /// A message that has not been offered yet.
    pub fn new(source: UserPointer, head: MessageHead) -> Self {
        Self { head, source, copied: false, progress: Progress::Copied(0) }
    }

    /// True once the link needs nothing more to be offered: what is left is up to the peer.
    pub fn is_handed_over(&self) -> bool {
        !matches!(self.progress, Progress::Copied(_))
    }

    /// True once the user's memory may change.
    pub fn is_done(&self, sender: &dyn Sender) -> bool {
        match self.progress {
            Progress::Copied(_) => false,
            Progress::Lent(number) => sender.messages_consumed() > number,
            Progress::Done => true,
        }
    }
}

/// The sending half of a link.
pub trait Sender: Send + std::fmt::Debug {
    /// Hands over as much of `message` as the link takes now; true if anything moved.
    fn offer(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool>;

    /// How many messages the peer has read to the end.
    fn messages_consumed(&self) -> u64;

    /// No more use of lent memory: when this returns, the peer reads none of it and never will again.
    fn close(&mut self);

    /// The same, and where the link can carry it, the reason goes to the peer in place of the next message.
    fn close_failed(&mut self, error: &Error) {
        let _ = error;
        self.close();
    }

    /// The link's connections (as bits) that have to have room before anything moves; links that ring by themselves have none.
    fn waits_for(&self) -> u64 {
        0
    }
}

/// What both halves of a link to another host have in common.
pub trait Route: Send + Sync + std::fmt::Debug {
    /// Has this rank's bell rung as soon as there is something to read on one connection of `reads` (bits), or room on one of
    /// `writes`.
    fn ring_when(&self, reads: u64, writes: u64) -> Result<()>;

    /// True if something may still come on it, or has come and was not looked at.
    fn is_open(&self) -> bool;
}

/// The receiving half of a link.
pub trait Receiver: Send + std::fmt::Debug {
    /// How many bytes of messages have been consumed so far.
    fn consumed_bytes(&self) -> u64;

    /// The head of the oldest message, once it is there.
    fn head(&mut self) -> Result<Option<MessageHead>>;

    /// How many bytes of that message can be read now in one piece; 0 when they are still on their way.
    fn contiguous(&mut self) -> Result<usize>;

    /// The next `bytes` (at most [`Receiver::contiguous`]) in place, or copied into `scratch` where the memory
    /// is out of reach. The result is good until [`Receiver::advance`].
    fn view(&mut self, bytes: usize, scratch: UserPointer) -> Result<UserPointer>;

    /// Copies the next `bytes` (at most [`Receiver::contiguous`]) to `destination`, without consuming them.
    fn copy_to(&mut self, device: &dyn Device, destination: UserPointer, bytes: usize) -> Result<()>;

    /// Consumes `bytes`; views are void from here on. At the end of the message the next one comes into sight. A
    /// message of 0 bytes is consumed by `advance(0)`, which otherwise only gives views back.
    fn advance(&mut self, bytes: usize);

    /// Moves at most `most` of the bytes that are there to `destination`, past the caches if `streaming` and if that is
    /// possible, and consumes them; how many. `destination` is the place of the first byte that is not consumed if they come in
    /// order; a link may bring them in any other, so there must be room for the whole message, none of which can be read before
    /// its end, and the rest of a message of which some was taken must be taken. A message of 0 bytes is not consumed.
    fn take(
        &mut self,
        device: &dyn Device,
        destination: UserPointer,
        most: usize,
        streaming: bool,
    ) -> Result<usize> {
        let piece = self.contiguous()?.min(most);
        if piece == 0 {
            return Ok(0);
        }
        if streaming && !self.needs_scratch()? {
            let view = self.view(piece, destination)?;
            device.copy_streaming(destination, view, piece);
        } else {
            self.copy_to(device, destination, piece)?;
        }
        self.advance(piece);
        Ok(piece)
    }

    /// Memory that the link keeps for itself, to receive into.
    fn buffer_bytes(&self) -> usize {
        0
    }

    /// True if [`Receiver::view`] needs scratch memory.
    fn needs_scratch(&mut self) -> Result<bool>;

    /// The link's connections (as bits) on which something has to come before anything moves; links that ring by themselves
    /// have none.
    fn waits_for(&self) -> u64 {
        0
    }
}
