//! Runs the steps of one plan.

use super::Poll;
use super::collective::CollectiveOp;
use super::endpoint::Endpoint;
use super::explain;
use super::lanes::{Fabric, PIECE_BYTES, PeerLane};
use crate::algo::{Buffer, Choice, Operand, Plan, Span, Step};
use crate::device::{self, Device, UserPointer};
use crate::error::{Error, Result};
use crate::reduce::{Form, Reduction};
use crate::transport::shm::Place;
use crate::transport::{MessageHead, Outgoing};
use crate::types::Rank;

/// Memory for pieces of peers' data that cannot be read in place, for all peers together: it should stay in the
/// second-level cache.
const PIECES_BYTES: usize = 256 << 10;

/// A plan under way.
#[derive(Debug, Default)]
pub(super) struct StepRunner {
    plan: Option<Plan>,
    next: usize,
    /// Elements (of a `Reduce`) or bytes (of a `Recv`) of the current step that are done.
    done: usize,
    partial: Option<UserPointer>,
    transit: Option<UserPointer>,
    staging: Option<UserPointer>,
    advanced: bool,
    /// How often this rank has told its peers where it is.
    tells: u64,
    /// Results are more than caches hold, and are stored past them.
    streaming: bool,
}

impl StepRunner {
    pub(super) fn has_plan(&self) -> bool {
        self.plan.is_some()
    }

    /// Begins with a plan. `streaming`: results are stored past the caches.
    pub(super) fn start(
        &mut self,
        plan: Plan,
        reduction: &Reduction,
        streaming: bool,
        endpoint: &mut Endpoint,
    ) -> Result<()> {
        let memory = &mut endpoint.memory;
        self.partial = Some(memory.partial.ensure(plan.partial_elems * reduction.accumulator_bytes())?);
        self.transit = Some(memory.transit.ensure(plan.transit_elems * reduction.element_bytes())?);
        self.staging = endpoint.fabric.as_ref().map(|fabric| fabric.lent.staging(endpoint.rank));
        self.plan = Some(plan);
        self.tells = 0;
        self.streaming = streaming;
        Ok(())
    }

    /// Gives the plan's memory back.
    pub(super) fn finish(&mut self) -> Plan {
        self.plan.take().unwrap_or_default()
    }

    /// True if anything moved since this was last asked.
    pub(super) fn take_advanced(&mut self) -> bool {
        std::mem::take(&mut self.advanced)
    }

    /// Runs steps until one has to wait.
    pub(super) fn poll(&mut self, op: &CollectiveOp, endpoint: &mut Endpoint) -> Result<Poll> {
        let plan = self.plan.take().unwrap_or_default();
        let device = endpoint.device;
        if let Some(fabric) = &mut endpoint.fabric {
            self.advanced |= fabric.collective.pump(device)?;
        }
        let mut result = Ok(Poll::Done);
        while let Some(step) = plan.steps.get(self.next) {
            match self.step(step, &plan, op, endpoint) {
                Ok(true) => {
                    self.next += 1;
                    self.done = 0;
                    self.advanced = true;
                }
                Ok(false) => {
                    result = Ok(Poll::Blocked);
                    break;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.plan = Some(plan);
        if matches!(result, Ok(Poll::Done)) && !device.is_through()? {
            return Ok(Poll::Blocked);
        }
        result
    }

    /// True once the step is done.
    fn step(&mut self, step: &Step, plan: &Plan, op: &CollectiveOp, endpoint: &mut Endpoint) -> Result<bool> {
        let device = endpoint.device;
        match step {
            Step::Send { to, span } => {
                let scale = if span.buffer == Buffer::Input { op.scale } else { None };
                let fabric = endpoint.fabric()?;
                let call = (!fabric.is_local(*to)).then_some(op.posted);
                let head = MessageHead { bytes: op.bytes(span), tag: op.sequence, scale, call };
                let copied = op.choice == Choice::Passing;
                let mut message = Outgoing::new(self.address(op, span), head);
                message.copied = copied;
                fabric.collective.to(*to).queue(device, message)?;
                Ok(true)
            }
            Step::Copy { from, to } => {
                let (target, source) = (self.address(op, to), self.address(op, from));
                // What peers read next had better be in a cache.
                if to.buffer == Buffer::Staging {
                    device.copy(target, source, op.bytes(to));
                } else {
                    self.copy(device, target, source, op.bytes(to));
                }
                Ok(true)
            }
            Step::Drain { to } => {
                let lane = endpoint.fabric()?.collective.to(*to);
                self.advanced |= lane.pump(device)?;
                Ok(lane.is_drained())
            }
            Step::Recv { from, span } => {
                let to = self.address(op, span);
                self.recv(op, endpoint, *from, to, op.bytes(span))
            }
            Step::Read { from, source, to } => self.read(op, endpoint, *from, source, to),
            Step::Tell => {
                // Whoever is told may write what this rank has read, and read what it has written.
                if !device.is_through()? {
                    return Ok(false);
                }
                self.tells += 1;
                endpoint.fabric()?.lent.tell(op.sequence, self.tells);
                Ok(true)
            }
            Step::Await { from, tells } => Ok(endpoint.fabric()?.lent.has_told(*from, op.sequence, *tells)),
            Step::Reduce { operands, to } => self.reduce(op, endpoint, &plan.operands[operands.clone()], to),
        }
    }

    fn recv(
        &mut self,
        op: &CollectiveOp,
        endpoint: &mut Endpoint,
        from: Rank,
        to: UserPointer,
        bytes: usize,
    ) -> Result<bool> {
        let (device, rank) = (endpoint.device, endpoint.rank);
        let lane = endpoint.fabric()?.collective.to(from);
        while self.done < bytes {
            if !has_begun(lane, op, (from, rank), bytes)? {
                return Ok(false);
            }
            let most = (bytes - self.done).min(PIECE_BYTES);
            let piece = lane.receiver.take(device, to.byte_add(self.done), most, self.streaming)?;
            if piece == 0 {
                return Ok(false);
            }
            self.done += piece;
            self.advanced = true;
        }
        Ok(true)
    }

    fn read(
        &mut self,
        op: &CollectiveOp,
        endpoint: &mut Endpoint,
        from: Rank,
        source: &Span,
        to: &Span,
    ) -> Result<bool> {
        let (device, bytes) = (endpoint.device, op.bytes(to));
        let target = self.address(op, to);
        // What the kernel copies does not go past the caches; a second copy from a cached piece does.
        let fabric = endpoint.fabric()?;
        let source = lent_place(op, fabric, from, source);
        let by_pieces = self.streaming && fabric.lent.needs_scratch(from, source, bytes);
        let limit = if by_pieces { PIECES_BYTES / 2 } else { PIECE_BYTES };
        let piece = (bytes - self.done).min(limit);
        let place = target.byte_add(self.done);
        let scratch = if by_pieces { endpoint.memory.pieces.ensure(piece)? } else { place };
        let fabric = endpoint.fabric()?;
        let view = fabric.lent.view(from, source.byte_add(self.done), piece, scratch);
        if let Ok(view) = view {
            self.copy(device, place, view, piece);
        }
        let released = fabric.lent.release(from, source);
        view.and(released)?;
        self.done += piece;
        self.advanced = true;
        Ok(self.done == bytes)
    }

    fn copy(&self, device: &dyn Device, to: UserPointer, from: UserPointer, bytes: usize) {
        if self.streaming {
            device.copy_streaming(to, from, bytes);
        } else {
            device.copy(to, from, bytes);
        }
    }

    fn reduce(
        &mut self,
        op: &CollectiveOp,
        endpoint: &mut Endpoint,
        operands: &[Operand],
        to: &Span,
    ) -> Result<bool> {
        while self.done < to.count_elems {
            let (block, scratch_bytes) = self.block(op, endpoint, operands, to)?;
            if block == 0 {
                return Ok(false);
            }
            let mut views = std::mem::take(&mut endpoint.operands);
            views.clear();
            let gathered = self.gather(op, endpoint, operands, (block, scratch_bytes), &mut views);
            if gathered.is_ok() {
                let form = if to.buffer == Buffer::Partial { Form::Accumulator } else { Form::Element };
                let target = self.address(op, to).byte_add(self.done * op.unit_bytes(to.buffer));
                if self.streaming && to.buffer == Buffer::Output && !op.shares_results() {
                    endpoint.device.reduce_streaming(&op.reduction, &views, target, form, block);
                } else {
                    endpoint.device.reduce(&op.reduction, &views, target, form, block);
                }
            }
            endpoint.operands = views;
            // After a failure the views that were taken must still be given back: their lenders may be waiting.
            let consumed = if gathered.is_ok() { block } else { 0 };
            let mut released = Ok(());
            for operand in operands {
                match operand {
                    Operand::Local(_) => {}
                    Operand::Peer(peer, buffer) => {
                        let receiver = &mut endpoint.fabric()?.collective.to(*peer).receiver;
                        receiver.advance(consumed * op.unit_bytes(*buffer));
                    }
                    Operand::Remote(peer, span) => {
                        let fabric = endpoint.fabric()?;
                        let place = lent_place(op, fabric, *peer, span);
                        let given_back = fabric.lent.release(*peer, place);
                        released = released.and(given_back);
                    }
                }
            }
            gathered.and(released)?;
            self.done += block;
            self.advanced = true;
            // Results that are queued already should not wait for the rest of a long step.
            let device = endpoint.device;
            if let Some(fabric) = &mut endpoint.fabric {
                fabric.collective.pump(device)?;
            }
        }
        Ok(true)
    }

    /// How many elements of every operand are there, and the scratch memory that each operand needs for so many: none if all are read in
    /// place.
    fn block(
        &self,
        op: &CollectiveOp,
        endpoint: &mut Endpoint,
        operands: &[Operand],
        to: &Span,
    ) -> Result<(usize, usize)> {
        let mut block = to.count_elems - self.done;
        let mut scratch_unit = 0;
        let rank = endpoint.rank;
        let peers = peers_among(operands);
        for operand in operands {
            let (unit, there, needs_scratch) = match operand {
                Operand::Local(_) => continue,
                Operand::Peer(peer, buffer) => {
                    let unit = op.unit_bytes(*buffer);
                    let lane = endpoint.fabric()?.collective.to(*peer);
                    let there = arrived(lane, op, (*peer, rank), to.count_elems * unit)?;
                    (unit, there, lane.receiver.needs_scratch()?)
                }
                Operand::Remote(peer, span) => {
                    let unit = op.unit_bytes(span.buffer);
                    let fabric = endpoint.fabric()?;
                    let place = lent_place(op, fabric, *peer, span);
                    (unit, usize::MAX, fabric.lent.needs_scratch(*peer, place, span.count_elems * unit))
                }
            };
            let limit = if needs_scratch { piece_bytes(peers) } else { PIECE_BYTES };
            block = block.min(there.min(limit) / unit);
            if needs_scratch {
                scratch_unit = scratch_unit.max(unit);
            }
        }
        Ok((block, (block * scratch_unit).next_multiple_of(64)))
    }

    /// The operands' next elements, in place where that is possible; so many and with so much scratch memory for each as
    /// [`StepRunner::block`] says.
    fn gather(
        &self,
        op: &CollectiveOp,
        endpoint: &mut Endpoint,
        operands: &[Operand],
        (block, stride): (usize, usize),
        views: &mut Vec<device::Operand>,
    ) -> Result<()> {
        let mut scratch = endpoint.memory.pieces.ensure(stride * peers_among(operands))?;
        for operand in operands {
            views.push(match operand {
                Operand::Local(span) => {
                    let start = self.address(op, span).byte_add(self.done * op.unit_bytes(span.buffer));
                    let scale = if span.buffer == Buffer::Input { op.scale } else { None };
                    device::Operand { start, form: form_of(span.buffer), scale }
                }
                Operand::Peer(peer, buffer) => {
                    let receiver = &mut endpoint.fabric()?.collective.to(*peer).receiver;
                    let scale = receiver.head()?.and_then(|head| head.scale);
                    let start = receiver.view(block * op.unit_bytes(*buffer), scratch)?;
                    scratch = scratch.byte_add(stride);
                    device::Operand { start, form: form_of(*buffer), scale }
                }
                Operand::Remote(peer, span) => {
                    let (unit, sequence) = (op.unit_bytes(span.buffer), op.sequence);
                    let fabric = endpoint.fabric()?;
                    let place = lent_place(op, fabric, *peer, span).byte_add(self.done * unit);
                    let start = fabric.lent.view(*peer, place, block * unit, scratch)?;
                    // Peers' results are only read, never folded: what is staged for that is untouched input.
                    let scaled = op.scale.is_some();
                    let scale = scaled.then(|| fabric.board.scale(*peer, sequence));
                    scratch = scratch.byte_add(stride);
                    device::Operand { start, form: form_of(span.buffer), scale }
                }
            });
        }
        Ok(())
    }

    fn address(&self, op: &CollectiveOp, span: &Span) -> UserPointer {
        let base = match span.buffer {
            Buffer::Input => op.call.send,
            Buffer::Output => op.call.recv,
            Buffer::Partial => self.partial.unwrap_or(UserPointer::null()),
            Buffer::Transit => self.transit.unwrap_or(UserPointer::null()),
            Buffer::Staging => self.staging.unwrap_or(UserPointer::null()),
        };
        base.byte_add(span.start_elems * op.unit_bytes(span.buffer))
    }

    /// The rank that the current step waits for, if it is one.
    pub(super) fn waits_for_first(&self) -> Option<Rank> {
        match self.plan.as_ref()?.steps.get(self.next)? {
            Step::Await { from, .. } | Step::Recv { from, .. } => Some(*from),
            Step::Drain { to } => Some(*to),
            _ => None,
        }
    }

    /// The ranks whose data the current step needs and does not have.
    pub(super) fn waits_for(&self, fabric: &mut Fabric, missing: &mut Vec<Rank>) {
        let Some(plan) = &self.plan else { return };
        let mut need = |peer: Rank| {
            if matches!(fabric.collective.to(peer).receiver.contiguous(), Ok(0)) {
                missing.push(peer);
            }
        };
        match plan.steps.get(self.next) {
            Some(Step::Recv { from, .. }) => need(*from),
            Some(Step::Drain { to }) => missing.push(*to),
            Some(Step::Await { from, .. }) => missing.push(*from),
            Some(Step::Reduce { operands, .. }) => {
                for operand in &plan.operands[operands.clone()] {
                    if let Operand::Peer(peer, _) = operand {
                        need(*peer);
                    }
                }
            }
            _ => {}
        }
    }
}

impl CollectiveOp {
    /// Bytes of one element as it lies in a buffer.
    fn unit_bytes(&self, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Input | Buffer::Output | Buffer::Staging | Buffer::Transit => {
                self.reduction.element_bytes()
            }
            Buffer::Partial => self.reduction.accumulator_bytes(),
        }
    }

    fn bytes(&self, span: &Span) -> usize {
        span.count_elems * self.unit_bytes(span.buffer)
    }
}

/// Where a span of a peer's buffers lies.
fn lent_place(op: &CollectiveOp, fabric: &Fabric, peer: Rank, span: &Span) -> Place {
    let start = span.start_elems * op.unit_bytes(span.buffer);
    if span.buffer == Buffer::Staging {
        return Place::Staged(start);
    }
    let offer = fabric.board.offer(peer, op.sequence);
    Place::At(if span.buffer == Buffer::Output { offer.output } else { offer.input }).byte_add(start)
}

/// How many operands are other ranks' data.
fn peers_among(operands: &[Operand]) -> usize {
    operands.iter().filter(|operand| !matches!(operand, Operand::Local(_))).count()
}

/// How many bytes of the message that should come next are there; an error if another one comes.
fn arrived(lane: &mut PeerLane, op: &CollectiveOp, ranks: (Rank, Rank), bytes: usize) -> Result<usize> {
    if has_begun(lane, op, ranks, bytes)? { lane.receiver.contiguous() } else { Ok(0) }
}

/// True if that message is there, or a part of it.
fn has_begun(
    lane: &mut PeerLane,
    op: &CollectiveOp,
    (from, rank): (Rank, Rank),
    bytes: usize,
) -> Result<bool> {
    let Some(head) = lane.receiver.head()? else { return Ok(false) };
    if let Some(call) = head.call.filter(|call| (*call, head.tag) != (op.posted, op.sequence)) {
        return Err(explain::disagreement(rank, op.posted, op.sequence, from, call, head.tag));
    }
    if head.tag != op.sequence || head.bytes != bytes {
        return Err(Error::internal(format!(
            "rank {from} sent {} bytes for operation {}, need {bytes} bytes for operation {}",
            head.bytes, head.tag, op.sequence
        )));
    }
    Ok(true)
}

/// Scratch memory for one of `peers` whose data cannot be read in place.
fn piece_bytes(peers: usize) -> usize {
    (PIECES_BYTES / peers.max(1)).max(16 << 10) / 64 * 64
}

fn form_of(buffer: Buffer) -> Form {
    if buffer == Buffer::Partial { Form::Accumulator } else { Form::Element }
}
