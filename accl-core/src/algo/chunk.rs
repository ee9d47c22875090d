//! Cutting data into chunks and segments.

use super::Request;
use crate::types::Rank;
use std::ops::Range;

impl Request {
    /// The chunk of `owner` when all elements are shared out among the ranks: equal chunks that begin at
    /// multiples of the alignment, so that the last ones may be shorter, or empty.
    pub(super) fn chunk(&self, owner: Rank) -> Range<usize> {
        self.chunk_of(0..self.count_elems, owner)
    }

    /// The same for a part of the elements.
    pub(super) fn chunk_of(&self, part: Range<usize>, owner: Rank) -> Range<usize> {
        let chunk_elems = part.len().div_ceil(self.ranks).next_multiple_of(self.align_elems);
        let start = (part.start + owner * chunk_elems).min(part.end);
        start..(start + chunk_elems).min(part.end)
    }

    /// The block of `owner` in a buffer that holds one block of `count_elems` for each rank.
    pub(super) fn block(&self, owner: Rank) -> Range<usize> {
        owner * self.count_elems..(owner + 1) * self.count_elems
    }

    /// The two halves for two trees.
    pub(super) fn halves(&self) -> [Range<usize>; 2] {
        let middle = (self.count_elems / 2).next_multiple_of(self.align_elems).min(self.count_elems);
        [0..middle, middle..self.count_elems]
    }
}

/// The `index`-th segment of `range`; empty beyond the end.
pub(super) fn segment(range: &Range<usize>, segment_elems: usize, index: usize) -> Range<usize> {
    let start = (range.start + index * segment_elems).min(range.end);
    start..(start + segment_elems).min(range.end)
}

/// How many segments `range` has.
pub(super) fn segments(range: &Range<usize>, segment_elems: usize) -> usize {
    range.len().div_ceil(segment_elems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Collective;

    #[test]
    fn chunks_cover_everything_once() {
        for ranks in 1..=9 {
            for count_elems in [0, 1, 7, 8, 9, 64, 1000] {
                let request = Request {
                    kind: Collective::AllReduce,
                    ranks,
                    rank: 0,
                    root: 0,
                    count_elems,
                    segment_elems: 5,
                    align_elems: 4,
                    staging_elems: 0,
                };
                let mut next = 0;
                for owner in 0..ranks {
                    let chunk = request.chunk(owner);
                    assert_eq!(chunk.start, next);
                    next = chunk.end;
                    let parts: usize = (0..segments(&chunk, 5)).map(|i| segment(&chunk, 5, i).len()).sum();
                    assert_eq!(parts, chunk.len());
                    assert!(segment(&chunk, 5, segments(&chunk, 5)).is_empty());
                }
                assert_eq!(next, count_elems);
            }
        }
    }
}
