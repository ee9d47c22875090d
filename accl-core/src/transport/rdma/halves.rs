//! The two halves of a link.

use super::SLOT_BYTES;
use super::link::{Core, RdmaLink};
use super::record::Record;
use crate::device::{Device, Host, UserPointer};
use crate::error::{Error, Result};
use crate::transport::tcp::{HEAD_BYTES, Head};
use crate::transport::{MessageHead, Outgoing, Progress, Receiver, Sender};
use std::sync::Arc;

/// The sending half.
#[derive(Debug)]
pub struct RdmaSender {
    link: Arc<RdmaLink>,
    /// Messages that were handed over.
    sent: u64,
    /// A message has begun and not ended.
    is_amid: bool,
    /// All of it lies in the ring, and has yet to go.
    is_staged: bool,
}

impl RdmaSender {
    /// The sending half of `link`.
    pub fn new(link: Arc<RdmaLink>) -> Self {
        Self { link, sent: 0, is_amid: false, is_staged: false }
    }
}

impl Sender for RdmaSender {
    fn offer(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool> {
        let mut core = self.link.core();
        core.progress();
        let bytes = message.head.bytes;
        let mut moved = false;
        while let (false, Progress::Copied(done)) = (self.is_staged, message.progress) {
            if !core.may_stage(bytes)? {
                break;
            }
            let slot = core.next_slot();
            let head_bytes = if self.is_amid { 0 } else { HEAD_BYTES };
            if head_bytes > 0 {
                let head = core.aside.fill(&Head::Message(message.head).encode())?;
                Host.copy(slot, head, HEAD_BYTES);
            }
            let piece = (bytes - done).min(SLOT_BYTES - head_bytes);
            device.copy(slot.byte_add(head_bytes), message.source.byte_add(done), piece);
            core.sends.push((head_bytes + piece) as u32);
            // At once, so that the device works while the next one is copied.
            core.dispatch();
            moved = true;
            self.is_amid = done + piece < bytes;
            self.is_staged = !self.is_amid;
            message.progress = Progress::Copied(done + piece);
        }
        core.dispatch();
        if self.is_staged && core.has_gone() {
            (self.is_staged, message.progress) = (false, Progress::Done);
            self.sent += 1;
            moved = true;
        }
        if !moved && !message.is_handed_over() {
            core.check_blocked()?;
        }
        Ok(moved)
    }

    fn messages_consumed(&self) -> u64 {
        self.sent
    }

    fn waits_for(&self) -> u64 {
        1
    }

    fn close(&mut self) {
        let mut core = self.link.core();
        if self.is_amid {
            // A peer that waits for the rest must hear that it does not come.
            core.tcp.shut();
        } else {
            core.finish();
        }
    }

    fn close_failed(&mut self, error: &Error) {
        let mut core = self.link.core();
        core.channel
            .say(&Record::Failure { code: error.kind().code().into(), text: error.text().to_string() });
        core.look_at_connection();
        drop(core);
        self.close();
    }
}

impl Drop for RdmaSender {
    fn drop(&mut self) {
        self.close();
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct RdmaReceiver {
    link: Arc<RdmaLink>,
    current: Option<MessageHead>,
    /// Bytes of the message that are not consumed.
    left: usize,
    /// Bytes of the first slot that are.
    at: usize,
    consumed_bytes: u64,
}

impl RdmaReceiver {
    /// The receiving half of `link`.
    pub fn new(link: Arc<RdmaLink>) -> Self {
        Self { link, current: None, left: 0, at: 0, consumed_bytes: 0 }
    }
}

/// How many bytes the oldest segment has, if one is there.
fn first_segment(core: &mut Core) -> Result<Option<u32>> {
    if core.receives.first().is_none() {
        core.progress();
    }
    let first = core.receives.first();
    if first.is_none() {
        core.dispatch();
        core.check_blocked()?;
    }
    Ok(first)
}

impl Receiver for RdmaReceiver {
    fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }

    fn head(&mut self) -> Result<Option<MessageHead>> {
        if let Some(head) = self.current {
            return Ok(Some(head));
        }
        let mut core = self.link.core();
        let Some(bytes) = first_segment(&mut core)? else { return Ok(None) };
        let slot = core.first_slot();
        let place = core.aside.ensure(HEAD_BYTES)?;
        Host.copy(place, slot, HEAD_BYTES);
        let head = core.aside.as_mut(HEAD_BYTES).first_chunk().and_then(Head::decode);
        let Some(Head::Message(head)) = head.filter(|_| bytes as usize >= HEAD_BYTES) else {
            core.end_wrong("what it sends is no message");
            core.check_blocked()?;
            return Ok(None);
        };
        drop(core);
        (self.current, self.left, self.at) = (Some(head), head.bytes, HEAD_BYTES);
        Ok(Some(head))
    }

    fn contiguous(&mut self) -> Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let mut core = self.link.core();
        let Some(bytes) = first_segment(&mut core)? else { return Ok(0) };
        let expected = (self.at + self.left).min(SLOT_BYTES);
        // A slot that is begun has been looked at.
        let begun = if self.at > HEAD_BYTES { bytes as usize } else { expected };
        if bytes as usize != begun {
            core.end_wrong(format_args!("a segment has {bytes} bytes in place of {expected}"));
            core.check_blocked()?;
        }
        Ok(bytes as usize - self.at)
    }

    fn view(&mut self, _bytes: usize, _scratch: UserPointer) -> Result<UserPointer> {
        Ok(self.link.core().first_slot().byte_add(self.at))
    }

    fn copy_to(&mut self, device: &dyn Device, destination: UserPointer, bytes: usize) -> Result<()> {
        let view = self.view(bytes, destination)?;
        device.copy(destination, view, bytes);
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        if self.current.is_none() || bytes == 0 && self.left > 0 {
            return;
        }
        self.at += bytes;
        self.left -= bytes;
        self.consumed_bytes += bytes as u64;
        let mut core = self.link.core();
        if self.left == 0 || self.at == SLOT_BYTES {
            core.receives.consume();
            self.at = 0;
            core.give_credit();
        }
        if self.left == 0 {
            self.current = None;
        }
    }

    fn needs_scratch(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn buffer_bytes(&self) -> usize {
        // Once for the link: a ring for each direction.
        let core = self.link.core();
        core.send_ring.bytes() + core.receive_ring.bytes()
    }

    fn waits_for(&self) -> u64 {
        1
    }
}
