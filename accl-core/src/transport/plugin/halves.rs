//! The two halves of a link.

use super::link::{Carrier, PluginLink};
use super::record::Record;
use super::{SLOT_BYTES, rings};
use crate::device::{Device, Host, UserPointer};
use crate::error::{Error, Result};
use crate::memory::Scratch;
use crate::transport::tcp::{HEAD_BYTES, Head, TcpReceiver, TcpSender};
use crate::transport::{MessageHead, Outgoing, Progress, Receiver, Sender};
use std::sync::Arc;

/// The sending half.
#[derive(Debug)]
pub struct PluginSender {
    /// Where TCP carries everything.
    plain: Option<TcpSender>,
    link: Arc<PluginLink>,
    tcp: Arc<crate::transport::tcp::Link>,
    /// Messages that were handed over, before TCP did.
    sent: u64,
    /// A message has begun and not ended.
    is_amid: bool,
    /// All of it is copied, and has yet to go.
    is_staged: bool,
}

impl PluginSender {
    /// The sending half of `link`.
    pub fn new(link: Arc<PluginLink>) -> Self {
        let tcp = link.core().tcp.clone();
        Self { plain: None, link, tcp, sent: 0, is_amid: false, is_staged: false }
    }

    /// Copies what there is room for; true if anything was.
    fn stage(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool> {
        let mut core = self.link.core();
        let mut moved = false;
        let bytes = message.head.bytes;
        while let (false, Progress::Copied(done)) = (self.is_staged, message.progress) {
            let core = &mut *core;
            let head = Head::Message(message.head).encode();
            let head_bytes = if self.is_amid { 0 } else { HEAD_BYTES };
            let piece = if core.carrier == Carrier::Plugin
                && let Some(sending) = core.sending.as_mut().filter(|sending| sending.has_room())
            {
                let slot = sending.next_slot();
                if head_bytes > 0 {
                    Host.copy(slot, core.aside.fill(&head)?, HEAD_BYTES);
                }
                let piece = (bytes - done).min(SLOT_BYTES - head_bytes);
                device.copy(slot.byte_add(head_bytes), message.source.byte_add(done), piece);
                sending.stage(head_bytes + piece);
                // At once, so that the plugin works while the next one is copied.
                core.move_segments();
                piece
            } else if core.may_be_early(bytes) {
                let whole = core.aside.ensure(HEAD_BYTES + bytes)?;
                core.aside.as_mut(HEAD_BYTES).copy_from_slice(&head);
                device.copy(whole.byte_add(HEAD_BYTES), message.source, bytes);
                let whole = core.aside.read(HEAD_BYTES + bytes);
                core.send_early(whole);
                bytes
            } else {
                break;
            };
            moved = true;
            self.is_amid = done + piece < bytes;
            self.is_staged = !self.is_amid;
            message.progress = Progress::Copied(done + piece);
        }
        Ok(moved)
    }
}

impl Sender for PluginSender {
    fn offer(&mut self, device: &dyn Device, message: &mut Outgoing) -> Result<bool> {
        if let Some(plain) = &mut self.plain {
            return plain.offer(device, message);
        }
        self.link.core().progress();
        let mut moved = self.stage(device, message)?;
        let mut core = self.link.core();
        if self.is_staged && core.has_gone() {
            (self.is_staged, message.progress) = (false, Progress::Done);
            self.sent += 1;
            moved = true;
        }
        if message.is_handed_over() {
            return Ok(moved);
        }
        if core.carrier == Carrier::Tcp
            && core.channel.is_flushed()
            && core.failure.is_none()
            && !self.is_staged
        {
            drop(core);
            let plain = self.plain.insert(TcpSender::new(self.tcp.clone()));
            plain.offer(device, message)?;
            return Ok(true);
        }
        if !moved {
            core.check_blocked()?;
        }
        Ok(moved)
    }

    fn messages_consumed(&self) -> u64 {
        self.sent + self.plain.as_ref().map_or(0, Sender::messages_consumed)
    }

    fn waits_for(&self) -> u64 {
        self.plain.as_ref().map_or(0, Sender::waits_for)
    }

    fn close(&mut self) {
        if let Some(plain) = &mut self.plain {
            return plain.close();
        }
        let mut core = self.link.core();
        if self.is_amid || core.failure.is_some() {
            // A peer that waits for the rest must hear that it does not come.
            self.tcp.shut();
            core.close();
        } else {
            core.finish();
        }
    }

    fn close_failed(&mut self, error: &Error) {
        if let Some(plain) = &mut self.plain {
            return plain.close_failed(error);
        }
        let mut core = self.link.core();
        core.channel
            .say(&Record::Failure { code: error.kind().code().into(), text: error.text().to_string() });
        core.look_at_connection();
        // What is under way stays so: nobody waits for it.
        core.close();
    }
}

impl Drop for PluginSender {
    fn drop(&mut self) {
        self.close();
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct PluginReceiver {
    plain: Option<TcpReceiver>,
    link: Arc<PluginLink>,
    current: Option<MessageHead>,
    /// It is early, and lies here.
    is_early: bool,
    early: Scratch,
    /// Bytes of the message that are not consumed.
    left: usize,
    /// Bytes of its first slot that are.
    at: usize,
    consumed_bytes: u64,
}

impl PluginReceiver {
    /// The receiving half of `link`.
    pub fn new(link: Arc<PluginLink>) -> Self {
        Self {
            plain: None,
            link,
            current: None,
            is_early: false,
            early: Scratch::default(),
            left: 0,
            at: 0,
            consumed_bytes: 0,
        }
    }

    fn begin(&mut self, head: MessageHead, is_early: bool) -> MessageHead {
        (self.current, self.is_early, self.left, self.at) = (Some(head), is_early, head.bytes, HEAD_BYTES);
        head
    }

    /// The next message, if it is there and TCP does not carry it by itself.
    fn next(&mut self) -> Result<Option<MessageHead>> {
        let link = self.link.clone();
        let mut core = link.core();
        let has_some = |core: &super::link::Core| core.receiving.as_ref().and_then(rings::Receiving::first);
        if core.early.is_empty() && has_some(&core).is_none() {
            core.progress();
        }
        let wrong = "what it sends is no message";
        if let Some(bytes) = core.early.pop_front() {
            match bytes.first_chunk().and_then(Head::decode) {
                Some(Head::Message(head)) if head.bytes == bytes.len() - HEAD_BYTES => {
                    self.early.fill(&bytes)?;
                    return Ok(Some(self.begin(head, true)));
                }
                _ => core.end_wrong(wrong),
            }
        }
        let core = &mut *core;
        while let Some(receiving) = &mut core.receiving
            && let Some(bytes) = receiving.first()
        {
            if bytes < HEAD_BYTES {
                // It only ends a receive.
                receiving.consume();
                continue;
            }
            let place = core.aside.ensure(HEAD_BYTES)?;
            Host.copy(place, receiving.first_slot(), HEAD_BYTES);
            let head = core.aside.as_mut(HEAD_BYTES).first_chunk().and_then(Head::decode);
            if let Some(Head::Message(head)) = head {
                receiving.promise((HEAD_BYTES + head.bytes).div_ceil(SLOT_BYTES) as u64);
                return Ok(Some(self.begin(head, false)));
            }
            core.end_wrong(wrong);
            break;
        }
        core.check_blocked()?;
        Ok(None)
    }

    /// True if TCP carries what comes now.
    fn is_plain(&mut self) -> bool {
        if self.plain.is_none() && self.current.is_none() {
            let core = self.link.core();
            if core.carrier == Carrier::Tcp
                && core.peer_switched
                && core.early.is_empty()
                && core.failure.is_none()
            {
                self.plain = Some(TcpReceiver::new(core.tcp.clone()));
            }
        }
        self.plain.is_some()
    }
}

impl Receiver for PluginReceiver {
    fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes + self.plain.as_ref().map_or(0, Receiver::consumed_bytes)
    }

    fn head(&mut self) -> Result<Option<MessageHead>> {
        if let Some(head) = self.current {
            return Ok(Some(head));
        }
        if !self.is_plain()
            && let Some(head) = self.next()?
        {
            return Ok(Some(head));
        }
        if self.is_plain()
            && let Some(plain) = &mut self.plain
        {
            return plain.head();
        }
        Ok(None)
    }

    fn contiguous(&mut self) -> Result<usize> {
        if let Some(plain) = &mut self.plain {
            return plain.contiguous();
        }
        if self.is_early || self.left == 0 {
            return Ok(self.left);
        }
        let mut core = self.link.core();
        let first = |core: &super::link::Core| core.receiving.as_ref().and_then(rings::Receiving::first);
        if first(&core).is_none() {
            core.progress();
        }
        let Some(bytes) = first(&core) else {
            core.check_blocked()?;
            return Ok(0);
        };
        // A slot that is begun has its size, as a plugin says it; any other has what must come.
        let expected = (self.at + self.left).min(SLOT_BYTES);
        let is_fresh =
            self.at == 0 || self.at == HEAD_BYTES && self.current.is_some_and(|head| head.bytes == self.left);
        if is_fresh && bytes != expected {
            core.end_wrong(format_args!(
                "a segment has {bytes} bytes in place of {expected}, as the network plugin says; see its own log, or set NCCL_NET_PLUGIN=none"
            ));
            core.check_blocked()?;
        }
        Ok(bytes - self.at)
    }

    fn view(&mut self, bytes: usize, scratch: UserPointer) -> Result<UserPointer> {
        if let Some(plain) = &mut self.plain {
            return plain.view(bytes, scratch);
        }
        if self.is_early {
            return Ok(self.early.start().byte_add(self.at));
        }
        let core = self.link.core();
        let slot = core.receiving.as_ref().map(rings::Receiving::first_slot);
        let slot = slot.ok_or_else(|| Error::remote("the link was closed while a message was read; see the first failure, and make another communicator"))?;
        Ok(slot.byte_add(self.at))
    }

    fn copy_to(&mut self, device: &dyn Device, destination: UserPointer, bytes: usize) -> Result<()> {
        if let Some(plain) = &mut self.plain {
            return plain.copy_to(device, destination, bytes);
        }
        let view = self.view(bytes, destination)?;
        device.copy(destination, view, bytes);
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        if let Some(plain) = &mut self.plain {
            return plain.advance(bytes);
        }
        if self.current.is_none() || bytes == 0 && self.left > 0 {
            return;
        }
        self.at += bytes;
        self.left -= bytes;
        self.consumed_bytes += bytes as u64;
        if !self.is_early && (self.left == 0 || self.at == SLOT_BYTES) {
            let mut core = self.link.core();
            if let Some(receiving) = &mut core.receiving {
                receiving.consume();
            }
            self.at = 0;
            core.move_segments();
        }
        if self.left == 0 {
            (self.current, self.is_early) = (None, false);
        }
    }

    fn take(
        &mut self,
        device: &dyn Device,
        destination: UserPointer,
        most: usize,
        streaming: bool,
    ) -> Result<usize> {
        if let Some(plain) = &mut self.plain {
            return plain.take(device, destination, most, streaming);
        }
        let piece = self.contiguous()?.min(most);
        if piece == 0 {
            return Ok(0);
        }
        let view = self.view(piece, destination)?;
        if streaming {
            device.copy_streaming(destination, view, piece);
        } else {
            device.copy(destination, view, piece);
        }
        self.advance(piece);
        Ok(piece)
    }

    fn buffer_bytes(&self) -> usize {
        // Once for the link: a ring for each direction.
        let core = self.link.core();
        let rings = usize::from(core.sending.is_some()) + usize::from(core.receiving.is_some());
        rings * rings::RING_BYTES + self.plain.as_ref().map_or(0, Receiver::buffer_bytes)
    }

    fn needs_scratch(&mut self) -> Result<bool> {
        self.plain.as_mut().map_or(Ok(false), Receiver::needs_scratch)
    }

    fn waits_for(&self) -> u64 {
        self.plain.as_ref().map_or(1, Receiver::waits_for)
    }
}
