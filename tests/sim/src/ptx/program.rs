//! Instructions and routines: what the machine runs.

use super::types::{
    Address, Atomic, Binary, Compare, Logic, Mods, Operand, Register, Space, Ternary, Type, Unary, WarpOp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarrierKind {
    Sync,
    Arrive,
    And,
    Or,
    Popc,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    pub(super) kind: BarrierKind,
    pub(super) id: Operand,
    pub(super) threads: Option<Operand>,
    pub(super) to: Register,
    pub(super) pred: Operand,
    pub(super) negate: bool,
}

/// A call: what is copied between frames, as (offset there, offset here, bytes).
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: String,
    /// Offsets in the caller's frame.
    pub(super) arguments: Vec<u64>,
    pub(super) results: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Move {
        to: Register,
        from: Operand,
    },
    Pack {
        to: Register,
        parts: Vec<Operand>,
        bits: u32,
    },
    Unpack {
        to: Vec<Option<Register>>,
        from: Operand,
        bits: u32,
    },
    Unary {
        f: Unary,
        kind: Type,
        mods: Mods,
        to: Register,
        a: Operand,
    },
    Binary {
        f: Binary,
        kind: Type,
        mods: Mods,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Ternary {
        f: Ternary,
        kind: Type,
        mods: Mods,
        to: Register,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    Bfi {
        kind: Type,
        to: Register,
        a: Operand,
        b: Operand,
        c: Operand,
        d: Operand,
    },
    SetPred {
        compare: Compare,
        logic: Option<(Logic, Operand, bool)>,
        kind: Type,
        flush: bool,
        to: (Register, Option<Register>),
        a: Operand,
        b: Operand,
    },
    Set {
        compare: Compare,
        result: Type,
        kind: Type,
        flush: bool,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Select {
        to: Register,
        a: Operand,
        b: Operand,
        pred: Operand,
    },
    SelectSign {
        kind: Type,
        to: Register,
        a: Operand,
        b: Operand,
        sign: Operand,
    },
    Convert {
        result: Type,
        kind: Type,
        mods: Mods,
        to: Register,
        a: Operand,
        b: Option<Operand>,
    },
    Load {
        space: Space,
        kind: Type,
        to: Vec<Option<Register>>,
        at: Address,
    },
    Store {
        space: Space,
        kind: Type,
        from: Vec<Operand>,
        at: Address,
    },
    Atomic {
        space: Space,
        op: Atomic,
        kind: Type,
        to: Option<Register>,
        at: Address,
        a: Operand,
        b: Operand,
    },
    ToGeneric {
        space: Space,
        to: Register,
        a: Operand,
    },
    FromGeneric {
        space: Space,
        to: Register,
        a: Operand,
    },
    IsSpace {
        space: Space,
        to: Register,
        a: Operand,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u64,
        count: Option<Operand>,
    },
    Jump {
        to: usize,
    },
    JumpTable {
        index: Operand,
        to: Vec<usize>,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    Warp {
        op: Box<WarpOp>,
        members: Operand,
    },
    ActiveMask {
        to: Register,
    },
    Fence,
    Yield,
    Nothing,
}

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    /// Register of the predicate, and what it must be.
    pub(super) guard: Option<(Register, bool)>,
    pub(super) op: Op,
}

/// A kernel or a device function.
#[derive(Clone, Debug, Default)]
pub(super) struct Routine {
    pub(super) name: String,
    pub(super) is_entry: bool,
    /// Offset and size of each parameter; a function's are in its frame.
    pub(super) parameters: Vec<(u32, u32)>,
    pub(super) results: Vec<(u32, u32)>,
    pub(super) registers: usize,
    pub(super) frame_bytes: u64,
    pub(super) max_threads: u32,
    pub(super) code: Vec<Instruction>,
}
