//! The sending half of a link.

use super::block::{BLOCK_HEAD_BYTES, BlockHead, WINDOW, blocks_of, span_of};
use super::head::{FAILURE_TEXT_BYTES, HEAD_BYTES, Head};
use super::link::{Link, MOST_STRIPES};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::transport::{Outgoing, Progress, Sender};
use std::sync::Arc;

/// The sending half.
#[derive(Debug)]
pub struct TcpSender {
    link: Arc<Link>,
    /// Of each connection that was there for a message.
    stripes: Vec<Outlet>,
    /// The next block of the message that is on its way. None between messages.
    next_block: Option<u64>,
    /// Messages that are sent.
    sent: u64,
}

/// What one connection has to send.
#[derive(Clone, Debug)]
struct Outlet {
    /// Heads that go before the block.
    heads: [u8; HEAD_BYTES + BLOCK_HEAD_BYTES],
    heads_from: usize,
    heads_to: usize,
    /// The block: where it lies in the message, and how much of it is left.
    offset: usize,
    left: usize,
}

impl Outlet {
    const fn idle() -> Self {
        Self { heads: [0; HEAD_BYTES + BLOCK_HEAD_BYTES], heads_from: 0, heads_to: 0, offset: 0, left: 0 }
    }

    fn is_idle(&self) -> bool {
        self.left == 0 && self.heads_from == self.heads_to
    }

    /// Adds a head behind those that have yet to go.
    fn push(&mut self, head: &[u8]) {
        if self.heads_from == self.heads_to {
            (self.heads_from, self.heads_to) = (0, 0);
        }
        self.heads[self.heads_to..self.heads_to + head.len()].copy_from_slice(head);
        self.heads_to += head.len();
    }

    /// So much has gone; how much of that is the block's.
    fn advance(&mut self, sent: usize) -> usize {
        let of_heads = sent.min(self.heads_to - self.heads_from);
        self.heads_from += of_heads;
        self.offset += sent - of_heads;
        self.left -= sent - of_heads;
        sent - of_heads
    }
}

impl TcpSender {
    /// The sending half of `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, stripes: Vec::new(), next_block: None, sent: 0 }
    }

    /// Begins a message: its head goes first, and its block right behind it if there is only one.
    fn begin(&mut self, message: &Outgoing) {
        self.stripes.resize(self.stripes.len().max(1), Outlet::idle());
        self.stripes[0].push(&Head::Message(message.head).encode());
        self.next_block = Some(0);
        let bytes = message.head.bytes;
        if blocks_of(bytes) > 1 {
            self.link.widen();
        } else {
            (self.stripes[0].offset, self.stripes[0].left) = span_of(bytes, 0, 1);
            self.next_block = Some(1);
        }
    }

    /// Gives a connection the next blocks, if it has nothing to send and there are some: one where there are several connections,
    /// so that the fast ones get more.
    fn give(&mut self, index: usize, bytes: usize, width: usize) {
        let Some(block) = self.next_block.filter(|block| *block < blocks_of(bytes)) else { return };
        let outlet = &mut self.stripes[index];
        // A message's head alone may still have to go.
        if outlet.left == 0 && outlet.heads_to - outlet.heads_from <= HEAD_BYTES {
            let blocks = if width > 1 { 1 } else { (blocks_of(bytes) - block).min(WINDOW) };
            outlet.push(&BlockHead { message: self.sent as u32, block, blocks }.encode());
            (outlet.offset, outlet.left) = span_of(bytes, block, blocks);
            self.next_block = Some(block + blocks);
        }
    }

    /// Has one connection send what it takes at once.
    fn pour(&mut self, index: usize, width: usize, device: &dyn Device, message: &mut Outgoing) -> Poured {
        if self.link.stripe(index).is_some() {
            self.give(index, message.head.bytes, width);
        }
        let Some(socket) = self.link.stripe(index) else { return Poured::Nothing };
        let outlet = &mut self.stripes[index];
        if outlet.is_idle() {
            return Poured::Nothing;
        }
        let heads = &outlet.heads[outlet.heads_from..outlet.heads_to];
        let sent = match device.send(socket, heads, message.source.byte_add(outlet.offset), outlet.left) {
            Ok(Some(sent)) => sent,
            Ok(None) => return Poured::Nothing,
            Err(error) => {
                self.link.lost(error);
                return Poured::Nothing;
            }
        };
        let of_block = outlet.advance(sent);
        if let Progress::Copied(done) = &mut message.progress {
            *done += of_block;
        }
        if outlet.is_idle() { Poured::All } else { Poured::Some }
    }

    fn is_amid(&self) -> bool {
        self.next_block.is_some()
    }
}

/// What a connection has sent of what it had to send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Poured {
    Nothing,
    /// There is no room for more.
    Some,
    All,
}

impl Sender for TcpSender {
    fn offer(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool> {
        if message.is_handed_over() || self.link.socket()?.is_none() {
            return Ok(false);
        }
        if !self.is_amid() {
            self.begin(message);
        }
        let bytes = message.head.bytes;
        let mut width = 1;
        if blocks_of(bytes) > 1 {
            width = self.link.widen();
            self.stripes.resize(width.max(self.stripes.len()), Outlet::idle());
        }
        // Bits of those that may have room.
        let mut open = u64::MAX >> (MOST_STRIPES - width);
        let mut moved = false;
        while open != 0 {
            // The first connection comes last: the heads of messages need room there.
            for index in (0..width).rev() {
                if open & 1 << index == 0 {
                    continue;
                }
                let poured = self.pour(index, width, device, message);
                moved |= poured != Poured::Nothing;
                if poured != Poured::All {
                    open &= !(1 << index);
                }
            }
        }
        if message.progress == Progress::Copied(bytes) && self.stripes.iter().all(Outlet::is_idle) {
            message.progress = Progress::Done;
            self.next_block = None;
            self.sent += 1;
        }
        Ok(moved)
    }

    fn messages_consumed(&self) -> u64 {
        self.sent
    }

    fn waits_for(&self) -> u64 {
        let busy = self.stripes.iter().enumerate().filter(|(_, outlet)| !outlet.is_idle());
        busy.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    fn close(&mut self) {
        // A peer that waits for the rest of a message must hear that it does not come.
        if self.is_amid() {
            self.link.shut();
        }
    }

    fn close_failed(&mut self, error: &Error) {
        if let (false, Some(socket)) = (self.is_amid(), self.link.stripe(0)) {
            let text = &error.text()[..error.text().floor_char_boundary(FAILURE_TEXT_BYTES)];
            let head = Head::Failure { code: error.kind().code().into(), bytes: text.len() }.encode();
            // As far as there is room: it is a kindness.
            let _ = socket.write_some(&head, text.as_bytes());
        }
        self.close();
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        self.close();
    }
}
