//! Messages on a connection, both halves.

use super::head::{FAILURE_TEXT_BYTES, HEAD_BYTES, Head};
use super::network::Link;
use super::wake::Readiness;
use crate::device::{Device, UserPointer};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Scratch;
use crate::os::socket;
use crate::transport::{MessageHead, Outgoing, Progress, Receiver, Sender};
use std::sync::Arc;

/// What is received besides what goes straight into user memory.
const BUFFER_BYTES: usize = 256 << 10;
/// With less than that in the buffer it is worth asking for more.
const LITTLE_BYTES: usize = 32 << 10;
/// Pieces that are at least so large go straight into user memory.
const DIRECT_BYTES: usize = 8 << 10;

/// The sending half.
#[derive(Debug)]
pub struct TcpSender {
    link: Arc<Link>,
    /// The head of the message that is on its way, and how much of it still has to go.
    head: [u8; HEAD_BYTES],
    head_left: usize,
    /// True between the first byte of a message and its last.
    amid: bool,
    sent: u64,
}

impl TcpSender {
    /// The sending half of `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, head: [0; HEAD_BYTES], head_left: 0, amid: false, sent: 0 }
    }
}

impl Sender for TcpSender {
    fn offer(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool> {
        let Progress::Copied(mut done) = message.progress else { return Ok(false) };
        let Some(socket) = self.link.socket()? else { return Ok(false) };
        if !self.amid {
            self.amid = true;
            self.head = Head::Message(message.head).encode();
            self.head_left = HEAD_BYTES;
        }
        let mut moved = false;
        while self.head_left > 0 || done < message.head.bytes {
            let head = &self.head[HEAD_BYTES - self.head_left..];
            let body = message.source.byte_add(done);
            let sent = device.send(socket, head, body, message.head.bytes - done);
            let sent = match sent {
                Ok(Some(sent)) => sent,
                Ok(None) => break,
                Err(error) => {
                    self.link.lost(error);
                    break;
                }
            };
            let of_head = sent.min(self.head_left);
            self.head_left -= of_head;
            done += sent - of_head;
            moved = true;
        }
        message.progress = Progress::Copied(done);
        if self.head_left == 0 && done == message.head.bytes {
            message.progress = Progress::Done;
            self.amid = false;
            self.sent += 1;
        }
        Ok(moved)
    }

    fn messages_consumed(&self) -> u64 {
        self.sent
    }

    fn ring_when_ready(&self) -> Result<()> {
        self.link.ring_when(Readiness::ReadOrWrite)
    }

    fn close(&mut self) {
        // A peer that waits for the rest of a message must hear that it does not come.
        if let (true, Some(socket)) = (self.amid, self.link.connected()) {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    fn close_failed(&mut self, error: &Error) {
        if let (false, Some(socket)) = (self.amid, self.link.connected()) {
            let text = &error.text()[..error.text().floor_char_boundary(FAILURE_TEXT_BYTES)];
            let head = Head::Failure { code: error.kind().code().into(), bytes: text.len() }.encode();
            // As far as there is room: it is a kindness.
            let _ = socket::write_some(socket, &head, text.as_bytes());
        }
        self.close();
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        self.close();
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct TcpReceiver {
    link: Arc<Link>,
    buffer: Scratch,
    /// What of the buffer has come and is not consumed.
    start: usize,
    end: usize,
    /// The message that is being received, and how much of it is not consumed.
    current: Option<(MessageHead, usize)>,
}

impl TcpReceiver {
    /// The receiving half of `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, buffer: Scratch::default(), start: 0, end: 0, current: None }
    }

    /// Takes in what is there, as far as there is room.
    fn fill(&mut self) -> Result<()> {
        let Some(socket) = self.link.socket()? else { return Ok(()) };
        self.buffer.ensure(BUFFER_BYTES);
        let buffer = self.buffer.as_mut(BUFFER_BYTES);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == BUFFER_BYTES && self.end - self.start < HEAD_BYTES {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == BUFFER_BYTES {
            return Ok(());
        }
        match socket::read_some(socket, &mut buffer[self.end..]) {
            Ok(Some(0)) => self.link.lost("it closed the connection"),
            Ok(count) => self.end += count.unwrap_or(0),
            Err(error) => self.link.lost(error),
        }
        Ok(())
    }

    /// The error that the peer has sent in place of a message, as far as it has come.
    fn failure(&mut self, code: u32, bytes: usize) -> Error {
        let _ = self.fill();
        let (from, to) = (self.start + HEAD_BYTES, (self.start + HEAD_BYTES + bytes).min(self.end));
        let text = String::from_utf8_lossy(&self.buffer.as_mut(to)[from.min(to)..]).into_owned();
        let kind = u8::try_from(code).ok().and_then(ErrorKind::from_code).unwrap_or(ErrorKind::Remote);
        Error::new(kind, text)
    }
}

impl Receiver for TcpReceiver {
    fn head(&mut self) -> Result<Option<MessageHead>> {
        if let Some((head, _)) = self.current {
            return Ok(Some(head));
        }
        if self.end - self.start < HEAD_BYTES {
            self.fill()?;
        }
        if self.end - self.start < HEAD_BYTES {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        head.copy_from_slice(&self.buffer.as_mut(self.end)[self.start..self.start + HEAD_BYTES]);
        match Head::decode(&head) {
            Some(Head::Message(head)) => {
                self.start += HEAD_BYTES;
                self.current = Some((head, head.bytes));
                Ok(Some(head))
            }
            Some(Head::Failure { code, bytes }) => Err(self.failure(code, bytes)),
            None => Err(self.link.broken("what it sends is no message")),
        }
    }

    fn contiguous(&mut self) -> Result<usize> {
        let Some((_, left)) = self.current else { return Ok(0) };
        if (self.end - self.start) < left.min(LITTLE_BYTES) {
            self.fill()?;
        }
        Ok(left.min(self.end - self.start))
    }

    fn view(&mut self, _bytes: usize, _scratch: UserPointer) -> Result<UserPointer> {
        Ok(self.buffer.ensure(self.end).byte_add(self.start))
    }

    fn copy_to(&mut self, device: &dyn Device, destination: UserPointer, bytes: usize) -> Result<()> {
        device.copy(destination, self.buffer.ensure(self.end).byte_add(self.start), bytes);
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        if let Some((_, left)) = &mut self.current {
            self.start += bytes;
            *left -= bytes;
            if *left == 0 {
                self.current = None;
            }
        }
    }

    fn take(
        &mut self,
        device: &dyn Device,
        destination: UserPointer,
        most: usize,
        _streaming: bool,
    ) -> Result<usize> {
        let Some((_, left)) = self.current else { return Ok(0) };
        let wanted = left.min(most);
        if self.start == self.end && wanted >= DIRECT_BYTES {
            let Some(socket) = self.link.socket()? else { return Ok(0) };
            let count = match device.receive(socket, destination, wanted) {
                Ok(Some(0)) => {
                    self.link.lost("it closed the connection");
                    0
                }
                Ok(count) => count.unwrap_or(0),
                Err(error) => {
                    self.link.lost(error);
                    0
                }
            };
            // Not a byte of it is in the buffer.
            self.current =
                self.current.map(|(head, left)| (head, left - count)).filter(|(_, left)| *left > 0);
            return Ok(count);
        }
        let piece = self.contiguous()?.min(most);
        self.copy_to(device, destination, piece)?;
        self.advance(piece);
        Ok(piece)
    }

    fn needs_scratch(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn ring_when_ready(&self) -> Result<()> {
        self.link.ring_when(Readiness::Read)
    }
}
