//! Calls in pieces: what goes through staging memory of a fixed size at once. Pure arithmetic.
//!
//! A piece is a call of its own, of the elements `first..first + count` of each block of the whole call's buffers; a call's
//! input or output is one block, or one for each rank. All ranks cut alike, since the size of a slot is the same everywhere.

use super::call::Call;
use crate::types::{Collective, Rank};

/// The pieces of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pieces {
    /// Elements of each block in a piece; fewer in the last.
    piece_elems: usize,
    /// How many pieces there are.
    pub(super) count: usize,
}

/// A copy between a user's buffer and a slot, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Portion {
    /// From the buffer's beginning.
    pub(super) buffer_at: usize,
    /// From the slot's beginning.
    pub(super) slot_at: usize,
    /// How many.
    pub(super) bytes: usize,
}

impl Pieces {
    /// The pieces of `call` for slots of `slot_bytes`, each of which takes the input or the output of one piece.
    pub(super) fn of(call: &Call, ranks: usize, slot_bytes: usize) -> Self {
        let block_bytes = slot_bytes / ranks;
        // Whole cache lines, unless ranks are so many that a block is less.
        let elems = block_bytes / call.dtype.size_bytes();
        let lines = 64 / call.dtype.size_bytes();
        let piece_elems = if elems >= lines { elems - elems % lines } else { elems.max(1) };
        let whole = matches!(call.kind, Collective::AllReduce | Collective::Reduce | Collective::Broadcast);
        let piece_elems = if whole { piece_elems * ranks } else { piece_elems };
        Self { piece_elems, count: call.count_elems.div_ceil(piece_elems) }
    }

    /// Elements of a block in piece `number`, and the first of them.
    fn range(&self, call: &Call, number: usize) -> (usize, usize) {
        let first = number * self.piece_elems;
        (first, self.piece_elems.min(call.count_elems - first))
    }

    /// Elements of each block in piece `number`.
    pub(super) fn elems(&self, call: &Call, number: usize) -> usize {
        self.range(call, number).1
    }

    fn portions(&self, call: &Call, number: usize, elems: usize) -> impl Iterator<Item = Portion> + use<> {
        let (first, count) = self.range(call, number);
        let (whole, size) = (call.count_elems, call.dtype.size_bytes());
        let blocks = elems / whole;
        // Blocks that are whole follow each other in the buffer, too.
        let (blocks, bytes) =
            if count == whole { (blocks.min(1), blocks * count * size) } else { (blocks, count * size) };
        (0..blocks).map(move |block| Portion {
            buffer_at: (block * whole + first) * size,
            slot_at: block * count * size,
            bytes,
        })
    }

    /// What piece `number` needs of this rank's input.
    pub(super) fn inputs(
        &self,
        call: &Call,
        ranks: usize,
        rank: Rank,
        number: usize,
    ) -> impl Iterator<Item = Portion> + use<> {
        self.portions(call, number, call.input_elems(ranks, rank))
    }

    /// Where piece `number` of this rank's output goes.
    pub(super) fn outputs(
        &self,
        call: &Call,
        ranks: usize,
        rank: Rank,
        number: usize,
    ) -> impl Iterator<Item = Portion> + use<> {
        self.portions(call, number, call.output_elems(ranks, rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::Selection;
    use crate::device::UserPointer;
    use crate::engine::Operator;
    use crate::types::{DataType, ReduceOp};

    fn call(kind: Collective, count_elems: usize) -> Call {
        let (send, recv) = (UserPointer::null(), UserPointer::null());
        let operator = Operator::plain(ReduceOp::Sum);
        let selection = Selection::default();
        Call { kind, dtype: DataType::Float32, operator, root: 0, count_elems, send, recv, selection }
    }

    const KINDS: [Collective; 8] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
    ];

    #[test]
    fn pieces_cover_every_byte_once_and_fit_into_slots() {
        for (kind, count, ranks) in KINDS.into_iter().flat_map(|kind| {
            [1, 15, 16, 17, 1000, 4096, 10_000]
                .into_iter()
                .flat_map(move |count| [1, 2, 3, 7].map(|ranks| (kind, count, ranks)))
        }) {
            let call = call(kind, count);
            let slot = 4096;
            let pieces = Pieces::of(&call, ranks, slot);
            for rank in 0..ranks {
                for (elems, output) in
                    [(call.input_elems(ranks, rank), false), (call.output_elems(ranks, rank), true)]
                {
                    let mut seen = vec![0u8; elems * 4];
                    for number in 0..pieces.count {
                        let portions: Vec<_> = if output {
                            pieces.outputs(&call, ranks, rank, number).collect()
                        } else {
                            pieces.inputs(&call, ranks, rank, number).collect()
                        };
                        let mut slot_at = 0;
                        for portion in portions {
                            assert_eq!(portion.slot_at, slot_at, "{kind} {count} {ranks}");
                            slot_at += portion.bytes;
                            seen[portion.buffer_at..portion.buffer_at + portion.bytes]
                                .iter_mut()
                                .for_each(|byte| *byte += 1);
                        }
                        assert!(slot_at <= slot, "{kind}: {slot_at} bytes");
                        assert_eq!(slot_at, elems / count * pieces.elems(&call, number) * 4);
                    }
                    assert!(
                        seen.iter().all(|byte| *byte == 1),
                        "{kind}, {count} elements, rank {rank} of {ranks}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_fits_is_one_piece() {
        assert_eq!(Pieces::of(&call(Collective::AllReduce, 1024), 2, 4096).count, 1);
        assert_eq!(Pieces::of(&call(Collective::AllReduce, 1025), 2, 4096).count, 2);
        assert_eq!(Pieces::of(&call(Collective::AllGather, 512), 2, 4096).count, 1);
        assert_eq!(Pieces::of(&call(Collective::AllGather, 513), 2, 4096).count, 2);
    }
}
