//! Where the data lies and who moves it: the engine reaches user memory only through a [`Device`].
//!
//! Host memory is the first implementation. An [`Accelerator`] moves memory that all ranks of a host can reach by their
//! driver; all other memory of accelerators comes through staging memory of the host (`engine/staged.rs`). A [`Mailbox`] is where
//! their streams meet the engine.

mod accelerator;
mod host;
mod kernels;
mod mailbox;
mod pointer;

pub use accelerator::Accelerator;
pub use host::Host;
pub use kernels::OPERANDS_MOST;
pub use kernels::SOURCE as KERNELS_SOURCE;
pub use mailbox::{Mailbox, number_after};
pub use pointer::UserPointer;

use crate::encryption::Socket;
use crate::error::Result;
use crate::reduce::{Form, Reduction};
use crate::types::Scalar;
use std::io;

/// One operand of a reduction.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The first element.
    pub start: UserPointer,
    /// Elements, or accumulators of an unfinished reduction.
    pub form: Form,
    /// The factor of a pre-multiplied sum, where this operand still needs it.
    pub scale: Option<Scalar>,
}

/// Moves and reduces bytes of one kind of memory.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Copies `bytes` from `source` to `destination`; equal addresses are a no-op, other overlap is undefined.
    fn copy(&self, destination: UserPointer, source: UserPointer, bytes: usize);

    /// Folds `operands` in order into `count_elems` elements at `destination` (see [`Reduction::reduce`]).
    fn reduce(
        &self,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        form: Form,
        count_elems: usize,
    );

    /// The same as [`Self::copy`] for rows that no cache holds: the destination is written without being read, where the
    /// processor can do that. What is written stands before later stores, as always.
    fn copy_streaming(&self, destination: UserPointer, source: UserPointer, bytes: usize);

    /// The same bits as [`Self::reduce`], written as [`Self::copy_streaming`] writes.
    fn reduce_streaming(
        &self,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        form: Form,
        count_elems: usize,
    );

    /// True once all that was asked for is done. In host memory that is at once.
    fn is_through(&self) -> Result<bool> {
        Ok(true)
    }

    /// Sends `head`, then as much of the `bytes` at `source` as a stream socket takes without waiting. How many bytes went,
    /// `head` included; none if it takes nothing now.
    fn send(
        &self,
        socket: &Socket,
        head: &[u8],
        source: UserPointer,
        bytes: usize,
    ) -> io::Result<Option<usize>>;

    /// Receives at most `bytes` to `destination`, and what comes behind them to `tail`, without waiting. How many came, 0 at the
    /// stream's end; none if nothing is there yet.
    fn receive(
        &self,
        socket: &Socket,
        destination: UserPointer,
        bytes: usize,
        tail: &mut [u8],
    ) -> io::Result<Option<usize>>;
}
