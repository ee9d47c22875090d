//! Exact division of sums of integers by a number of ranks, cut off toward zero.
//!
//! Each way suits sums of one size: products of 64 bits, floats that become vector code, and the CPU's own division.

/// Division of 128-bit sums: those that have 64 bits, as nearly all do, by multiplication.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide {
    narrow: Reciprocal,
    ranks: i128,
}

impl Wide {
    #[inline(always)]
    pub(super) fn new(ranks: usize) -> Self {
        Self { narrow: Reciprocal::new(ranks), ranks: ranks as i128 }
    }
    #[inline(always)]
    pub(super) fn divide(self, sum: i128) -> i128 {
        match i64::try_from(sum) {
            Ok(sum) if sum != i64::MIN => i128::from(self.narrow.divide(sum)),
            _ => sum / self.ranks,
        }
    }
}

/// Division of 64-bit sums by multiplication, several times as fast as the CPU's division.
///
/// For a divisor d, with l = ceil(log2 d) and m = floor(2^(63+l) / d) + 1, which has 64 bits, floor(n / d) is
/// floor(n m / 2^(63+l)) for all 0 <= n < 2^63 (Granlund and Montgomery, 1994, theorem 4.2). A sum is never -2^63, as
/// 2^31 elements of 32 bits do not reach it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reciprocal {
    multiplier: u64,
    shift: u32,
    pub(super) single: Inverse<f32>,
    pub(super) double: Inverse<f64>,
}

/// Division by d of sums of two elements, in floats and without a conversion back, so that it becomes vector code.
///
/// A sum n >= 0 is q d + r. Then n / d + 1 / 2d - 1/2 is q + (r + 1/2) / d - 1/2: nearer to q than to any other integer, by
/// 1 / 2d at least. The errors of its computation are smaller than that (`f32` takes sums of 9 bits, `f64` of 33), but for a
/// d so large that q is 0 and the value, now -1/2 or a little more, rounds to 0 as well. Adding a number whose last digit is
/// the units rounds it to an integer and leaves that in the low bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inverse<F> {
    factor: F,
    offset: F,
}

macro_rules! inverse {
    ($float:ty, $bits:ty, $units:literal) => {
        impl Inverse<$float> {
            #[inline(always)]
            pub(super) fn new(ranks: usize) -> Self {
                let factor = 1.0 / ranks as $float;
                Self { factor, offset: factor / 2.0 - 0.5 }
            }
            /// The low bits of the quotient in two's complement.
            #[inline(always)]
            pub(super) fn divide(self, sum: $float) -> $bits {
                let quotient = (sum.abs() * self.factor + self.offset + $units).to_bits();
                if sum < 0.0 { quotient.wrapping_neg() } else { quotient }
            }
        }
    };
}

inverse!(f32, u32, 12_582_912.0);
inverse!(f64, u64, 6_755_399_441_055_744.0);

impl Reciprocal {
    #[inline(always)]
    pub(super) fn new(ranks: usize) -> Self {
        let shift = ranks.next_power_of_two().trailing_zeros();
        // The quotient is below 2^64, as d > 2^(l-1), or d = 1 and l = 0.
        let multiplier = ((1u128 << (63 + shift)) / ranks as u128 + 1) as u64;
        Self { multiplier, shift, single: Inverse::<f32>::new(ranks), double: Inverse::<f64>::new(ranks) }
    }
    #[inline(always)]
    pub(super) fn divide(self, sum: i64) -> i64 {
        let doubled = sum.unsigned_abs() << 1;
        let high = ((u128::from(doubled) * u128::from(self.multiplier)) >> 64) as u64;
        let quotient = (high >> self.shift) as i64;
        if sum < 0 { -quotient } else { quotient }
    }
}
