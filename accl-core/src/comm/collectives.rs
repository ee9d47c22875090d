//! The calls: arguments are checked here, then a call goes into the open group, or is a group of its own.

use super::group::{self, Work};
use super::{CallOptions, Communicator, Operator, Stream};
use crate::engine::{Call, Transfer};
use crate::error::{Error, Result};
use crate::memory::UserPointer;
use crate::types::{Collective, DataType, Rank, ReduceOp};

impl Communicator {
    /// Everyone gets the reduction of all inputs: `count_elems` elements at `send` and at `recv`, which may be the
    /// same.
    pub fn all_reduce<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        operator: Operator,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.call(Collective::AllReduce, (send, recv), (count_elems, dtype), (operator, 0), options)
    }

    /// The root gets the reduction of all inputs; `recv` counts at the root only.
    #[expect(clippy::too_many_arguments, reason = "the call has that many")]
    pub fn reduce<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        operator: Operator,
        root: Rank,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.call(Collective::Reduce, (send, recv), (count_elems, dtype), (operator, root), options)
    }

    /// Rank r gets the r-th `count_elems` of the reduction of all inputs, which hold that many for each rank.
    pub fn reduce_scatter<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        operator: Operator,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.call(Collective::ReduceScatter, (send, recv), (count_elems, dtype), (operator, 0), options)
    }

    /// Everyone gets the root's `count_elems`; `send` counts at the root only.
    pub fn broadcast<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        root: Rank,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.movement(Collective::Broadcast, (send, recv), (count_elems, dtype), root, options)
    }

    /// Everyone gets everyone's `count_elems`, in rank order.
    pub fn all_gather<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.movement(Collective::AllGather, (send, recv), (count_elems, dtype), 0, options)
    }

    /// Rank r gets the r-th `count_elems` of everyone's input, in rank order.
    pub fn all_to_all<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.movement(Collective::AllToAll, (send, recv), (count_elems, dtype), 0, options)
    }

    /// The root gets everyone's `count_elems`, in rank order; `recv` counts at the root only.
    pub fn gather<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        root: Rank,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.movement(Collective::Gather, (send, recv), (count_elems, dtype), root, options)
    }

    /// Rank r gets the r-th `count_elems` of the root's input; `send` counts at the root only.
    pub fn scatter<'a>(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        root: Rank,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        self.movement(Collective::Scatter, (send, recv), (count_elems, dtype), root, options)
    }

    /// Sends `count_elems` to `peer`, which must receive as many bytes. Messages between two ranks keep their
    /// order. Up to 64 KiB (less with many ranks) the call does not wait for the receiver.
    pub fn send(
        &self,
        buffer: UserPointer,
        count_elems: usize,
        dtype: DataType,
        peer: Rank,
        stream: Stream<'_>,
    ) -> Result<()> {
        self.transfer(true, buffer, (count_elems, dtype), peer, stream)
    }

    /// Receives `count_elems` from `peer`.
    pub fn recv(
        &self,
        buffer: UserPointer,
        count_elems: usize,
        dtype: DataType,
        peer: Rank,
        stream: Stream<'_>,
    ) -> Result<()> {
        self.transfer(false, buffer, (count_elems, dtype), peer, stream)
    }

    /// Operations that move data and do not look at it work on bytes, so that the ranks' types need not be the
    /// same if their lengths are.
    fn movement<'a>(
        &self,
        kind: Collective,
        (send, recv): (UserPointer, UserPointer),
        (count_elems, dtype): (usize, DataType),
        root: Rank,
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        let count_bytes = bytes_of(count_elems, dtype)?;
        let operator = Operator::plain(ReduceOp::Sum);
        self.call(kind, (send, recv), (count_bytes, DataType::Uint8), (operator, root), options)
    }

    #[inline]
    fn call<'a>(
        &self,
        kind: Collective,
        (send, recv): (UserPointer, UserPointer),
        (count_elems, dtype): (usize, DataType),
        (operator, root): (Operator, Rank),
        options: impl Into<CallOptions<'a>>,
    ) -> Result<()> {
        let CallOptions { stream, selection } = options.into();
        self.collective(Call { kind, dtype, operator, root, count_elems, send, recv, selection }, stream)
    }

    #[inline]
    fn collective(&self, call: Call, stream: Stream<'_>) -> Result<()> {
        if call.count_elems == 0 {
            return Ok(());
        }
        self.check_call(&call)?;
        group::perform(self, Work::Collective(call), stream)
    }

    #[inline]
    fn check_call(&self, call: &Call) -> Result<()> {
        let (ranks, rank) = (self.ranks(), self.rank());
        // The whole must have addresses: nothing later multiplies with a check.
        let all_bytes = call.count_elems.checked_mul(call.dtype.size_bytes() * ranks);
        let small = all_bytes.is_some_and(fits) && call.operator.scale.is_none();
        let there = |needed, pointer: UserPointer| needed == 0 || !pointer.is_null();
        if small
            && there(call.input_elems(ranks, rank), call.send)
            && there(call.output_elems(ranks, rank), call.recv)
        {
            return self.joined()?.facts.check(call.kind);
        }
        self.check_in_detail(call)
    }

    /// The same, with a text for whatever is wrong.
    #[cold]
    fn check_in_detail(&self, call: &Call) -> Result<()> {
        let (ranks, rank) = (self.ranks(), self.rank());
        bytes_of(call.count_elems, call.dtype)?.checked_mul(ranks).filter(|bytes| fits(*bytes)).ok_or_else(
            || {
                Error::argument(format!(
                    "{} elements for each of {ranks} ranks are more than the address space; pass a smaller count",
                    call.count_elems
                ))
            },
        )?;
        if let Some((dtype, _)) = call.operator.scale.filter(|(dtype, _)| *dtype != call.dtype) {
            return Err(Error::argument(format!(
                "the operator was made for {dtype} and is used with {}; make one for that type",
                call.dtype
            )));
        }
        for (needed, pointer, name) in [
            (call.input_elems(ranks, rank), call.send, "sendbuff"),
            (call.output_elems(ranks, rank), call.recv, "recvbuff"),
        ] {
            if needed > 0 && pointer.is_null() {
                return Err(Error::argument(format!(
                    "{}: {name} is NULL, need {needed} elements there",
                    call.kind
                )));
            }
        }
        let joined = self.joined()?;
        joined.facts.check(call.kind)
    }

    fn transfer(
        &self,
        send: bool,
        buffer: UserPointer,
        (count_elems, dtype): (usize, DataType),
        peer: Rank,
        stream: Stream<'_>,
    ) -> Result<()> {
        let bytes = bytes_of(count_elems, dtype)?;
        if bytes > 0 && buffer.is_null() {
            return Err(Error::argument(format!(
                "{}: the buffer is NULL, need {bytes} bytes there",
                if send { "Send" } else { "Recv" }
            )));
        }
        self.joined()?.messages.are_plain()?;
        group::perform(self, Work::Transfer(Transfer { send, peer, buffer, bytes }), stream)
    }
}

#[inline]
pub(super) fn bytes_of(count_elems: usize, dtype: DataType) -> Result<usize> {
    count_elems.checked_mul(dtype.size_bytes()).filter(|bytes| fits(*bytes)).ok_or_else(|| {
        Error::argument(format!(
            "{count_elems} elements of {dtype} are more bytes than the address space has; pass a smaller count"
        ))
    })
}

fn fits(bytes: usize) -> bool {
    isize::try_from(bytes).is_ok()
}
