//! Where the data lies and who moves it: the engine reaches user memory only through a [`Device`].
//!
//! Host memory is the first implementation. One for device memory copies and reduces with the driver's means;
//! plans, engine and transports do not change.

mod host;
mod pointer;

pub use host::Host;
pub use pointer::UserPointer;

use crate::reduce::{Form, Reduction};
use crate::types::Scalar;

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
}
