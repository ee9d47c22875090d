//! What is to be done: one rank's arguments of an operation, checked and in the library's types.

use crate::algo::Selection;
use crate::device::{Device, UserPointer};
use crate::memory::read_scalar;
use crate::telemetry::calls::{self, NONE};
use crate::transport::board::PostedCall;
use crate::types::{Collective, DataType, Rank, ReduceOp, Scalar};

/// Where the factor of a pre-multiplied sum comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Known already.
    Immediate(Scalar),
    /// In memory that is read when the operation runs.
    InMemory(UserPointer),
}

/// An operator with what belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operator {
    /// The kind.
    pub op: ReduceOp,
    /// For [`ReduceOp::PreMulSum`]: the element type it was made for, and its factor.
    pub scale: Option<(DataType, Scale)>,
}

impl Operator {
    /// An operator that is its kind and nothing else.
    pub const fn plain(op: ReduceOp) -> Self {
        Self { op, scale: None }
    }
}

/// One collective call of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The operation.
    pub kind: Collective,
    /// The element type; bytes where nothing is reduced.
    pub dtype: DataType,
    /// The operator, where something is reduced.
    pub operator: Operator,
    /// The rank that gives or gets everything, or 0.
    pub root: Rank,
    /// The call's count, in elements of `dtype`.
    pub count_elems: usize,
    /// Where the inputs lie.
    pub send: UserPointer,
    /// Where the result goes.
    pub recv: UserPointer,
    /// By what it goes, if that was chosen beforehand.
    pub selection: Selection,
}

impl Call {
    /// The call as it is posted for the peers; `choice` says how it will be carried out.
    pub(crate) fn posted(&self, choice: u8) -> PostedCall {
        let reduces = self.kind.reduces();
        let dtype = if reduces { self.dtype as u64 } else { NONE };
        let op = if reduces { self.operator.op as u64 } else { NONE };
        let what =
            self.kind as u64 | dtype << 8 | op << 16 | u64::from(choice) << 24 | (self.root as u64) << 32;
        PostedCall { what, count: self.count_elems as u64 }
    }

    /// The factor to be applied to this rank's input, read now.
    pub(crate) fn scale(&self, device: &dyn Device) -> Option<Scalar> {
        match self.operator.scale? {
            (_, Scale::Immediate(scalar)) => Some(scalar),
            (dtype, Scale::InMemory(place)) => Some(read_scalar(device, place, dtype.size_bytes())),
        }
    }

    /// Bytes of the call's count.
    #[inline]
    pub(crate) fn count_bytes(&self) -> usize {
        self.count_elems * self.dtype.size_bytes()
    }

    /// Elements that this rank gives.
    pub(crate) fn input_elems(&self, ranks: usize, rank: Rank) -> usize {
        match self.kind {
            Collective::ReduceScatter | Collective::AllToAll => ranks * self.count_elems,
            Collective::Scatter => {
                if rank == self.root {
                    ranks * self.count_elems
                } else {
                    0
                }
            }
            Collective::Broadcast => {
                if rank == self.root {
                    self.count_elems
                } else {
                    0
                }
            }
            _ => self.count_elems,
        }
    }

    /// Elements that this rank gets.
    pub(crate) fn output_elems(&self, ranks: usize, rank: Rank) -> usize {
        match self.kind {
            Collective::AllGather | Collective::AllToAll | Collective::Split => ranks * self.count_elems,
            Collective::Gather => {
                if rank == self.root {
                    ranks * self.count_elems
                } else {
                    0
                }
            }
            Collective::Reduce => {
                if rank == self.root {
                    self.count_elems
                } else {
                    0
                }
            }
            _ => self.count_elems,
        }
    }

    /// True if the buffers overlap in another way than the in-place form of the operation.
    pub(crate) fn overlaps_badly(&self, ranks: usize, rank: Rank) -> bool {
        let size = self.dtype.size_bytes();
        let (input, output) = (self.input_elems(ranks, rank) * size, self.output_elems(ranks, rank) * size);
        let (send, recv) = (self.send.address(), self.recv.address());
        if input == 0
            || output == 0
            || send >= recv.saturating_add(output)
            || recv >= send.saturating_add(input)
        {
            return false;
        }
        let own = rank * self.count_elems * size;
        match self.kind {
            Collective::AllGather | Collective::Split | Collective::Gather => send != recv + own,
            Collective::ReduceScatter | Collective::Scatter => recv != send + own,
            Collective::AllToAll => true,
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => send != recv,
        }
    }
}

/// A posted call in words.
pub(crate) fn describe(call: PostedCall) -> String {
    calls::describe(call.what, call.count)
}

/// What [`describe`] does not show: how the call is carried out.
pub(crate) fn choice_of(call: PostedCall) -> u8 {
    (call.what >> 24 & 0xff) as u8
}

/// One send or receive of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// True to send.
    pub send: bool,
    /// The other rank.
    pub peer: Rank,
    /// The memory.
    pub buffer: UserPointer,
    /// Its length.
    pub bytes: usize,
}

/// What a rank sends to itself.
#[derive(Clone, Copy, Debug)]
pub struct SelfCopy {
    /// Where the send's data lies.
    pub from: UserPointer,
    /// Where the receive wants it.
    pub to: UserPointer,
    /// Its length.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: Collective, send: usize, recv: usize) -> Call {
        // SAFETY: the addresses are compared and never used.
        #[expect(unsafe_code)]
        let at = |address: usize| unsafe { UserPointer::new(address as *const _) };
        let operator = Operator::plain(ReduceOp::Sum);
        Call {
            kind,
            dtype: DataType::Int32,
            operator,
            root: 1,
            count_elems: 10,
            send: at(send),
            recv: at(recv),
            selection: Selection::default(),
        }
    }

    #[test]
    fn in_place_forms_are_no_overlap() {
        for (kind, send, recv) in [
            (Collective::AllReduce, 1000, 1000),
            (Collective::AllGather, 1040, 1000),
            (Collective::ReduceScatter, 1000, 1040),
            (Collective::Gather, 1040, 1000),
            (Collective::Scatter, 1000, 1040),
            (Collective::AllReduce, 1000, 1040),
        ] {
            assert!(!call(kind, send, recv).overlaps_badly(3, 1), "{kind}");
        }
        for (kind, send, recv) in [
            (Collective::AllReduce, 1000, 1004),
            (Collective::AllGather, 1000, 1000),
            (Collective::ReduceScatter, 1000, 1000),
            (Collective::AllToAll, 1000, 1000),
        ] {
            assert!(call(kind, send, recv).overlaps_badly(3, 1), "{kind}");
        }
    }

    #[test]
    fn calls_are_told_in_words() {
        let posted = call(Collective::Reduce, 0, 0).posted(0);
        assert_eq!(describe(posted), "Reduce(10 × int32, sum, root 1)");
        assert_eq!(describe(call(Collective::AllGather, 0, 0).posted(2)), "AllGather(10 bytes)");
        assert_eq!(choice_of(call(Collective::AllGather, 0, 0).posted(2)), 2);
    }
}
