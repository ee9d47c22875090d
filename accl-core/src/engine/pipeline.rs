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
const MOST_AT_ONCE: usize = 2 * BOARD_AHEAD;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::algo::{Facts, Selection};
    use crate::config::{Settings, Source};
    use crate::engine::{Fabric, Operator};
    use crate::memory::Scratch;
    use crate::telemetry::Recorder;
    use crate::transport::mem;
    use crate::transport::shm::Reach;
    use crate::types::{Collective, DataType, ReduceOp};

    /// One rank: a row of calls on its own memory, 32-bit integers that begin as 1, 2, 3, …
    struct Rank {
        endpoint: Endpoint,
        memory: Scratch,
        calls: VecDeque<Call>,
        pipeline: Pipeline,
    }

    const ELEMS: i32 = 400;

    /// Two ranks that make AllReduces of `count_elems` from one place to another, both given in elements.
    fn ranks(count_elems: usize, places: &[(usize, usize)]) -> [Rank; 2] {
        let arena = mem::arena(2).unwrap();
        let settings = Settings::from_source(&Source::of_pairs(&[])).unwrap();
        [0, 1].map(|rank| {
            let fabric = Fabric::new(&arena, rank, &[Reach::SameProcess; 2], None);
            let facts = Facts::for_tests(&settings);
            let endpoint = Endpoint::new(
                rank,
                2,
                Some(fabric),
                facts,
                1 << 18,
                Recorder::without_file().unwrap().into(),
            );
            let mut memory = Scratch::default();
            let bytes: Vec<u8> = (1..=ELEMS).flat_map(i32::to_ne_bytes).collect();
            let start = memory.fill(&bytes).unwrap();
            let call = |(from, to): &(usize, usize)| Call {
                kind: Collective::AllReduce,
                dtype: DataType::Int32,
                operator: Operator::plain(ReduceOp::Sum),
                root: 0,
                count_elems,
                send: start.byte_add(4 * from),
                recv: start.byte_add(4 * to),
                selection: Selection::default(),
            };
            let calls = places.iter().map(call).collect();
            Rank { endpoint, memory, calls, pipeline: Pipeline::default() }
        })
    }

    impl Rank {
        /// Polls; returns how many calls are finished and how many are posted.
        fn poll(&mut self) -> (usize, usize) {
            let (advance, outcome) = self.pipeline.poll(&self.calls, self.calls.len(), &mut self.endpoint);
            outcome.unwrap();
            self.calls.drain(..advance.finished);
            (advance.finished, self.pipeline.posted)
        }

        fn value(&self, elem: usize) -> i32 {
            let bytes = self.memory.read(4 * ELEMS as usize);
            i32::from_ne_bytes(bytes[4 * elem..4 * elem + 4].try_into().unwrap())
        }
    }

    #[test]
    fn calls_are_posted_before_the_first_is_finished() {
        let places: Vec<_> = (0..200).map(|at| (at, 200 + at)).collect();
        let [mut a, mut b] = ranks(1, &places);
        assert_eq!(a.poll(), (0, BOARD_AHEAD));
        assert_eq!(a.poll(), (0, BOARD_AHEAD));
        // The other finds all of them, and posts as many again.
        assert_eq!(b.poll(), (BOARD_AHEAD, BOARD_AHEAD));
        assert_eq!(a.poll(), (MOST_AT_ONCE, 0));
        assert_eq!(b.poll(), (BOARD_AHEAD, BOARD_AHEAD));
        assert_eq!(a.poll(), (BOARD_AHEAD, 200 - MOST_AT_ONCE - BOARD_AHEAD));
        assert_eq!(b.poll(), (200 - MOST_AT_ONCE, 0));
        assert_eq!(a.poll(), (200 - MOST_AT_ONCE - BOARD_AHEAD, 0));
        for rank in [a, b] {
            assert!((0..200).all(|at| rank.value(200 + at) == 2 * (at as i32 + 1)));
        }
    }

    #[test]
    fn a_call_that_reads_a_result_waits_for_it() {
        // The third reads what the first writes, the fourth works in place.
        let [mut a, mut b] = ranks(2, &[(0, 10), (2, 12), (11, 20), (20, 20)]);
        assert_eq!(a.poll(), (0, 2));
        assert_eq!(b.poll(), (2, 1));
        assert_eq!(a.poll(), (3, 1));
        assert_eq!(b.poll(), (2, 0));
        assert_eq!(a.poll(), (1, 0));
        for rank in [a, b] {
            // 2 and 3 twice; then those once more; then once more.
            assert_eq!((rank.value(10), rank.value(11), rank.value(12)), (2, 4, 6));
            assert_eq!((rank.value(20), rank.value(21)), (4 * 4, 4 * 6));
        }
    }

    #[test]
    fn nothing_is_posted_behind_more_data_than_a_head_holds() {
        let [mut a, mut b] = ranks(9, &[(0, 100), (10, 110), (20, 120)]);
        assert_eq!(a.poll(), (0, 1));
        assert_eq!(b.poll(), (1, 1));
        assert_eq!(a.poll(), (2, 1));
        assert_eq!(b.poll(), (2, 0));
        assert_eq!(a.poll(), (1, 0));
        assert_eq!([a.value(100), a.value(128), b.value(128)], [2, 58, 58]);
    }

    #[test]
    fn larger_calls_take_their_turn_between_small_ones() {
        let [mut a, mut b] = ranks(1, &[(0, 100), (1, 101), (2, 102)]);
        for rank in [&mut a, &mut b] {
            // No simple call: its buffers overlap.
            rank.calls[1].count_elems = 4;
            rank.calls[1].recv = rank.calls[1].send.byte_add(4);
        }
        assert_eq!(a.poll(), (0, 1));
        assert_eq!(b.poll(), (1, 0));
        assert!(b.pipeline.single.has_begun());
        assert_eq!(a.poll(), (2, 1));
        assert_eq!(b.poll(), (2, 0));
        assert_eq!(a.poll(), (1, 0));
        // 2, 3, 4, 5 twice, one place further; the last call reads the first of them.
        assert_eq!([a.value(100), a.value(1), a.value(2), a.value(5), a.value(102)], [2, 2, 4, 10, 8]);
        assert_eq!([b.value(2), b.value(102)], [4, 8]);
    }

    #[test]
    fn ranks_that_disagree_finish_what_was_before() {
        let [mut a, mut b] = ranks(1, &[(0, 100), (1, 101), (2, 102), (3, 103)]);
        b.calls[2].operator = Operator::plain(ReduceOp::Max);
        assert_eq!(a.poll(), (0, 4));
        for rank in [b, a] {
            let Rank { mut endpoint, calls, mut pipeline, .. } = rank;
            let (advance, outcome) = pipeline.poll(&calls, calls.len(), &mut endpoint);
            let error = outcome.unwrap_err();
            assert_eq!((advance.finished, error.kind()), (2, ErrorKind::InvalidUsage));
            assert!(error.text().contains("collective #3"), "{error}");
        }
    }

    #[test]
    fn ranges_that_are_empty_lie_anywhere() {
        assert!(overlap(&(2..4), &(3..9)) && !overlap(&(2..4), &(4..9)) && !overlap(&(0..0), &(0..9)));
        assert_eq!(
            [hull(&(2..4), &(8..9)), hull(&(5..5), &(8..9)), hull(&(2..4), &(0..0))],
            [2..9, 8..9, 2..4]
        );
    }
}
