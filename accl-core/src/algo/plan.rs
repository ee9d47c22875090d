//! A plan: the steps that one rank takes for one operation.
//!
//! Steps run in order. `Send` does not wait: it queues the span, whose memory is read later, until the receiver
//! has consumed it. Every other step waits until it is done. Messages between two ranks match in order. A step
//! that writes memory which an earlier `Send` still reads would be wrong, so a plan either knows that the
//! receiver has consumed it, since something received meanwhile could not have come otherwise, or it `Drain`s
//! first. `check` proves this for every plan, together with the results.
//!
//! Where every rank can read every other's memory, plans need no messages: `Read` and [`Operand::Remote`] look at a
//! peer's buffers in place. A peer's input is there from the beginning; its output is there once it has told so. Each
//! `Tell` of a rank carries it one point further, and `Await` waits until a rank has come to a point.

use crate::types::Rank;
use std::ops::Range;

/// The memory that a span lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffer {
    /// The caller's send buffer: elements that nobody has touched, factors not applied.
    Input,
    /// The caller's receive buffer: finished elements.
    Output,
    /// Scratch memory of the operation: accumulators of an unfinished reduction.
    Partial,
    /// Scratch memory of the operation: elements on their way from one rank to another, untouched.
    Transit,
    /// The rank's staging area, which all peers can read: elements, untouched where they were copied from an input,
    /// finished where they were reduced.
    Staging,
}

/// Elements of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where.
    pub buffer: Buffer,
    /// The first element.
    pub start_elems: usize,
    /// How many.
    pub count_elems: usize,
}

impl Span {
    /// Elements of the send buffer.
    pub fn input(range: Range<usize>) -> Self {
        Self::of(Buffer::Input, range)
    }

    /// Elements of the receive buffer.
    pub fn output(range: Range<usize>) -> Self {
        Self::of(Buffer::Output, range)
    }

    /// Accumulators of the scratch memory.
    pub fn partial(range: Range<usize>) -> Self {
        Self::of(Buffer::Partial, range)
    }

    /// Elements of scratch memory.
    pub fn transit(range: Range<usize>) -> Self {
        Self::of(Buffer::Transit, range)
    }

    /// Elements of the staging area.
    pub fn staging(range: Range<usize>) -> Self {
        Self::of(Buffer::Staging, range)
    }

    fn of(buffer: Buffer, range: Range<usize>) -> Self {
        Self { buffer, start_elems: range.start, count_elems: range.len() }
    }
}

/// One operand of a `Reduce` step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// Memory of this rank.
    Local(Span),
    /// The next message from a rank, which that rank sent from a buffer of this kind.
    Peer(Rank, Buffer),
    /// Memory of another rank, read in place.
    Remote(Rank, Span),
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Queue a span for a rank.
    Send {
        /// The receiver.
        to: Rank,
        /// What.
        span: Span,
    },
    /// Store the next message from a rank.
    Recv {
        /// The sender.
        from: Rank,
        /// Where to.
        span: Span,
    },
    /// Copy from another rank's memory.
    Read {
        /// Whose.
        from: Rank,
        /// Its elements,
        source: Span,
        /// to there; equal length.
        to: Span,
    },
    /// Come to the next point: what this rank has read and written before is known to whoever awaits the point.
    Tell,
    /// Wait until a rank has come to a point.
    Await {
        /// Which rank.
        from: Rank,
        /// How many times it must have told.
        tells: u64,
    },
    /// Copy within this rank.
    Copy {
        /// From here,
        from: Span,
        /// to there; equal length.
        to: Span,
    },
    /// Fold operands in order and store the result: unfinished in `Partial`, finished elsewhere.
    Reduce {
        /// Which of [`Plan::operands`].
        operands: Range<usize>,
        /// Where to.
        to: Span,
    },
    /// Wait until a rank has consumed everything sent to it so far.
    Drain {
        /// The receiver.
        to: Rank,
    },
}

/// The steps of one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// The operands of all `Reduce` steps.
    pub operands: Vec<Operand>,
    /// Accumulators of scratch memory that the plan needs.
    pub partial_elems: usize,
    /// Elements of scratch memory, the same.
    pub transit_elems: usize,
}

impl Plan {
    /// Forgets everything but keeps the memory.
    pub fn clear(&mut self) {
        self.steps.clear();
        self.operands.clear();
        self.partial_elems = 0;
        self.transit_elems = 0;
    }

    pub(super) fn send(&mut self, to: Rank, span: Span) {
        if span.count_elems > 0 {
            self.steps.push(Step::Send { to, span });
        }
    }

    pub(super) fn recv(&mut self, from: Rank, span: Span) {
        if span.count_elems > 0 {
            self.steps.push(Step::Recv { from, span });
        }
    }

    pub(super) fn copy(&mut self, from: Span, to: Span) {
        if to.count_elems > 0 {
            self.steps.push(Step::Copy { from, to });
        }
    }

    pub(super) fn reduce(&mut self, operands: impl IntoIterator<Item = Operand>, to: Span) {
        if to.count_elems > 0 {
            let first = self.operands.len();
            self.operands.extend(operands);
            self.steps.push(Step::Reduce { operands: first..self.operands.len(), to });
        }
    }

    pub(super) fn read(&mut self, from: Rank, source: Span, to: Span) {
        if to.count_elems > 0 {
            self.steps.push(Step::Read { from, source, to });
        }
    }

    pub(super) fn tell(&mut self) {
        self.steps.push(Step::Tell);
    }

    pub(super) fn wait_for(&mut self, from: Rank, tells: u64) {
        self.steps.push(Step::Await { from, tells });
    }

    pub(super) fn drain(&mut self, to: Rank) {
        self.steps.push(Step::Drain { to });
    }
}
