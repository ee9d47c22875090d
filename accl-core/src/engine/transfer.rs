//! The sends and receives of one rank in one group, as a state machine.
//!
//! They all run at once: messages between two ranks keep their order, different peers do not wait for each other.

use super::Poll;
use super::call::Transfer;
use super::endpoint::Endpoint;
use super::lanes::PIECE_BYTES;
use crate::device::{Device, UserPointer};
use crate::error::{Error, Result};
use crate::telemetry::calls;
use crate::transport::MessageHead;
use crate::types::Rank;
use std::collections::{BTreeMap, VecDeque};

/// A receive that is not complete.
#[derive(Debug)]
struct Incoming {
    buffer: UserPointer,
    bytes: usize,
    done: usize,
    number: u64,
}

/// All transfers of a group.
#[derive(Debug)]
pub(crate) struct TransferOp {
    incoming: BTreeMap<Rank, VecDeque<Incoming>>,
    /// The first send that is not handed over yet, for explanations.
    sends: Vec<(Rank, u64)>,
}

impl TransferOp {
    /// Queues everything. Transfers with oneself have been dealt with by the caller.
    pub(crate) fn begin(transfers: &[Transfer], endpoint: &mut Endpoint) -> Result<Self> {
        let (device, recorder) = (endpoint.device, endpoint.recorder.clone());
        let lanes = &mut endpoint.fabric()?.point_to_point;
        let mut op = Self { incoming: BTreeMap::new(), sends: Vec::new() };
        for transfer in transfers {
            let lane = lanes.to(transfer.peer);
            let number = 1 + if transfer.send { lane.sent } else { lane.received };
            let what = calls::transfer(transfer.send, transfer.peer);
            recorder.begin_transfer(number, what, transfer.bytes as u64);
            if transfer.send {
                let head = MessageHead { bytes: transfer.bytes, tag: lane.sent + 1, scale: None, call: None };
                lane.send(device, transfer.buffer, head)?;
                op.sends.push((transfer.peer, lane.sent));
            } else {
                lane.received += 1;
                let number = lane.received;
                op.incoming.entry(transfer.peer).or_default().push_back(Incoming {
                    buffer: transfer.buffer,
                    bytes: transfer.bytes,
                    done: 0,
                    number,
                });
            }
        }
        Ok(op)
    }

    /// Makes what progress it can.
    pub(crate) fn poll(&mut self, endpoint: &mut Endpoint) -> Result<Poll> {
        let (device, rank) = (endpoint.device, endpoint.rank);
        let lanes = &mut endpoint.fabric()?.point_to_point;
        let mut moved = lanes.pump(device)?;
        for (peer, queue) in &mut self.incoming {
            while let Some(first) = queue.front_mut() {
                moved |= receive(device, &mut *lanes.to(*peer).receiver, first, (*peer, rank))?;
                if first.done < first.bytes || first.number != 0 {
                    break;
                }
                queue.pop_front();
            }
        }
        self.incoming.retain(|_, queue| !queue.is_empty());
        let drained = lanes.poll_drained(device)?;
        if self.incoming.is_empty() && drained == Poll::Done {
            endpoint.recorder.complete_transfers();
            return Ok(Poll::Done);
        }
        Ok(if moved || drained == Poll::Advanced { Poll::Advanced } else { Poll::Blocked })
    }

    /// The ranks that this one waits for.
    pub(crate) fn waits_for(&self, endpoint: &Endpoint, missing: &mut Vec<Rank>) {
        missing.extend(self.incoming.keys().copied());
        if let Some(fabric) = &endpoint.fabric {
            missing.extend(fabric.point_to_point.undrained());
        }
    }

    /// What this rank waits for: direction, peer and which message.
    pub(crate) fn waiting(&self, endpoint: &Endpoint) -> Option<(bool, Rank, u64)> {
        if let Some((peer, queue)) = self.incoming.first_key_value() {
            return queue.front().map(|first| (false, *peer, first.number));
        }
        let peer = endpoint.fabric.as_ref()?.point_to_point.undrained().next()?;
        self.sends.iter().find(|(to, _)| *to == peer).map(|(_, number)| (true, peer, *number))
    }
}

/// Moves what has come of one message; a finished one has its number set to 0.
fn receive(
    device: &dyn Device,
    receiver: &mut dyn crate::transport::Receiver,
    message: &mut Incoming,
    (from, to): (Rank, Rank),
) -> Result<bool> {
    let mut moved = false;
    loop {
        let Some(head) = receiver.head()? else { return Ok(moved) };
        if head.tag != message.number {
            return Err(Error::internal(format!(
                "rank {from} sent message #{} where #{} was due",
                head.tag, message.number
            )));
        }
        if head.bytes != message.bytes {
            return Err(Error::usage(format!(
                "sizes differ: rank {from} sends {} bytes to rank {to} (message #{}), whose Recv is for {} bytes; make \
                 count and type of both calls equal",
                head.bytes, head.tag, message.bytes
            )));
        }
        if message.bytes == 0 {
            receiver.advance(0);
        } else {
            let place = message.buffer.byte_add(message.done);
            let most = (message.bytes - message.done).min(PIECE_BYTES);
            let piece = receiver.take(device, place, most, false)?;
            if piece == 0 {
                return Ok(moved);
            }
            message.done += piece;
        }
        moved = true;
        if message.done == message.bytes {
            message.number = 0;
            return Ok(true);
        }
    }
}
