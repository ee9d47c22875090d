//! The decoded form of a program: what the machine runs.

use super::float::{Format, Round};

/// A fundamental type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Pred,
    /// Bits.
    B(u8),
    /// Unsigned.
    U(u8),
    /// Signed.
    S(u8),
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
    E4m3x2,
    E5m2x2,
}

impl Type {
    pub(super) fn new(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B(1),
            "b16" => Self::B(2),
            "b32" => Self::B(4),
            "b64" => Self::B(8),
            "b128" => Self::B(16),
            "u8" => Self::U(1),
            "u16" => Self::U(2),
            "u32" => Self::U(4),
            "u64" => Self::U(8),
            "s8" => Self::S(1),
            "s16" => Self::S(2),
            "s32" => Self::S(4),
            "s64" => Self::S(8),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Pred => 1,
            Self::B(bytes) | Self::U(bytes) | Self::S(bytes) => bytes.into(),
            Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 2,
            Self::F16x2 | Self::Bf16x2 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    pub(super) fn is_signed(self) -> bool {
        matches!(self, Self::S(_))
    }

    /// The format of a single float.
    pub(super) fn format(self) -> Option<Format> {
        match self {
            Self::F16 => Some(Format::F16),
            Self::Bf16 => Some(Format::BF16),
            Self::F32 => Some(Format::F32),
            Self::F64 => Some(Format::F64),
            _ => None,
        }
    }

    /// The type of each half of a pair.
    pub(super) fn half(self) -> Option<Self> {
        match self {
            Self::F16x2 => Some(Self::F16),
            Self::Bf16x2 => Some(Self::Bf16),
            _ => None,
        }
    }

    pub(super) fn mask(self) -> u64 {
        mask(self.bytes())
    }
}

/// All bits of so many bytes.
pub(super) fn mask(bytes: u64) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

/// A value of so many bytes, with its sign.
pub(super) fn signed(value: u64, bytes: u64) -> i64 {
    let shift = 64 - bytes * 8;
    ((value << shift) as i64) >> shift
}

pub(super) type Register = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Register(Register),
    Value(u64),
    /// An address in the frame of the function.
    Frame(u64),
    Special(Special),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Thread(usize),
    BlockSize(usize),
    Block(usize),
    GridSize(usize),
    Lane,
    Warp,
    Warps,
    LaneMask(LaneMask),
    Clock,
    NanoTime,
    DynamicShared,
    TotalShared,
    Zero,
    One,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneMask {
    Equal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) base: Operand,
    pub(super) offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    /// The parameters of a kernel; those of functions are in frames.
    Param,
}

/// What comes between an opcode's dots and matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mods {
    pub(super) round: Round,
    pub(super) saturate: bool,
    pub(super) flush: bool,
    pub(super) nan: bool,
    pub(super) relu: bool,
    pub(super) xorsign: bool,
    pub(super) abs: bool,
    /// Sets the carry.
    pub(super) carry_out: bool,
    /// Which part of a product.
    pub(super) part: Part,
    /// Wraps (or clamps) shift counts.
    pub(super) wrap: bool,
    pub(super) left: bool,
    /// Rounds to an integer, in a float format.
    pub(super) to_integer: bool,
    /// Nothing changes the result but the way of rounding.
    pub(super) is_plain: bool,
}

impl Mods {
    pub(super) const PLAIN: Self = Self {
        round: Round::Nearest,
        saturate: false,
        flush: false,
        nan: false,
        relu: false,
        xorsign: false,
        abs: false,
        carry_out: false,
        part: Part::Low,
        wrap: false,
        left: false,
        to_integer: false,
        is_plain: true,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Low,
    High,
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Abs,
    Neg,
    Not,
    CNot,
    Popc,
    Clz,
    Brev,
    Bfind(bool),
    Rcp,
    Sqrt,
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    AddC,
    Sub,
    SubC,
    Mul,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    CopySign,
    Mul24,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ternary {
    Fma,
    MadC,
    Sad,
    Bfe,
    Prmt,
    Shf,
    Lop3(u8),
    Dp4a,
    Min3,
    Max3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unordered comparisons hold for NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Atomic {
    Add,
    Exch,
    Cas,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// What threads of a warp do together.
#[derive(Clone, Copy, Debug)]
pub(super) enum WarpOp {
    Sync,
    Shuffle {
        mode: Shuffle,
        to: Register,
        valid: Option<Register>,
        value: Operand,
        lane: Operand,
        clamp: Operand,
    },
    Vote {
        mode: Vote,
        to: Register,
        pred: Operand,
        negate: bool,
    },
    Match {
        all: bool,
        to: Register,
        valid: Option<Register>,
        value: Operand,
        bytes: u64,
    },
    Redux {
        op: Atomic,
        kind: Type,
        to: Register,
        value: Operand,
    },
}
