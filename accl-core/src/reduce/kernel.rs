//! What happens to one element: decoding, combining, finishing, encoding, for each type and operator.
//!
//! A [`Kernel`] is a type without values; the loops of `body` are generic over it. Everything here is
//! `inline(always)`, since it must end up inside functions that enable vector instructions.

use std::marker::PhantomData;

use super::division::{Reciprocal, Wide};
use super::format;
use crate::types::Scalar;

/// One element type with one operator.
pub(super) trait Kernel: 'static {
    /// An element as it lies in memory: bytes, hence without alignment.
    type Elem: Copy;
    /// An accumulator as it lies in memory.
    type Memory: Copy;
    /// An accumulator in a register.
    type Acc: Copy;
    /// What finishing needs: the divisor, or nothing.
    type Divisor: Copy;

    /// True where `Elem` and `Memory` have the same bits.
    const SAME: bool;
    /// True where an element is multiplied by its rank's factor.
    const SCALES: bool = false;
    /// True where `finish` does something.
    const DIVIDES: bool = false;

    fn decode(elem: Self::Elem) -> Self::Acc;
    fn encode(acc: Self::Acc) -> Self::Elem;
    fn read(memory: Self::Memory) -> Self::Acc;
    fn write(acc: Self::Acc) -> Self::Memory;
    fn combine(left: Self::Acc, right: Self::Acc) -> Self::Acc;
    fn divisor(ranks: usize) -> Self::Divisor;
    /// The result in place of the accumulator: divided where the operator says so.
    fn finish(acc: Self::Acc, divisor: Self::Divisor) -> Self::Acc;

    /// A finished element from two.
    #[inline(always)]
    fn pair(left: Self::Elem, right: Self::Elem, divisor: Self::Divisor) -> Self::Elem {
        let acc = Self::combine(Self::decode(left), Self::decode(right));
        Self::encode(Self::settle(Self::finish(acc, divisor)))
    }

    /// Takes away what depends on the order of the operands: the payload of a NaN.
    #[inline(always)]
    fn settle(acc: Self::Acc) -> Self::Acc {
        acc
    }

    /// True where `settle` may change something.
    #[inline(always)]
    fn is_unsettled(_acc: Self::Acc) -> bool {
        false
    }

    /// The factor in the accumulator's type.
    #[inline(always)]
    fn factor(_scale: Scalar) -> Option<Self::Acc> {
        None
    }

    /// One element times its factor.
    #[inline(always)]
    fn scaled(acc: Self::Acc, _factor: Self::Acc) -> Self::Acc {
        acc
    }
}

/// An operator that needs only to be told apart.
#[derive(Debug)]
pub(super) struct Sum;
#[derive(Debug)]
pub(super) struct Prod;
#[derive(Debug)]
pub(super) struct Avg;
#[derive(Debug)]
pub(super) struct PreMulSum;

/// The arithmetic operators; they differ in three constants.
pub(super) trait Arithmetic: 'static {
    const MULTIPLIES: bool = false;
    const DIVIDES: bool = false;
    const SCALES: bool = false;
}

impl Arithmetic for Sum {}
impl Arithmetic for Prod {
    const MULTIPLIES: bool = true;
}
impl Arithmetic for Avg {
    const DIVIDES: bool = true;
}
impl Arithmetic for PreMulSum {
    const SCALES: bool = true;
}

/// A floating element format.
pub(super) trait Format: 'static {
    type Elem: Copy;
    type Acc: Real;
    const SAME: bool = false;
    fn decode(elem: Self::Elem) -> Self::Acc;
    fn encode(acc: Self::Acc) -> Self::Elem;
    /// The element in the first bytes of a scalar.
    fn first(scalar: Scalar) -> Self::Elem;
}

/// `f32` or `f64` as an accumulator.
pub(super) trait Real: Copy + 'static {
    type Memory: Copy;
    fn read(memory: Self::Memory) -> Self;
    fn write(self) -> Self::Memory;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn settle(self) -> Self;
    fn is_nan(self) -> bool;
    fn from_ranks(ranks: usize) -> Self;
}

macro_rules! real {
    ($real:ty, $bytes:literal, $settle:path) => {
        impl Real for $real {
            type Memory = [u8; $bytes];
            #[inline(always)]
            fn read(memory: Self::Memory) -> Self {
                Self::from_ne_bytes(memory)
            }
            #[inline(always)]
            fn write(self) -> Self::Memory {
                self.to_ne_bytes()
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn settle(self) -> Self {
                $settle(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn from_ranks(ranks: usize) -> Self {
                ranks as Self
            }
        }
    };
}

real!(f32, 4, format::settle_f32);
real!(f64, 8, format::settle_f64);

/// The floating formats.
#[derive(Debug)]
pub(super) struct Float16;
#[derive(Debug)]
pub(super) struct Bfloat16;
#[derive(Debug)]
pub(super) struct Float8e4m3;
#[derive(Debug)]
pub(super) struct Float8e5m2;
#[derive(Debug)]
pub(super) struct Float32;
#[derive(Debug)]
pub(super) struct Float64;

macro_rules! float_format {
    ($format:ty, $elem:ty, $acc:ty, $same:literal, $decode:path, $encode:path, $($index:literal)*) => {
        impl Format for $format {
            type Elem = [u8; size_of::<$elem>()];
            type Acc = $acc;
            const SAME: bool = $same;
            #[inline(always)]
            fn decode(elem: Self::Elem) -> Self::Acc {
                $decode(<$elem>::from_ne_bytes(elem))
            }
            #[inline(always)]
            fn encode(acc: Self::Acc) -> Self::Elem {
                $encode(acc).to_ne_bytes()
            }
            #[inline(always)]
            fn first(scalar: Scalar) -> Self::Elem {
                [$(scalar.0[$index]),*]
            }
        }
    };
}

float_format!(Float16, u16, f32, false, format::f16_decode, format::f16_encode, 0 1);
float_format!(Bfloat16, u16, f32, false, format::bf16_decode, format::bf16_encode, 0 1);
float_format!(Float8e4m3, u8, f32, false, format::e4m3_decode, format::e4m3_encode, 0);
float_format!(Float8e5m2, u8, f32, false, format::e5m2_decode, format::e5m2_encode, 0);
float_format!(Float32, u32, f32, true, f32::from_bits, f32::to_bits, 0 1 2 3);
float_format!(Float64, u64, f64, true, f64::from_bits, f64::to_bits, 0 1 2 3 4 5 6 7);

/// Arithmetic on a floating format.
#[derive(Debug)]
pub(super) struct Float<F, O>(PhantomData<(F, O)>);

impl<F: Format, O: Arithmetic> Kernel for Float<F, O> {
    type Elem = F::Elem;
    type Memory = <F::Acc as Real>::Memory;
    type Acc = F::Acc;
    type Divisor = F::Acc;

    const SAME: bool = F::SAME;
    const SCALES: bool = O::SCALES;
    const DIVIDES: bool = O::DIVIDES;

    #[inline(always)]
    fn decode(elem: Self::Elem) -> Self::Acc {
        F::decode(elem)
    }
    #[inline(always)]
    fn encode(acc: Self::Acc) -> Self::Elem {
        F::encode(acc)
    }
    #[inline(always)]
    fn read(memory: Self::Memory) -> Self::Acc {
        F::Acc::read(memory)
    }
    #[inline(always)]
    fn write(acc: Self::Acc) -> Self::Memory {
        acc.write()
    }
    #[inline(always)]
    fn combine(left: Self::Acc, right: Self::Acc) -> Self::Acc {
        if O::MULTIPLIES { left.mul(right) } else { left.add(right) }
    }
    #[inline(always)]
    fn divisor(ranks: usize) -> Self::Divisor {
        F::Acc::from_ranks(ranks)
    }
    #[inline(always)]
    fn finish(acc: Self::Acc, divisor: Self::Divisor) -> Self::Acc {
        if O::DIVIDES { acc.div(divisor) } else { acc }
    }
    #[inline(always)]
    fn settle(acc: Self::Acc) -> Self::Acc {
        acc.settle()
    }
    #[inline(always)]
    fn is_unsettled(acc: Self::Acc) -> bool {
        acc.is_nan()
    }
    #[inline(always)]
    fn factor(scale: Scalar) -> Option<Self::Acc> {
        O::SCALES.then(|| F::decode(F::first(scale)))
    }
    #[inline(always)]
    fn scaled(acc: Self::Acc, factor: Self::Acc) -> Self::Acc {
        acc.mul(factor)
    }
}

/// Wrapping arithmetic on an integer type `T`.
#[derive(Debug)]
pub(super) struct Integer<T, O>(PhantomData<(T, O)>);

/// The exact average of integers, accumulated in a wider type.
#[derive(Debug)]
pub(super) struct Mean<T>(PhantomData<T>);

macro_rules! integer {
    ($int:ty, $($index:literal)*) => {
        impl<O: Arithmetic> Kernel for Integer<$int, O> {
            type Elem = [u8; size_of::<$int>()];
            type Memory = [u8; size_of::<$int>()];
            type Acc = $int;
            type Divisor = ();

            const SAME: bool = true;
            const SCALES: bool = O::SCALES;

            #[inline(always)]
            fn decode(elem: Self::Elem) -> $int {
                <$int>::from_ne_bytes(elem)
            }
            #[inline(always)]
            fn encode(acc: $int) -> Self::Elem {
                acc.to_ne_bytes()
            }
            #[inline(always)]
            fn read(memory: Self::Memory) -> $int {
                <$int>::from_ne_bytes(memory)
            }
            #[inline(always)]
            fn write(acc: $int) -> Self::Memory {
                acc.to_ne_bytes()
            }
            #[inline(always)]
            fn combine(left: $int, right: $int) -> $int {
                if O::MULTIPLIES { left.wrapping_mul(right) } else { left.wrapping_add(right) }
            }
            #[inline(always)]
            fn divisor(_ranks: usize) {}
            #[inline(always)]
            fn finish(acc: $int, _divisor: ()) -> $int {
                acc
            }
            #[inline(always)]
            fn factor(scale: Scalar) -> Option<$int> {
                O::SCALES.then(|| <$int>::from_ne_bytes([$(scale.0[$index]),*]))
            }
            #[inline(always)]
            fn scaled(acc: $int, factor: $int) -> $int {
                acc.wrapping_mul(factor)
            }
        }
    };
}

integer!(i8, 0);
integer!(u8, 0);
integer!(i32, 0 1 2 3);
integer!(u32, 0 1 2 3);
integer!(i64, 0 1 2 3 4 5 6 7);
integer!(u64, 0 1 2 3 4 5 6 7);

macro_rules! mean {
    ($int:ty, $wide:ty, $divisor:ty $(, $float:ty, $inverse:ident)?) => {
        impl Kernel for Mean<$int> {
            type Elem = [u8; size_of::<$int>()];
            type Memory = [u8; size_of::<$wide>()];
            type Acc = $wide;
            type Divisor = $divisor;

            const SAME: bool = false;
            const DIVIDES: bool = true;

            $(
                #[inline(always)]
                fn pair(left: Self::Elem, right: Self::Elem, divisor: Self::Divisor) -> Self::Elem {
                    let number = |elem| <$float>::from(<$int>::from_ne_bytes(elem));
                    let quotient = divisor.$inverse.divide(number(left) + number(right));
                    (quotient as $int).to_ne_bytes()
                }
            )?

            #[inline(always)]
            fn decode(elem: Self::Elem) -> $wide {
                <$wide>::from(<$int>::from_ne_bytes(elem))
            }
            #[inline(always)]
            fn encode(acc: $wide) -> Self::Elem {
                (acc as $int).to_ne_bytes()
            }
            #[inline(always)]
            fn read(memory: Self::Memory) -> $wide {
                <$wide>::from_ne_bytes(memory)
            }
            #[inline(always)]
            fn write(acc: $wide) -> Self::Memory {
                acc.to_ne_bytes()
            }
            #[inline(always)]
            fn combine(left: $wide, right: $wide) -> $wide {
                left.wrapping_add(right)
            }
            #[inline(always)]
            fn divisor(ranks: usize) -> $divisor {
                // A divisor of zero has no meaning; one is the harmless reading.
                <$divisor>::new(ranks.max(1))
            }
            #[inline(always)]
            fn finish(acc: $wide, divisor: $divisor) -> $wide {
                divisor.divide(acc)
            }
        }
    };
}

mean!(i8, i64, Reciprocal, f32, single);
mean!(u8, i64, Reciprocal, f32, single);
mean!(i32, i64, Reciprocal, f64, double);
mean!(u32, i64, Reciprocal, f64, double);
mean!(i64, i128, Wide);
mean!(u64, i128, Wide);

/// The larger or the smaller of two values of `T`; nothing is converted, so accumulators are elements.
#[derive(Debug)]
pub(super) struct Extreme<T, const MAX: bool>(PhantomData<T>);

/// Bits of a float as a signed integer, with what the comparison must know of the format.
pub(super) trait Ordered: 'static {
    type Elem: Copy;
    type Key: Copy;
    fn key(elem: Self::Elem) -> Self::Key;
    fn elem(key: Self::Key) -> Self::Elem;
    fn pick<const MAX: bool>(left: Self::Key, right: Self::Key) -> Self::Key;
}

impl<T: Ordered, const MAX: bool> Kernel for Extreme<T, MAX> {
    type Elem = T::Elem;
    type Memory = T::Elem;
    type Acc = T::Key;
    type Divisor = ();

    const SAME: bool = true;

    #[inline(always)]
    fn decode(elem: Self::Elem) -> Self::Acc {
        T::key(elem)
    }
    #[inline(always)]
    fn encode(acc: Self::Acc) -> Self::Elem {
        T::elem(acc)
    }
    #[inline(always)]
    fn read(memory: Self::Memory) -> Self::Acc {
        T::key(memory)
    }
    #[inline(always)]
    fn write(acc: Self::Acc) -> Self::Memory {
        T::elem(acc)
    }
    #[inline(always)]
    fn combine(left: Self::Acc, right: Self::Acc) -> Self::Acc {
        T::pick::<MAX>(left, right)
    }
    #[inline(always)]
    fn divisor(_ranks: usize) {}
    #[inline(always)]
    fn finish(acc: Self::Acc, _divisor: ()) -> Self::Acc {
        acc
    }
}

macro_rules! ordered_integer {
    ($($int:ty)*) => { $(
        impl Ordered for $int {
            type Elem = [u8; size_of::<$int>()];
            type Key = $int;
            #[inline(always)]
            fn key(elem: Self::Elem) -> $int {
                <$int>::from_ne_bytes(elem)
            }
            #[inline(always)]
            fn elem(key: $int) -> Self::Elem {
                key.to_ne_bytes()
            }
            #[inline(always)]
            fn pick<const MAX: bool>(left: $int, right: $int) -> $int {
                if MAX { left.max(right) } else { left.min(right) }
            }
        }
    )* };
}

ordered_integer!(i8 u8 i32 u32 i64 u64);

// Sign and magnitude become two's complement by flipping the magnitude of the negative ones: the order of the keys is
// that of the numbers, with -0 below +0. A NaN has a magnitude above that of `$top` (the largest that is none), and wins
// whichever side it stands on.
macro_rules! ordered_float {
    ($format:ty, $key:ty, $top:literal, $nan:literal) => {
        impl Ordered for $format {
            type Elem = [u8; size_of::<$key>()];
            type Key = $key;
            #[inline(always)]
            fn key(elem: Self::Elem) -> $key {
                <$key>::from_ne_bytes(elem)
            }
            #[inline(always)]
            fn elem(key: $key) -> Self::Elem {
                key.to_ne_bytes()
            }
            #[inline(always)]
            fn pick<const MAX: bool>(left: $key, right: $key) -> $key {
                const MAGNITUDE: $key = <$key>::MAX;
                let a = left ^ (left >> (<$key>::BITS - 1) & MAGNITUDE);
                let b = right ^ (right >> (<$key>::BITS - 1) & MAGNITUDE);
                let found = if MAX { a.max(b) } else { a.min(b) };
                let found = found ^ (found >> (<$key>::BITS - 1) & MAGNITUDE);
                let nan = (left & MAGNITUDE > $top) | (right & MAGNITUDE > $top);
                if nan { $nan } else { found }
            }
        }
    };
}

ordered_float!(Float16, i16, 0x7c00, 0x7e00);
ordered_float!(Bfloat16, i16, 0x7f80, 0x7fc0);
ordered_float!(Float8e4m3, i8, 0x7e, 0x7f);
ordered_float!(Float8e5m2, i8, 0x7c, 0x7e);
ordered_float!(Float32, i32, 0x7f80_0000, 0x7fc0_0000);
ordered_float!(Float64, i64, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000);
