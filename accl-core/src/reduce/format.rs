//! Scalar conversions between the narrow floating formats and `f32`.
//!
//! All of them are branch-free integer code (selects, no loops), so that a loop over them becomes vector code on
//! every target. None relies on denormal `f32` operands: a thread that runs with denormals-are-zero gets the same
//! conversions as any other.
//!
//! Encoders round to nearest, ties to even, once. A NaN becomes the format's canonical quiet NaN: positive, and
//! without payload, so that the result does not depend on which of several NaN came first.

/// The quiet NaN that every `f32` result uses.
pub(super) const F32_NAN: u32 = 0x7fc0_0000;
/// The quiet NaN that every `f64` result uses.
pub(super) const F64_NAN: u64 = 0x7ff8_0000_0000_0000;

const F32_ABS: u32 = 0x7fff_ffff;
const F32_INF: u32 = 0x7f80_0000;

/// `x`, with every NaN replaced by [`F32_NAN`].
#[inline(always)]
pub(super) fn settle_f32(x: f32) -> f32 {
    // On the bits, not `is_nan`: the payload of a NaN that went through float arithmetic is unspecified, that of
    // an integer select is not.
    let bits = x.to_bits();
    f32::from_bits(if bits & F32_ABS > F32_INF { F32_NAN } else { bits })
}

/// `x`, with every NaN replaced by [`F64_NAN`].
#[inline(always)]
pub(super) fn settle_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits & (u64::MAX >> 1) > 0x7ff0_0000_0000_0000 { F64_NAN } else { bits })
}

/// binary16 to `f32`, exact.
#[inline(always)]
pub(super) fn f16_decode(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // Exponents are biased by 15 and 127; the top exponent (infinity, NaN) moves by as much again.
    let normal = (magnitude << 13) + (112 << 23);
    let special = normal + (112 << 23);
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let wide = if magnitude >= 0x7c00 { special } else { normal };
    f32::from_bits(sign | if magnitude < 0x0400 { subnormal } else { wide })
}

/// `f32` to binary16; too large becomes infinity.
#[inline(always)]
pub(super) fn f16_encode(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & F32_ABS;
    let normal = narrow(magnitude, 13, 112).min(0x7c00);
    // Adding 1/2 leaves exactly the multiples of 2^-24 in the mantissa.
    let subnormal = fixed_point(magnitude, 0.5);
    let finite = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    let code = if magnitude > F32_INF { 0x7e00 } else { finite | (bits >> 16 & 0x8000) };
    code as u16
}

/// bfloat16 to `f32`, exact.
#[inline(always)]
pub(super) fn bf16_decode(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `f32` to bfloat16; too large becomes infinity.
#[inline(always)]
pub(super) fn bf16_encode(x: f32) -> u16 {
    let bits = x.to_bits();
    // The carry of the rounding runs into the exponent, and from the largest number into infinity: both as wanted.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if bits & F32_ABS > F32_INF { F32_NAN >> 16 } else { rounded }) as u16
}

/// FP8 E4M3 (no infinities) to `f32`, exact.
#[inline(always)]
pub(super) fn e4m3_decode(bits: u8) -> f32 {
    let magnitude = u32::from(bits & 0x7f);
    let sign = u32::from(bits & 0x80) << 24;
    let normal = (magnitude << 20) + (120 << 23);
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 9) << 23)).to_bits();
    let finite = if magnitude < 8 { subnormal } else { normal };
    f32::from_bits(if magnitude == 0x7f { F32_NAN } else { sign | finite })
}

/// `f32` to FP8 E4M3; too large (infinity, too) becomes 448, the largest number.
#[inline(always)]
pub(super) fn e4m3_encode(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = bits & F32_ABS;
    let normal = narrow(magnitude, 20, 120).min(0x7e);
    let subnormal = fixed_point(magnitude, 16384.0);
    let finite = if magnitude < (127 - 6) << 23 { subnormal } else { normal };
    (if magnitude > F32_INF { 0x7f } else { finite | (bits >> 24 & 0x80) }) as u8
}

/// FP8 E5M2 to `f32`, exact.
#[inline(always)]
pub(super) fn e5m2_decode(bits: u8) -> f32 {
    // The format is the upper half of a binary16.
    f16_decode(u16::from(bits) << 8)
}

/// `f32` to FP8 E5M2; a number that is too large becomes 57344, the largest one; infinity stays.
#[inline(always)]
pub(super) fn e5m2_encode(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = bits & F32_ABS;
    let normal = narrow(magnitude, 21, 112).min(0x7b);
    let subnormal = fixed_point(magnitude, 128.0);
    let number = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    let finite = if magnitude == F32_INF { 0x7c } else { number };
    (if magnitude > F32_INF { 0x7e } else { finite | (bits >> 24 & 0x80) }) as u8
}

/// Drops `shift` mantissa bits of the `f32` number `magnitude` with rounding and lowers its exponent by `rebias`.
/// Meaningless (but harmless) where the result would be subnormal; may exceed the format's range.
#[inline(always)]
fn narrow(magnitude: u32, shift: u32, rebias: u32) -> u32 {
    let half = (1 << (shift - 1)) - 1;
    let rounded = magnitude + half + (magnitude >> shift & 1);
    (rounded >> shift).wrapping_sub(rebias << (23 - shift))
}

/// The number `magnitude`, smaller than `anchor / 2`, as a count of the units in the last place of `anchor`. The
/// float addition does the rounding.
#[inline(always)]
fn fixed_point(magnitude: u32, anchor: f32) -> u32 {
    (f32::from_bits(magnitude) + anchor).to_bits().wrapping_sub(anchor.to_bits())
}
