//! Which data must be where after an operation, and the comparison with what is there.

use crate::buffer::Buffer;
use crate::datatype::DataType;
use crate::pattern::{Pattern, Tile};
use crate::test::{Counts, Matrix, Test};

/// Whose pattern a part of the result follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The input of a rank.
    Rank(usize),
    Reduced,
}

/// A part of a receive buffer and what belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    first_elem: usize,
    count_elems: usize,
    source: Source,
    /// The pattern's element that comes first.
    start_elem: usize,
}

/// A case as one rank verifies it.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) test: Test,
    pub(crate) kind: DataType,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) root: i32,
    pub(crate) counts: Counts,
    pub(crate) matrix: Option<&'a Matrix>,
}

/// Where the call's buffers start, in elements, when both are one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InPlace {
    pub(crate) send_elem: usize,
    pub(crate) recv_elem: usize,
}

impl Shape<'_> {
    pub(crate) fn in_place(&self) -> InPlace {
        let own = self.rank * self.counts.param_elems;
        match self.test {
            Test::AllGather | Test::Gather | Test::Hypercube => InPlace { send_elem: own, recv_elem: 0 },
            Test::ReduceScatter | Test::Scatter => InPlace { send_elem: 0, recv_elem: own },
            _ => InPlace::default(),
        }
    }

    fn segments(&self) -> Vec<Segment> {
        let count = self.counts.param_elems;
        let at_root = self.rank as i32 == self.root;
        let whole =
            |source, start_elem| vec![Segment { first_elem: 0, count_elems: count, source, start_elem }];
        let from_all = |start_elem| {
            let segment = |rank| Segment {
                first_elem: rank * count,
                count_elems: count,
                source: Source::Rank(rank),
                start_elem,
            };
            (0..self.ranks).map(segment).collect()
        };
        let root = Source::Rank(self.root.max(0) as usize);
        match self.test {
            Test::AllReduce => whole(Source::Reduced, 0),
            Test::Reduce if at_root => whole(Source::Reduced, 0),
            Test::ReduceScatter => whole(Source::Reduced, self.rank * count),
            Test::Broadcast => whole(root, 0),
            Test::Scatter => whole(root, self.rank * count),
            Test::AllGather | Test::Hypercube => from_all(0),
            Test::Gather if at_root => from_all(0),
            Test::AlltoAll => from_all(self.rank * count),
            Test::SendRecv => whole(Source::Rank((self.rank + self.ranks - 1) % self.ranks), 0),
            Test::AlltoAllv => self.matrix.map_or_else(Vec::new, |matrix| self.uneven(matrix)),
            Test::Reduce | Test::Gather => Vec::new(),
        }
    }

    fn uneven(&self, matrix: &Matrix) -> Vec<Segment> {
        let segment = |from| Segment {
            first_elem: matrix.recv_offset(from, self.rank),
            count_elems: matrix.elems(from, self.rank),
            source: Source::Rank(from),
            start_elem: matrix.send_offset(from, self.rank),
        };
        (0..self.ranks).map(segment).collect()
    }

    /// Whether this rank's send buffer is read at all.
    fn sends(&self) -> bool {
        !matches!(self.test, Test::Broadcast | Test::Scatter) || self.rank as i32 == self.root
    }
}

/// A wrong element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) index: usize,
    pub(crate) expected: u64,
    pub(crate) got: u64,
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) wrong_elems: u64,
    /// The first few.
    pub(crate) first: Vec<Wrong>,
    /// Bytes written outside of the buffers.
    pub(crate) stray_bytes: usize,
    /// Elements of the send buffer that an operation changed.
    pub(crate) changed_inputs: u64,
}

/// How many wrong elements are shown.
const SHOWN: usize = 8;
/// Lies in receive buffers before the operation.
const POISON: u8 = 0xa5;

/// The data of one verification: inputs and answers.
#[derive(Debug)]
pub(crate) struct Check<'a> {
    pub(crate) shape: &'a Shape<'a>,
    pub(crate) pattern: Pattern,
    pub(crate) in_place: bool,
}

impl Check<'_> {
    fn bytes(&self, elems: usize) -> usize {
        elems * self.shape.kind.bytes()
    }

    /// Lays out inputs, poison and guards.
    pub(crate) fn prepare(&self, send: &mut Buffer, recv: &mut Buffer) {
        let counts = self.shape.counts;
        let pattern = &self.pattern;
        let rank = self.shape.rank;
        let tile = Tile::new(pattern.kind, counts.send_elems, |index| pattern.input(rank, index));
        if self.in_place {
            let used = self.bytes(counts.send_elems.max(counts.recv_elems));
            recv.arm(used);
            recv.data(0, used).fill(POISON);
            let start = self.bytes(self.shape.in_place().send_elem);
            if self.shape.sends() {
                tile.fill(recv.data(start, self.bytes(counts.send_elems)), 0);
            }
        } else {
            send.arm(self.bytes(counts.send_elems));
            recv.arm(self.bytes(counts.recv_elems));
            recv.data(0, self.bytes(counts.recv_elems)).fill(POISON);
            tile.fill(send.data(0, self.bytes(counts.send_elems)), 0);
        }
    }

    /// Compares after the operation.
    pub(crate) fn compare(&self, send: &mut Buffer, recv: &mut Buffer) -> Finding {
        let mut finding = Finding::default();
        let base = if self.in_place { self.shape.in_place().recv_elem } else { 0 };
        let tolerance = self.pattern.tolerance_ulps();
        let pattern = &self.pattern;
        let mut reduced = None;
        for segment in self.shape.segments() {
            let until = segment.start_elem + segment.count_elems;
            let data = recv.data(self.bytes(base + segment.first_elem), self.bytes(segment.count_elems));
            let mut wrong = |index, expected, got| {
                finding.wrong_elems += 1;
                if finding.first.len() < SHOWN {
                    finding.first.push(Wrong { index: segment.first_elem + index, expected, got });
                }
            };
            match segment.source {
                Source::Rank(rank) => {
                    let tile = Tile::new(pattern.kind, until, |index| pattern.input(rank, index));
                    tile.check(data, segment.start_elem, 0, &mut wrong);
                }
                Source::Reduced => {
                    let tile = reduced.get_or_insert_with(|| {
                        Tile::new(pattern.kind, until, |index| pattern.reduced(index))
                    });
                    tile.check(data, segment.start_elem, tolerance, &mut wrong);
                }
            }
        }
        finding.stray_bytes = recv.damage();
        if !self.in_place {
            finding.stray_bytes += send.damage();
            let count = self.shape.counts.send_elems;
            let rank = self.shape.rank;
            let tile = Tile::new(pattern.kind, count, |index| pattern.input(rank, index));
            tile.check(send.data(0, self.bytes(count)), 0, 0, |_, _, _| finding.changed_inputs += 1);
        }
        finding
    }
}

impl Finding {
    /// The number for the table: whatever is not as it must be.
    pub(crate) fn total(&self) -> u64 {
        self.wrong_elems + self.stray_bytes as u64 + self.changed_inputs
    }

    /// Lines for people.
    pub(crate) fn describe(&self, rank: usize, kind: DataType, what: &str) -> Vec<String> {
        let mut lines: Vec<String> = self
            .first
            .iter()
            .map(|wrong| {
                let width = 2 * kind.bytes();
                format!(
                    "rank {rank}, index {}: expected {} (0x{:0width$x}), got {} (0x{:0width$x}) in {what}",
                    wrong.index,
                    kind.show(wrong.expected),
                    wrong.expected,
                    kind.show(wrong.got),
                    wrong.got,
                )
            })
            .collect();
        if self.wrong_elems > self.first.len() as u64 {
            lines.push(format!("rank {rank}: {} wrong elements in all in {what}", self.wrong_elems));
        }
        if self.stray_bytes > 0 {
            lines.push(format!(
                "rank {rank}: {} bytes written outside the buffers in {what}",
                self.stray_bytes
            ));
        }
        if self.changed_inputs > 0 {
            lines.push(format!(
                "rank {rank}: {} elements of the input changed in {what}",
                self.changed_inputs
            ));
        }
        lines
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
