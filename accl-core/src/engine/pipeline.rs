//! Calls of one rank in a row, as they lie on a host stream: small ones are posted several at a time, before the first of
//! them is finished, so that ranks meet once for many calls.
//!
//! A call may be posted early if its input is there already: no call before it that is not finished writes there. The
//! board allows [`BOARD_AHEAD`] posted calls, and none behind one with data beyond the heads.

use super::call::Call;
use super::drive::{Job, Work};
use super::endpoint::Endpoint;
use super::exchange::Exchange;
use super::seat::Seat;
use super::watch::Stall;
use super::{Operation, Poll};
use crate::algo::contributed_blocks;
use crate::device::UserPointer;
use crate::error::Result;
use crate::transport::shm::{BOARD_AHEAD, BOARD_INLINE_BYTES};
use crate::types::Rank;
use std::collections::VecDeque;
use std::ops::Range;

/// Calls that are finished before others get a look.
const MOST_AT_ONCE: usize = 64;

/// How far a row of calls is.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    /// Calls that have been posted and are not finished: the first ones of the row.
    posted: usize,
    /// The first rank that is not known to agree on the first of them.
    agreed: Rank,
    /// Addresses from the first to the last byte that those which are posted will write.
    outputs: Range<usize>,
    /// The first call, where it is not that simple.
    single: Work,
}

/// What a poll has achieved.
#[derive(Debug)]
pub(super) struct Advance {
    /// So many of the first calls are finished.
    pub(super) finished: usize,
    /// True if anything moved.
    pub(super) moved: bool,
}

impl Pipeline {
    /// Makes what progress it can with the first `count` of `calls`. After an error, that of the first call which is not
    /// finished, the pipeline is to be dropped.
    pub(super) fn poll(
        &mut self,
        calls: &VecDeque<Call>,
        count: usize,
        endpoint: &mut Endpoint,
    ) -> (Advance, Result<()>) {
        let mut advance = Advance { finished: 0, moved: false };
        let outcome = self.advance(calls, count, endpoint, &mut advance);
        (advance, outcome)
    }

    fn advance(
        &mut self,
        calls: &VecDeque<Call>,
        count: usize,
        endpoint: &mut Endpoint,
        advance: &mut Advance,
    ) -> Result<()> {
        while advance.finished < count.min(MOST_AT_ONCE) {
            let mut moved = self.post(calls, advance.finished..count, endpoint);
            while self.posted > 0 && self.finish(&calls[advance.finished], endpoint)? {
                advance.finished += 1;
                moved = true;
            }
            advance.moved |= moved;
            if moved {
                continue;
            }
            if self.posted > 0 {
                break;
            }
            let job = Job { calls: &[calls[advance.finished]], ..Job::default() };
            match self.single.poll(&job, endpoint)? {
                Poll::Done => {
                    self.single = Work::default();
                    advance.finished += 1;
                    advance.moved = true;
                }
                Poll::Advanced => {
                    advance.moved = true;
                    break;
                }
                Poll::Blocked => break,
            }
        }
        Ok(())
    }

    /// Posts as many calls as may be posted; true if that is any. `row` are those which are not finished.
    fn post(&mut self, calls: &VecDeque<Call>, row: Range<usize>, endpoint: &mut Endpoint) -> bool {
        if self.single.has_begun() {
            return false;
        }
        let (rank, ranks, before) = (endpoint.rank, endpoint.ranks, self.posted);
        while self.posted < row.len().min(BOARD_AHEAD) {
            let at = row.start + self.posted;
            let call = &calls[at];
            let size = call.dtype.size_bytes();
            if self.posted > 0 {
                let previous = &calls[at - 1];
                let data_bytes = previous.count_bytes() * contributed_blocks(previous.kind, ranks);
                let input = addresses(call.send, call.input_elems(ranks, rank) * size);
                if data_bytes > BOARD_INLINE_BYTES || overlap(&input, &self.outputs) {
                    break;
                }
            }
            if Exchange::post_quietly(call, endpoint).is_none() {
                break;
            }
            let output = addresses(call.recv, call.output_elems(ranks, rank) * size);
            self.outputs = if self.posted == 0 { output } else { hull(&self.outputs, &output) };
            self.posted += 1;
        }
        if self.posted == before {
            return false;
        }
        if let Some(fabric) = &endpoint.fabric {
            fabric.board.ring_peers();
        }
        true
    }

    /// Finishes the first call, which has been posted; false if ranks have not come to it.
    #[inline]
    fn finish(&mut self, call: &Call, endpoint: &mut Endpoint) -> Result<bool> {
        let mut exchange = Exchange::resume(call, self.first(endpoint), self.agreed, endpoint);
        let finished = exchange.poll(endpoint)? == Poll::Done;
        self.agreed = if finished { 0 } else { exchange.agreed() };
        self.posted -= usize::from(finished);
        Ok(finished)
    }

    /// The number of the first call, if it has been posted.
    fn first(&self, endpoint: &Endpoint) -> u64 {
        endpoint.sequence + 1 - self.posted as u64
    }

    /// Looks for reasons to give up the first call.
    pub(super) fn examine(
        &self,
        call: &Call,
        stall: &mut Stall,
        seat: &Seat,
        endpoint: &mut Endpoint,
    ) -> Result<()> {
        if self.posted == 0 {
            return stall.examine(seat, endpoint, &self.single);
        }
        let exchange = Exchange::resume(call, self.first(endpoint), self.agreed, endpoint);
        let work = Work::of(exchange.into_op(endpoint.ranks));
        stall.examine(seat, endpoint, &work)
    }
}

fn addresses(start: UserPointer, bytes: usize) -> Range<usize> {
    start.address()..start.address().saturating_add(bytes)
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The least range that both lie in; empty ones lie anywhere.
fn hull(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other.clone(),
        (_, true) => one.clone(),
        _ => one.start.min(other.start)..one.end.max(other.end),
    }
}
