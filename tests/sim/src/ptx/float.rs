//! Float formats and rounding, bit by bit.
//!
//! Arithmetic that hardware rounds once is computed in f64, rounded to odd (the last bit says that something was cut off), and rounded
//! from there to its format. That is the same as rounding once, since f64 has more than two bits to spare over f32.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// A format: bits of exponent and mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    exponent: u32,
    mantissa: u32,
    /// Has infinities; e4m3 has none, and a single NaN.
    is_ieee: bool,
}

impl Format {
    pub(super) const F64: Self = Self { exponent: 11, mantissa: 52, is_ieee: true };
    pub(super) const F32: Self = Self { exponent: 8, mantissa: 23, is_ieee: true };
    pub(super) const F16: Self = Self { exponent: 5, mantissa: 10, is_ieee: true };
    pub(super) const BF16: Self = Self { exponent: 8, mantissa: 7, is_ieee: true };
    pub(super) const E5M2: Self = Self { exponent: 5, mantissa: 2, is_ieee: true };
    pub(super) const E4M3: Self = Self { exponent: 4, mantissa: 3, is_ieee: false };

    fn sign_bit(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// What stands for no number.
    pub(super) fn nan(self) -> u64 {
        if self == Self::F64 { 0x7FF8 << 48 } else { self.sign_bit() - 1 }
    }

    fn infinity(self) -> u64 {
        if self.is_ieee { ((1 << self.exponent) - 1) << self.mantissa } else { self.nan() }
    }

    fn largest(self) -> u64 {
        self.infinity() - 1
    }

    /// The value, exactly.
    pub(super) fn decode(self, bits: u64) -> f64 {
        if self == Self::F64 {
            return f64::from_bits(bits);
        }
        if self == Self::F32 {
            return f32::from_bits(bits as u32).into();
        }
        let sign = if bits & self.sign_bit() != 0 { -1.0 } else { 1.0 };
        let magnitude = bits & (self.sign_bit() - 1);
        let is_special = if self.is_ieee { magnitude >= self.infinity() } else { magnitude == self.nan() };
        if is_special {
            return if self.is_ieee && magnitude == self.infinity() {
                sign * f64::INFINITY
            } else {
                f64::NAN
            };
        }
        let exponent = (magnitude >> self.mantissa) as i32;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let (whole, power) =
            if exponent == 0 { (fraction, 1) } else { (fraction | 1 << self.mantissa, exponent) };
        sign * whole as f64 * exp2i(power - self.bias() - self.mantissa as i32)
    }

    /// Rounds; `finite` keeps overflow (and infinity) at the largest number.
    pub(super) fn encode(self, value: f64, round: Round, finite: bool) -> u64 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = if value.is_sign_negative() { self.sign_bit() } else { 0 };
        if value.is_infinite() {
            return sign | if finite { self.largest() } else { self.infinity() };
        }
        if value == 0.0 {
            return sign;
        }
        if self == Self::F64 {
            return value.to_bits();
        }
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 0x7FF) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let (whole, power) = if exponent == 0 { (fraction, 1) } else { (fraction | 1 << 52, exponent) };
        self.round(value < 0.0, whole, power - 1075, round, finite)
    }

    /// Rounds `whole` × 2^`power`; `whole` is not 0.
    pub(super) fn round(self, is_negative: bool, whole: u64, power: i32, round: Round, finite: bool) -> u64 {
        let sign = if is_negative { self.sign_bit() } else { 0 };
        let top = power + 63 - whole.leading_zeros() as i32;
        let least = 1 - self.bias();
        let shift = top.max(least) - self.mantissa as i32 - power;
        let (kept, rest, half) = match shift {
            ..=0 => (whole << -shift, 0, 1),
            1..=63 => (whole >> shift, whole & ((1 << shift) - 1), 1 << (shift - 1)),
            64 => (0, whole, 1 << 63),
            _ => (0, 1, 2),
        };
        let up = match round {
            Round::Nearest => rest > half || rest == half && kept & 1 == 1,
            Round::Zero => false,
            Round::Down => is_negative && rest > 0,
            Round::Up => !is_negative && rest > 0,
        };
        let biased = (top.max(least) + self.bias() - 1) as u64;
        let bits = (biased << self.mantissa) + kept + u64::from(up);
        if bits < self.infinity() {
            return sign | bits;
        }
        let stays = match round {
            Round::Nearest => false,
            Round::Zero => true,
            Round::Down => !is_negative,
            Round::Up => is_negative,
        };
        sign | if finite || stays { self.largest() } else { self.infinity() }
    }
}

/// 2 to a power that f64 has as a normal or subnormal number.
fn exp2i(power: i32) -> f64 {
    if power >= -1022 {
        f64::from_bits(((power + 1023) as u64) << 52)
    } else {
        exp2i(power + 64) * 5.421010862427522e-20
    }
}

/// `sum` rounded to odd, where `rest` is what it lacks of the exact result.
fn to_odd(sum: f64, rest: f64) -> f64 {
    if rest == 0.0 || !sum.is_finite() || rest.is_nan() {
        return sum;
    }
    let bits = sum.to_bits();
    if bits & 1 == 1 {
        return sum;
    }
    if sum == 0.0 {
        return rest;
    }
    let grows = (rest > 0.0) == (sum > 0.0);
    f64::from_bits(if grows { bits + 1 } else { bits - 1 })
}

/// Sum of two numbers, rounded to odd.
pub(super) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let b_part = sum - a;
    let rest = (a - (sum - b_part)) + (b - b_part);
    to_odd(sum, rest)
}

/// Product of two numbers of at most 26 bits plus another number, rounded to odd.
pub(super) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// Quotient, rounded to odd.
pub(super) fn div_odd(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if !quotient.is_finite() || b.is_infinite() {
        return quotient;
    }
    let rest = (-quotient).mul_add(b, a);
    to_odd(quotient, if b > 0.0 { rest } else { -rest })
}

/// Square root, rounded to odd.
pub(super) fn sqrt_odd(a: f64) -> f64 {
    let root = a.sqrt();
    if !root.is_finite() { root } else { to_odd(root, (-root).mul_add(root, a)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_agree_with_the_types_of_rust() {
        for bits in (0..=u16::MAX).step_by(3) {
            let (f, b) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
            if !f.is_nan() {
                assert_eq!(Format::F16.decode(bits.into()), f.to_f64());
                assert_eq!(Format::F16.encode(f.to_f64(), Round::Nearest, false), bits.into());
            }
            if !b.is_nan() {
                assert_eq!(Format::BF16.decode(bits.into()), b.to_f64());
                assert_eq!(Format::BF16.encode(b.to_f64(), Round::Nearest, false), bits.into());
            }
        }
        let mut state = 7;
        for _ in 0..200_000 {
            let x = f32::from_bits(crate::time::scramble(&mut state) as u32);
            let y = f64::from_bits(crate::time::scramble(&mut state));
            if !x.is_nan() {
                let nearest = Round::Nearest;
                assert_eq!(
                    Format::F16.encode(x.into(), nearest, false),
                    u64::from(half::f16::from_f32(x).to_bits()),
                    "{x}"
                );
                assert_eq!(
                    Format::BF16.encode(x.into(), nearest, false),
                    u64::from(half::bf16::from_f32(x).to_bits()),
                    "{x}"
                );
            }
            if !y.is_nan() {
                assert_eq!(
                    Format::F32.encode(y, Round::Nearest, false),
                    u64::from((y as f32).to_bits()),
                    "{y}"
                );
            }
        }
    }

    #[test]
    fn odd_sums_round_as_one_operation() {
        let mut state = 11;
        for _ in 0..200_000 {
            let mut next = || f32::from_bits(crate::time::scramble(&mut state) as u32 & 0xBFFF_FFFF);
            let (a, b, c) = (next(), next(), next());
            let round = |value| Format::F32.encode(value, Round::Nearest, false) as u32;
            if (a + b).is_nan() || a.mul_add(b, c).is_nan() || (a / b).is_nan() {
                continue;
            }
            assert_eq!(round(add_odd(a.into(), b.into())), (a + b).to_bits());
            assert_eq!(
                round(fma_odd(a.into(), b.into(), c.into())),
                a.mul_add(b, c).to_bits(),
                "{a} {b} {c}"
            );
            assert_eq!(round(div_odd(a.into(), b.into())), (a / b).to_bits(), "{a} {b}");
            assert_eq!(round(sqrt_odd(a.abs().into())), a.abs().sqrt().to_bits());
        }
    }

    #[test]
    fn directions_are_kept() {
        let third = 1.0 / 3.0;
        let down = Format::F32.encode(third, Round::Zero, false);
        assert_eq!(Format::F32.encode(third, Round::Up, false), down + 1);
        assert_eq!(Format::F32.encode(-third, Round::Down, false), (1 << 31 | down) + 1);
        assert_eq!(Format::F16.encode(1e9, Round::Zero, false), 0x7BFF);
        assert_eq!(Format::F16.encode(1e9, Round::Nearest, false), 0x7C00);
    }

    #[test]
    fn eight_bit_floats() {
        let e4m3 = |value| Format::E4M3.encode(value, Round::Nearest, true);
        let e5m2 = |value| Format::E5M2.encode(value, Round::Nearest, true);
        assert_eq!((e4m3(1.0), e4m3(448.0), e4m3(1e6), e4m3(-1e6)), (0x38, 0x7E, 0x7E, 0xFE));
        assert_eq!((e4m3(f64::NAN), e4m3(f64::INFINITY), e4m3(0.001953125)), (0x7F, 0x7E, 1));
        assert_eq!((e5m2(1.0), e5m2(57344.0), e5m2(1e6), e5m2(f64::NAN)), (0x3C, 0x7B, 0x7B, 0x7F));
        for bits in 0..=0xFF {
            for format in [Format::E4M3, Format::E5M2] {
                let value = format.decode(bits);
                if value.is_finite() {
                    assert_eq!(format.encode(value, Round::Nearest, true), bits);
                }
            }
        }
        assert_eq!(Format::E4M3.decode(0x7E), 448.0);
        assert!(Format::E4M3.decode(0x7F).is_nan());
    }
}
