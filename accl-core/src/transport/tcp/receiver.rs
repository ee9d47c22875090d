//! The receiving half of a link.
//!
//! The blocks of a message come on several connections. Where their bytes are only stored ([`Receiver::take`]), each is read
//! straight to its place, in whatever order they come. Where they are looked at in order, they are taken one after the other, and
//! what comes early stays in its connection until its turn: the kernel's buffers are the store.

use super::block::{Arrivals, BLOCK_HEAD_BYTES, Beginning, BlockHead, blocks_of};
use super::head::{HEAD_BYTES, Head};
use super::inlet::{Front, Inlet};
use super::link::Link;
use crate::device::{Device, UserPointer};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::{MessageHead, Receiver};
use std::sync::Arc;

/// Pieces that are at least so large go straight into user memory.
const DIRECT_BYTES: usize = 8 << 10;

/// The receiving half.
#[derive(Debug)]
pub struct TcpReceiver {
    link: Arc<Link>,
    /// Of each connection that was there for a message.
    stripes: Vec<Inlet>,
    current: Option<Current>,
    /// Messages that are received.
    received: u64,
    consumed_bytes: u64,
}

/// The message that is being received.
#[derive(Debug)]
struct Current {
    head: MessageHead,
    consumed: usize,
    arrivals: Arrivals,
    /// The connection with the block that is being looked at.
    at: usize,
}

impl TcpReceiver {
    /// The receiving half of `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, stripes: vec![Inlet::default()], current: None, received: 0, consumed_bytes: 0 }
    }

    /// Begins a message, whose head has come.
    fn begin(&mut self, head: MessageHead) {
        let mut arrivals = Arrivals::new(head.bytes);
        self.stripes[0].front = Front::Unknown;
        if blocks_of(head.bytes) == 1 {
            arrivals.begin(0, 1);
            self.stripes[0].front = Front::Within { offset: 0, left: head.bytes };
        }
        self.current = Some(Current { head, consumed: 0, arrivals, at: 0 });
    }

    /// How many connections the blocks of the current message may come on.
    fn widen(&mut self) -> usize {
        if self.current.as_ref().is_none_or(|current| blocks_of(current.head.bytes) == 1) {
            return 1;
        }
        let width = self.link.widen().max(self.stripes.len());
        self.stripes.resize_with(width, Inlet::default);
        width
    }

    /// Takes in what is there on one connection, at most `most` bytes, and finds out what it is if that is not known.
    fn fill(&mut self, index: usize, most: usize) -> Result<()> {
        let Some(socket) = self.link.stripe(index) else { return Ok(()) };
        self.stripes[index].make_room()?;
        if let Err(error) = self.stripes[index].fill(socket, most) {
            self.link.lost(error);
        }
        self.look(index)
    }

    /// Finds out what comes next on a connection, as far as it has come.
    fn look(&mut self, index: usize) -> Result<()> {
        let inlet = &mut self.stripes[index];
        if inlet.front != Front::Unknown {
            return Ok(());
        }
        let Some(head) = inlet.peek::<BLOCK_HEAD_BYTES>() else {
            if inlet.ended {
                self.see_end(index);
            }
            return Ok(());
        };
        match BlockHead::decode(&head) {
            Some(head) => {
                inlet.skip(BLOCK_HEAD_BYTES);
                inlet.front = Front::Announced(head);
            }
            None if index == 0 => inlet.front = Front::Message,
            None => return Err(self.link.broken("what it sends is no block of a message")),
        }
        Ok(())
    }

    /// A connection has ended: alone it may just have been the first, and what is missing comes on others, some of which
    /// this end may not have taken in yet.
    fn see_end(&mut self, index: usize) {
        let inlet = &self.stripes[index];
        let amid = inlet.has_some() || inlet.is_within();
        // Before the look at those that are there: what is coming may be there the next moment.
        let more = self.link.more_come(self.stripes.len());
        let over = |(index, inlet): (usize, &Inlet)| {
            self.link.stripe(index).is_none() || inlet.ended && !inlet.has_some()
        };
        if amid || !more && self.stripes.iter().enumerate().all(over) {
            self.link.lost("it closed the connection");
        }
    }

    /// Begins the block that a connection has announced, if it can be begun: any, or the one that is due.
    fn start(&mut self, index: usize, any: bool) -> Result<()> {
        let Front::Announced(BlockHead { message, block, blocks }) = self.stripes[index].front else {
            return Ok(());
        };
        let Some(current) = &mut self.current else { return Ok(()) };
        let lead = message.wrapping_sub(self.received as u32).cast_signed();
        if lead > 0
            || lead == 0 && !any && block > current.arrivals.next() && block < blocks_of(current.head.bytes)
        {
            return Ok(());
        }
        let beginning = if lead == 0 { current.arrivals.begin(block, blocks) } else { Beginning::Wrong };
        match beginning {
            Beginning::At(offset, left) => {
                self.stripes[index].front = Front::Within { offset, left };
                Ok(())
            }
            Beginning::Later => Ok(()),
            Beginning::Wrong => {
                let what = format!(
                    "it sends block {block} (and {} more) of message {message}, which is not due",
                    blocks - 1
                );
                Err(self.link.broken(what))
            }
        }
    }

    /// True if a connection has the block that is to be looked at next.
    fn is_due(&mut self, index: usize) -> Result<bool> {
        self.look(index)?;
        if self.stripes[index].front == Front::Unknown {
            self.fill(index, usize::MAX)?;
        }
        self.start(index, false)?;
        Ok(self.stripes[index].is_within())
    }

    /// So many bytes of a connection's block are consumed.
    fn consume(&mut self, index: usize, bytes: usize) {
        let Some(current) = &mut self.current else { return };
        current.consumed += bytes;
        self.consumed_bytes += bytes as u64;
        self.stripes[index].consume(bytes);
        if current.consumed == current.head.bytes {
            self.current = None;
            self.received += 1;
        }
    }

    /// Moves what is there of one connection's block to its place in the message at `base`; how much.
    fn scatter(
        &mut self,
        index: usize,
        device: &dyn Device,
        base: UserPointer,
        most: usize,
    ) -> Result<usize> {
        if self.stripes[index].front == Front::Unknown {
            self.look(index)?;
        }
        if self.stripes[index].front == Front::Unknown && !self.stripes[index].ended {
            let missing = BLOCK_HEAD_BYTES - self.stripes[index].len();
            self.fill(index, missing)?;
        }
        self.start(index, true)?;
        let inlet = &mut self.stripes[index];
        let Front::Within { offset, left } = inlet.front else { return Ok(0) };
        let (place, wanted) = (base.byte_add(offset), left.min(most));
        let count = if inlet.has_some() || wanted < DIRECT_BYTES {
            if !inlet.has_some() {
                self.fill(index, usize::MAX)?;
            }
            let inlet = &mut self.stripes[index];
            let piece = inlet.len().min(wanted);
            device.copy(place, inlet.view(), piece);
            inlet.skip(piece);
            piece
        } else {
            let Some(socket) = self.link.stripe(index) else { return Ok(0) };
            self.stripes[index].make_room()?;
            match self.stripes[index].receive(device, socket, place, wanted) {
                Ok(count) => count,
                Err(error) => {
                    self.link.lost(error);
                    0
                }
            }
        };
        if count == 0 && self.stripes[index].ended {
            self.see_end(index);
        }
        self.consume(index, count);
        Ok(count)
    }

    /// The error that the peer has sent in place of a message, as far as it has come.
    fn failure(&mut self, code: u32, bytes: usize) -> Error {
        let _ = self.fill(0, usize::MAX);
        let text = self.stripes[0].text(HEAD_BYTES, bytes);
        let kind = u8::try_from(code).ok().and_then(ErrorKind::from_code).unwrap_or(ErrorKind::Remote);
        Error::new(kind, text)
    }
}

impl Receiver for TcpReceiver {
    fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }

    fn head(&mut self) -> Result<Option<MessageHead>> {
        if let Some(current) = &self.current {
            return Ok(Some(current.head));
        }
        if self.link.socket()?.is_none() {
            return Ok(None);
        }
        if self.stripes[0].len() < HEAD_BYTES {
            self.fill(0, usize::MAX)?;
        }
        let Some(head) = self.stripes[0].peek::<HEAD_BYTES>() else {
            if self.stripes[0].ended {
                self.link.lost("it closed the connection");
            }
            return Ok(None);
        };
        match Head::decode(&head) {
            Some(Head::Message(head)) => {
                self.stripes[0].skip(HEAD_BYTES);
                self.begin(head);
                Ok(Some(head))
            }
            Some(Head::Failure { code, bytes }) => Err(self.failure(code, bytes)),
            None => Err(self.link.broken("what it sends is no message")),
        }
    }

    fn contiguous(&mut self) -> Result<usize> {
        let width = self.widen();
        // One block at a time: the next one must not begin before this one is over.
        let mut at = self.stripes[..width].iter().position(Inlet::is_within);
        for index in 0..width {
            if at.is_none() && self.is_due(index)? {
                at = Some(index);
            }
        }
        if let (Some(at), Some(current)) = (at, &mut self.current) {
            current.at = at;
            if self.stripes[at].is_low() {
                self.fill(at, usize::MAX)?;
            }
            if self.stripes[at].readable() > 0 {
                return Ok(self.stripes[at].readable());
            }
            if self.stripes[at].ended {
                self.see_end(at);
            }
        }
        // Nothing is there: that may have a reason.
        self.link.socket().map(|_| 0)
    }

    fn view(&mut self, _bytes: usize, _scratch: UserPointer) -> Result<UserPointer> {
        let at = self.current.as_ref().map_or(0, |current| current.at);
        Ok(self.stripes[at].view())
    }

    fn copy_to(&mut self, device: &dyn Device, destination: UserPointer, bytes: usize) -> Result<()> {
        let view = self.view(bytes, destination)?;
        device.copy(destination, view, bytes);
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        let Some(current) = &self.current else { return };
        let at = current.at;
        self.stripes[at].skip(bytes);
        self.consume(at, bytes);
    }

    fn take(
        &mut self,
        device: &dyn Device,
        destination: UserPointer,
        most: usize,
        _streaming: bool,
    ) -> Result<usize> {
        let Some(current) = &self.current else { return Ok(0) };
        let base = destination.byte_sub(current.consumed);
        let mut moved = 0;
        for index in 0..self.widen() {
            if moved < most && self.current.is_some() {
                moved += self.scatter(index, device, base, most - moved)?;
            }
        }
        if moved == 0 {
            // That may have a reason.
            self.link.socket()?;
        }
        Ok(moved)
    }

    fn buffer_bytes(&self) -> usize {
        self.stripes.iter().map(Inlet::buffer_bytes).sum()
    }

    fn needs_scratch(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn waits_for(&self) -> u64 {
        if self.current.is_none() {
            return 1;
        }
        // What is announced waits for others; what has ended is always ready.
        let waits = |inlet: &Inlet| !inlet.ended && (inlet.front == Front::Unknown || inlet.is_within());
        let waiting = self.stripes.iter().enumerate().filter(|(_, inlet)| waits(inlet));
        waiting.fold(0, |mask, (index, _)| mask | 1 << index)
    }
}
