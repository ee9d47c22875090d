//! The one-step path for small operations: everybody's contribution stands on the board, and each rank takes
//! what it needs. No queue, no thread, no allocation; one cache line from each peer for up to 32 bytes.

use super::collective::CollectiveOp;
use super::endpoint::Endpoint;
use crate::device::{Operand, UserPointer};
use crate::error::Result;
use crate::reduce::Form;
use crate::types::{Collective, Rank};

use super::call::Call;

/// What this rank posts: where it lies and how long it is.
pub(super) fn contribution(call: &Call, endpoint: &Endpoint) -> (UserPointer, usize) {
    (call.send, call.input_elems(endpoint.ranks, endpoint.rank) * call.dtype.size_bytes())
}

/// Takes the result from the board, once everybody needed has posted.
pub(super) fn finish(op: &CollectiveOp, endpoint: &mut Endpoint) -> Result<()> {
    let (rank, ranks, root) = (endpoint.rank, endpoint.ranks, op.call.root);
    let all_bytes = op.call.count_elems * op.call.dtype.size_bytes();
    match op.call.kind {
        Collective::AllReduce => reduce(op, endpoint, all_bytes, 0),
        Collective::ReduceScatter => reduce(op, endpoint, ranks * all_bytes, rank * all_bytes),
        Collective::Reduce if rank == root => reduce(op, endpoint, all_bytes, 0),
        Collective::AllGather | Collective::Split => {
            (0..ranks).try_for_each(|peer| take(op, endpoint, peer, (all_bytes, 0), peer * all_bytes))
        }
        Collective::Gather if rank == root => {
            (0..ranks).try_for_each(|peer| take(op, endpoint, peer, (all_bytes, 0), peer * all_bytes))
        }
        Collective::AllToAll => (0..ranks).try_for_each(|peer| {
            take(op, endpoint, peer, (ranks * all_bytes, rank * all_bytes), peer * all_bytes)
        }),
        Collective::Broadcast => take(op, endpoint, root, (all_bytes, 0), 0),
        Collective::Scatter => take(op, endpoint, root, (ranks * all_bytes, rank * all_bytes), 0),
        Collective::Reduce | Collective::Gather => Ok(()),
    }
}

/// Folds everybody's contribution from byte `offset` on, in rank order. Contributions are `posted_bytes` long.
fn reduce(op: &CollectiveOp, endpoint: &mut Endpoint, posted_bytes: usize, offset: usize) -> Result<()> {
    let rank = endpoint.rank;
    let mut operands = std::mem::take(&mut endpoint.operands);
    operands.clear();
    let board = &endpoint.fabric()?.board;
    for peer in 0..op.ranks {
        // This rank's own input is nearer in its buffer than on the board, whose lines peers are reading.
        let (start, scale) = if peer == rank {
            (op.call.send, op.scale)
        } else {
            let scale = op.scale.is_some().then(|| board.scale(peer, op.sequence));
            (board.data(peer, op.sequence, posted_bytes), scale)
        };
        operands.push(Operand { start: start.byte_add(offset), form: Form::Element, scale });
    }
    endpoint.device.reduce(&op.reduction, &operands, op.call.recv, Form::Element, op.call.count_elems);
    endpoint.operands = operands;
    Ok(())
}

/// Copies one block of what `peer` has posted, given as (posted bytes, offset), to byte `to` of the result.
fn take(
    op: &CollectiveOp,
    endpoint: &mut Endpoint,
    peer: Rank,
    from: (usize, usize),
    to: usize,
) -> Result<()> {
    let bytes = op.call.count_elems * op.call.dtype.size_bytes();
    let all = if peer == endpoint.rank {
        op.call.send
    } else {
        endpoint.fabric()?.board.data(peer, op.sequence, from.0)
    };
    let source = all.byte_add(from.1);
    endpoint.device.copy(op.call.recv.byte_add(to), source, bytes);
    Ok(())
}
