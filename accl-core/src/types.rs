//! The vocabulary that every layer shares: element types, operators, kinds of operations, ranks.
//!
//! The numbers of [`DataType`] and [`ReduceOp`] are those of the NCCL ABI (`abi/nccl.md` §2.3), so that the C
//! face converts by value; nothing in this crate depends on them otherwise.

use std::fmt;

/// A member of a communicator, `0..ranks`.
pub type Rank = usize;

/// An exported C interface: by whose names a program calls the library. Texts use the same names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Face {
    /// `nccl.h`.
    #[default]
    Nccl,
    /// `pccl.h`.
    Pccl,
}

impl Face {
    /// The face that exports a function of this name.
    pub fn of_function(name: &str) -> Self {
        if name.starts_with(Self::Pccl.prefix()) { Self::Pccl } else { Self::Nccl }
    }

    /// What the names of its functions, types and values begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Pccl => "pccl",
        }
    }

    /// The name of the library whose place it takes; constants begin with it.
    pub fn library(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL",
            Self::Pccl => "PCCL",
        }
    }

    /// What it says of its version, by which tools also find that of a file.
    pub fn version_text(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL version 2.30.7+cuda0.0",
            Self::Pccl => "PCCL version 2.1.1",
        }
    }

    /// The number of that version, as programs compare it.
    pub const fn version_code(self) -> i32 {
        match self {
            Self::Nccl => 23007,
            // NCCL's formula; what PCCL's own header says is not public.
            Self::Pccl => 2101,
        }
    }
}

/// The type of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    Int8 = 0,
    /// Unsigned 8-bit integer.
    Uint8 = 1,
    /// Signed 32-bit integer.
    Int32 = 2,
    /// Unsigned 32-bit integer.
    Uint32 = 3,
    /// Signed 64-bit integer.
    Int64 = 4,
    /// Unsigned 64-bit integer.
    Uint64 = 5,
    /// IEEE 754 binary16.
    Float16 = 6,
    /// IEEE 754 binary32.
    Float32 = 7,
    /// IEEE 754 binary64.
    Float64 = 8,
    /// The upper half of a binary32.
    Bfloat16 = 9,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP FP8 E4M3, the "fn" form).
    Float8e4m3 = 10,
    /// 8-bit float, 5 exponent and 2 mantissa bits, with infinities (OCP FP8 E5M2).
    Float8e5m2 = 11,
}

impl DataType {
    /// All types, in the order of their ABI numbers.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    /// The type of an ABI number, if there is one.
    #[inline]
    pub fn from_abi(value: i32) -> Option<Self> {
        usize::try_from(value).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// True for the six floating types.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16
                | Self::Float32
                | Self::Float64
                | Self::Bfloat16
                | Self::Float8e4m3
                | Self::Float8e5m2
        )
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "float8e4m3",
            Self::Float8e5m2 => "float8e5m2",
        })
    }
}

/// How elements of different ranks become one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum = 0,
    /// Product; integers wrap.
    Prod = 1,
    /// Largest; a NaN among the inputs is the result.
    Max = 2,
    /// Smallest; a NaN among the inputs is the result.
    Min = 3,
    /// Sum divided by the number of ranks; integers truncate toward zero and do not overflow on the way.
    Avg = 4,
    /// Each rank's input times that rank's scalar, then summed.
    PreMulSum = 5,
}

impl ReduceOp {
    /// All operators; the first five in the order of their ABI numbers.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// The operator of an ABI number that is the same in every communicator.
    #[inline]
    pub fn built_in(value: i32) -> Option<Self> {
        let index = usize::try_from(value).ok()?;
        Self::ALL[..5].get(index).copied()
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum => "premulsum",
        })
    }
}

/// One element's bytes, left-aligned: the factor of a [`ReduceOp::PreMulSum`] in the width of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scalar(pub [u8; 8]);

/// The kinds of collective operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Collective {
    /// Everyone gets the reduction of all inputs.
    AllReduce = 1,
    /// The root gets the reduction of all inputs.
    Reduce = 2,
    /// Everyone gets the root's input.
    Broadcast = 3,
    /// Everyone gets all inputs, one after the other.
    AllGather = 4,
    /// Rank r gets the r-th share of the reduction.
    ReduceScatter = 5,
    /// Rank r gets the r-th share of everyone's input.
    AllToAll = 6,
    /// The root gets all inputs, one after the other.
    Gather = 7,
    /// Rank r gets the r-th share of the root's input.
    Scatter = 8,
    /// The exchange of colours and keys behind a split.
    Split = 9,
}

impl Collective {
    /// All kinds, by [`Collective::index`].
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Split,
    ];

    /// The place of this kind in tables.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// The kind of a number read from shared memory.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// True where elements are combined, so that type and operator matter.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// True where one rank is the source or the sink.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::AllReduce => "AllReduce",
            Self::Reduce => "Reduce",
            Self::Broadcast => "Broadcast",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::AllToAll => "AlltoAll",
            Self::Gather => "Gather",
            Self::Scatter => "Scatter",
            Self::Split => "CommSplit",
        })
    }
}

/// "rank 3" or "ranks 3-5,7".
pub fn named_ranks(ranks: &[Rank]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b);
    named_runs(&runs.map(|run| (run[0], run[run.len() - 1])).collect::<Vec<_>>())
}

/// The same for runs of ranks, each from a first to a last one, in order.
pub fn named_runs(runs: &[(Rank, Rank)]) -> String {
    let single = matches!(runs, [(first, last)] if first == last);
    let run = |(first, last): &(Rank, Rank)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let runs: Vec<_> = runs.iter().map(run).collect();
    format!("{} {}", if single { "rank" } else { "ranks" }, runs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_same_in_words_and_as_a_number() {
        for face in [Face::Nccl, Face::Pccl] {
            let text = face.version_text().strip_prefix(&format!("{} version ", face.library())).unwrap();
            let numbers = text.split('+').next().unwrap().split('.');
            let numbers: Vec<i32> = numbers.map(|number| number.parse().unwrap()).collect();
            let [major, minor, patch] = numbers[..] else { panic!("{text}") };
            let factor = if major <= 2 && minor <= 8 { 1000 } else { 10_000 };
            assert_eq!(face.version_code(), major * factor + minor * 100 + patch, "{text}");
        }
    }

    #[test]
    fn names_of_functions_tell_their_face() {
        for (name, face) in [
            ("ncclSend", Face::Nccl),
            ("pncclSend", Face::Nccl),
            ("pcclSend", Face::Pccl),
            ("acclTune", Face::Nccl),
        ] {
            assert_eq!(Face::of_function(name), face, "{name}");
        }
    }

    #[test]
    fn ranks_become_ranges() {
        assert_eq!(named_ranks(&[3]), "rank 3");
        assert_eq!(named_ranks(&[5, 2, 3, 9, 10, 11]), "ranks 2-3,5,9-11");
    }
}
