//! What has come on one connection.

use super::block::{BLOCK_HEAD_BYTES, BlockHead};
use crate::device::{Device, UserPointer};
use crate::encryption::Socket;
use crate::error::Result;
use crate::memory::Scratch;
use std::io;

/// What is received besides what goes straight into user memory.
const BUFFER_BYTES: usize = 256 << 10;
/// With less than that in the buffer it is worth asking for more.
const LITTLE_BYTES: usize = 32 << 10;
/// The longest head.
const MOST_HEAD_BYTES: usize = super::head::HEAD_BYTES;

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Front {
    /// That has not come yet.
    #[default]
    Unknown,
    /// The head of a message.
    Message,
    /// The bytes of a block that has not begun: its head is consumed.
    Announced(BlockHead),
    /// So many bytes of a block, whose next byte has its place there in the message.
    Within { offset: usize, left: usize },
}

/// The receiving end of one connection.
#[derive(Debug, Default)]
pub(super) struct Inlet {
    buffer: Scratch,
    /// What of the buffer has come and is not consumed.
    start: usize,
    end: usize,
    pub(super) front: Front,
    /// Nothing more will come.
    pub(super) ended: bool,
}

impl Inlet {
    /// How many bytes are in the buffer.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn has_some(&self) -> bool {
        self.end > self.start
    }

    /// True between a block's beginning and its end.
    pub(super) fn is_within(&self) -> bool {
        matches!(self.front, Front::Within { .. })
    }

    /// How much of the block can be read in the buffer.
    pub(super) fn readable(&self) -> usize {
        let Front::Within { left, .. } = self.front else { return 0 };
        left.min(self.len())
    }

    /// True if more should be taken in before the block is read on.
    pub(super) fn is_low(&self) -> bool {
        let Front::Within { left, .. } = self.front else { return false };
        self.len() < left.min(LITTLE_BYTES)
    }

    /// The next bytes, once they are there.
    pub(super) fn peek<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (start, end) = (self.start, self.end);
        if end - start < BYTES {
            return None;
        }
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&self.buffer.as_mut(end)[start..start + BYTES]);
        Some(bytes)
    }

    /// Those behind the next `from` bytes as text, as far as they are there.
    pub(super) fn text(&mut self, from: usize, bytes: usize) -> String {
        let (start, end) = (self.start + from, (self.start + from + bytes).min(self.end));
        String::from_utf8_lossy(&self.buffer.as_mut(end)[start.min(end)..]).into_owned()
    }

    /// How much memory it keeps.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Where the next byte lies, until more is taken in.
    pub(super) fn view(&mut self) -> UserPointer {
        self.buffer.start().byte_add(self.start)
    }

    /// Forgets bytes of the buffer.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// So many bytes of the block are where they belong.
    pub(super) fn consume(&mut self, bytes: usize) {
        if let Front::Within { offset, left } = self.front {
            let left = left - bytes;
            self.front =
                if left == 0 { Front::Unknown } else { Front::Within { offset: offset + bytes, left } };
        }
    }

    /// Has memory ready to receive into.
    pub(super) fn make_room(&mut self) -> Result<()> {
        self.buffer.ensure(BUFFER_BYTES).map(|_| ())
    }

    /// Takes in what is there, at most `most` bytes, as far as there is room: see [`Inlet::make_room`].
    pub(super) fn fill(&mut self, socket: &Socket, most: usize) -> io::Result<()> {
        let buffer = self.buffer.as_mut(BUFFER_BYTES);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == BUFFER_BYTES && self.end - self.start < MOST_HEAD_BYTES {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = (BUFFER_BYTES - self.end).min(most);
        if room == 0 || self.ended {
            return Ok(());
        }
        match socket.read_some(&mut buffer[self.end..self.end + room])? {
            Some(0) => self.ended = true,
            count => self.end += count.unwrap_or(0),
        }
        Ok(())
    }

    /// Receives at most `bytes` of the block to where it belongs, while the buffer is empty, and the head behind the block in the
    /// same go; how many bytes of the block.
    pub(super) fn receive(
        &mut self,
        device: &dyn Device,
        socket: &Socket,
        place: UserPointer,
        bytes: usize,
    ) -> io::Result<usize> {
        let Front::Within { left, .. } = self.front else { return Ok(0) };
        let tail = if bytes == left { BLOCK_HEAD_BYTES } else { 0 };
        let count = device.receive(socket, place, bytes, &mut self.buffer.as_mut(tail)[..])?;
        if count == Some(0) {
            self.ended = true;
        }
        let count = count.unwrap_or(0);
        (self.start, self.end) = (0, count.saturating_sub(bytes));
        Ok(count.min(bytes))
    }
}
