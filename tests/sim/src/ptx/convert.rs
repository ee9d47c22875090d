//! Conversions between types.

use super::float::{Format, Round};
use super::types::{Mods, Type, signed};

/// Converts `a` (and `b`, where two floats become a pair).
pub(super) fn convert(result: Type, kind: Type, mods: &Mods, a: u64, b: Option<u64>) -> Option<u64> {
    match (result, kind) {
        (Type::F16x2 | Type::Bf16x2, Type::F32) => {
            let format = result.half()?.format()?;
            let one = |bits: u64| narrow(format, Format::F32.decode(bits), mods, false);
            Some(one(b?) & 0xFFFF | (one(a) & 0xFFFF) << 16)
        }
        (Type::E4m3x2 | Type::E5m2x2, Type::F32) => {
            let one = |bits: u64| narrow(eight(result), Format::F32.decode(bits), mods, true);
            Some(one(b?) & 0xFF | (one(a) & 0xFF) << 8)
        }
        (Type::E4m3x2 | Type::E5m2x2, Type::F16x2 | Type::Bf16x2) => {
            let from = kind.half()?.format()?;
            let one = |bits: u64| narrow(eight(result), from.decode(bits & 0xFFFF), mods, true);
            Some(one(a) & 0xFF | (one(a >> 16) & 0xFF) << 8)
        }
        (Type::F16x2 | Type::Bf16x2, Type::E4m3x2 | Type::E5m2x2) => {
            let format = result.half()?.format()?;
            let one = |bits: u64| narrow(format, eight(kind).decode(bits & 0xFF), mods, false);
            Some(one(a) | one(a >> 8) << 16)
        }
        _ => match (result.format(), kind.format()) {
            (Some(to), Some(from)) => Some(float_to_float(to, from, result, kind, mods, a)),
            (Some(to), None) => Some(integer_to_float(to, kind, mods, a)),
            (None, Some(from)) => Some(float_to_integer(result, from, kind, mods, a)),
            (None, None) => Some(integer_to_integer(result, kind, mods, a)),
        },
    }
}

fn eight(kind: Type) -> Format {
    if kind == Type::E4m3x2 { Format::E4M3 } else { Format::E5M2 }
}

fn narrow(format: Format, value: f64, mods: &Mods, finite: bool) -> u64 {
    if mods.relu && (value.is_sign_negative() && !value.is_nan()) {
        return 0;
    }
    format.encode(
        value,
        mods.round,
        finite || mods.saturate && format != Format::F16 && format != Format::BF16,
    )
}

fn to_integer(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

fn flushed(bits: u64, kind: Type, mods: &Mods) -> u64 {
    if mods.flush && kind == Type::F32 && bits & 0x7F80_0000 == 0 { bits & 1 << 31 } else { bits }
}

fn float_to_float(to: Format, from: Format, result: Type, kind: Type, mods: &Mods, a: u64) -> u64 {
    let mut value = from.decode(flushed(a, kind, mods));
    if mods.to_integer {
        value = to_integer(value, mods.round);
    }
    if mods.saturate {
        value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
    }
    if mods.relu && value.is_sign_negative() && !value.is_nan() {
        value = 0.0;
    }
    flushed(to.encode(value, mods.round, false), result, mods)
}

fn integer_to_float(to: Format, kind: Type, mods: &Mods, a: u64) -> u64 {
    let value = signed(a, kind.bytes());
    let (is_negative, whole) =
        if kind.is_signed() { (value < 0, value.unsigned_abs()) } else { (false, a & kind.mask()) };
    if whole == 0 { 0 } else { to.round(is_negative, whole, 0, mods.round, false) }
}

/// Clamps; a NaN is 0 between 32-bit types, and the highest bit alone where 64 bits take part.
fn float_to_integer(result: Type, from: Format, kind: Type, mods: &Mods, a: u64) -> u64 {
    let value = to_integer(from.decode(flushed(a, kind, mods)), mods.round);
    let bits = result.bytes() * 8;
    if value.is_nan() {
        let is_wide = kind == Type::F64 || bits == 64;
        return if is_wide { 1 << (bits - 1) } else { 0 };
    }
    if result.is_signed() {
        let most = i64::MAX >> (64 - bits);
        (value as i64).clamp(-most - 1, most) as u64 & result.mask()
    } else {
        (value as u64).min(result.mask())
    }
}

fn integer_to_integer(result: Type, kind: Type, mods: &Mods, a: u64) -> u64 {
    let value =
        if kind.is_signed() { i128::from(signed(a, kind.bytes())) } else { i128::from(a & kind.mask()) };
    if !mods.saturate {
        return value as u64 & result.mask();
    }
    let bits = result.bytes() * 8;
    let (least, most) = if result.is_signed() {
        let most = i128::from(i64::MAX >> (64 - bits));
        (-most - 1, most)
    } else {
        (0, i128::from(result.mask()))
    };
    value.clamp(least, most) as u64 & result.mask()
}
