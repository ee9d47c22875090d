//! Arithmetic on registers' bits. `None` means that the combination is not known here.

use super::float::{self, Format, Round};
use super::types::{Binary, Compare, Mods, Part, Ternary, Type, Unary, signed};

const F32_SIGN: u64 = 1 << 31;

/// A subnormal becomes a zero of its sign, if asked for.
fn flush(bits: u64, mods: &Mods, kind: Type) -> u64 {
    if mods.flush && kind == Type::F32 && bits & 0x7F80_0000 == 0 { bits & F32_SIGN } else { bits }
}

/// A float's result as bits: one NaN for all, then the modifiers.
fn finish(bits: u64, format: Format, kind: Type, mods: &Mods) -> u64 {
    if kind == Type::F32 && mods.is_plain {
        return if bits & 0x7FFF_FFFF > 0x7F80_0000 { format.nan() } else { bits };
    }
    let value = format.decode(bits);
    if value.is_nan() {
        return if mods.saturate {
            0
        } else if kind == Type::F64 {
            bits
        } else {
            format.nan()
        };
    }
    if mods.saturate {
        return format.encode(value.clamp(0.0, 1.0) + 0.0, Round::Nearest, false);
    }
    if mods.relu && value.is_sign_negative() {
        return 0;
    }
    flush(bits, mods, kind)
}

/// Applies to both halves of a pair.
fn halves(kind: Type, values: [u64; 3], f: impl Fn(Type, [u64; 3]) -> Option<u64>) -> Option<u64> {
    let half = kind.half()?;
    let low = f(half, values.map(|value| value & 0xFFFF))?;
    let high = f(half, values.map(|value| value >> 16 & 0xFFFF))?;
    Some(low & 0xFFFF | (high & 0xFFFF) << 16)
}

pub(super) fn unary(f: Unary, kind: Type, mods: &Mods, a: u64) -> Option<u64> {
    if kind.half().is_some() {
        return halves(kind, [a, 0, 0], |half, [a, ..]| unary(f, half, mods, a));
    }
    if let Some(format) = kind.format() {
        return unary_float(f, kind, format, mods, a);
    }
    let bytes = kind.bytes();
    let width = bytes as u32 * 8;
    Some(match f {
        Unary::Abs => signed(a, bytes).unsigned_abs() & kind.mask(),
        Unary::Neg => a.wrapping_neg() & kind.mask(),
        Unary::Not if kind == Type::Pred => u64::from(a == 0),
        Unary::Not => !a & kind.mask(),
        Unary::CNot => u64::from(a == 0),
        Unary::Popc => u64::from((a & kind.mask()).count_ones()),
        Unary::Clz => u64::from((a & kind.mask()).leading_zeros() - (64 - width)),
        Unary::Brev => a.reverse_bits() >> (64 - width),
        Unary::Bfind(shift) => {
            let a = if kind.is_signed() && signed(a, bytes) < 0 { !a & kind.mask() } else { a & kind.mask() };
            match a.checked_ilog2() {
                None => 0xFFFF_FFFF,
                Some(top) => u64::from(if shift { width - 1 - top } else { top }),
            }
        }
        _ => return None,
    })
}

fn unary_float(f: Unary, kind: Type, format: Format, mods: &Mods, a: u64) -> Option<u64> {
    let a = flush(a, mods, kind);
    let sign = 1u64 << (kind.bytes() * 8 - 1);
    match f {
        Unary::Abs if format.decode(a).is_nan() && kind != Type::F64 => return Some(format.nan()),
        Unary::Abs => return Some(a & !sign),
        Unary::Neg if format.decode(a).is_nan() && kind != Type::F64 => return Some(format.nan()),
        Unary::Neg => return Some(a ^ sign),
        _ => {}
    }
    let x = format.decode(a);
    let value = match f {
        Unary::Rcp if kind == Type::F64 => 1.0 / x,
        Unary::Rcp => float::div_odd(1.0, x),
        Unary::Sqrt if kind == Type::F64 => x.sqrt(),
        Unary::Sqrt => float::sqrt_odd(x),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Ex2 => x.exp2(),
        Unary::Lg2 => x.log2(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        _ => return None,
    };
    Some(finish(format.encode(value, mods.round, false), format, kind, mods))
}

/// The second result is the carry, which only some operations change.
pub(super) fn binary(f: Binary, kind: Type, mods: &Mods, a: u64, b: u64, carry: &mut bool) -> Option<u64> {
    match (f, kind) {
        (Binary::Add, Type::U(4) | Type::S(4)) if mods.is_plain => {
            return Some(u64::from((a as u32).wrapping_add(b as u32)));
        }
        (Binary::Add, Type::U(8) | Type::S(8)) if mods.is_plain => return Some(a.wrapping_add(b)),
        _ => {}
    }
    if kind.half().is_some() {
        return halves(kind, [a, b, 0], |half, [a, b, _]| binary(f, half, mods, a, b, &mut false));
    }
    match f {
        Binary::And => return Some(a & b),
        Binary::Or => return Some(a | b),
        Binary::Xor => return Some(a ^ b),
        _ => {}
    }
    if let Some(format) = kind.format() {
        return binary_float(f, kind, format, mods, a, b);
    }
    match f {
        Binary::Add | Binary::AddC | Binary::Sub | Binary::SubC => return add(f, kind, mods, a, b, carry),
        Binary::Mul => return multiply(kind, mods.part, a, b),
        _ => {}
    }
    let bytes = kind.bytes();
    let (x, y) = (signed(a, bytes), signed(b, bytes));
    let is_signed = kind.is_signed();
    Some(
        kind.mask()
            & match f {
                Binary::Div if b & kind.mask() == 0 => u64::MAX,
                Binary::Div if is_signed => x.wrapping_div(y) as u64,
                Binary::Div => a / b,
                Binary::Rem if b & kind.mask() == 0 => a,
                Binary::Rem if is_signed => x.wrapping_rem(y) as u64,
                Binary::Rem => a % b,
                Binary::Min if is_signed => x.min(y) as u64,
                Binary::Min => a.min(b),
                Binary::Max if is_signed => x.max(y) as u64,
                Binary::Max => a.max(b),
                Binary::Shl => a.checked_shl(b as u32).unwrap_or(0),
                Binary::Shr if is_signed => (x >> (b as u32).min(63)) as u64,
                Binary::Shr => (a & kind.mask()).checked_shr(b as u32).unwrap_or(0),
                Binary::Mul24 if is_signed => (signed(a << 40 >> 40 << 8, 4) >> 8)
                    .wrapping_mul(signed(b << 40 >> 40 << 8, 4) >> 8)
                    as u64,
                Binary::Mul24 => (a & 0xFF_FFFF).wrapping_mul(b & 0xFF_FFFF),
                _ => return None,
            },
    )
}

fn add(f: Binary, kind: Type, mods: &Mods, a: u64, b: u64, carry: &mut bool) -> Option<u64> {
    let bytes = kind.bytes();
    if mods.saturate {
        let (x, y) = (signed(a, bytes), signed(b, bytes));
        let sum = if f == Binary::Add { x + y } else { x - y };
        return (kind == Type::S(4))
            .then(|| sum.clamp(i32::MIN.into(), i32::MAX.into()) as u64 & kind.mask());
    }
    let (a, b) = (u128::from(a & kind.mask()), u128::from(b & kind.mask()));
    let old = u128::from(*carry);
    let (sum, out) = match f {
        Binary::Add => (a + b, a + b > kind.mask().into()),
        Binary::AddC => (a + b + old, a + b + old > kind.mask().into()),
        // The carry of a subtraction is its borrow.
        Binary::Sub => (a.wrapping_sub(b), a < b),
        _ => (a.wrapping_sub(b + old), a < b + old),
    };
    if mods.carry_out {
        *carry = out;
    }
    Some(sum as u64 & kind.mask())
}

fn multiply(kind: Type, part: Part, a: u64, b: u64) -> Option<u64> {
    let bytes = kind.bytes();
    let product = if kind.is_signed() {
        i128::from(signed(a, bytes)).wrapping_mul(signed(b, bytes).into()) as u128
    } else {
        u128::from(a & kind.mask()).wrapping_mul((b & kind.mask()).into())
    };
    Some(match part {
        Part::Low => product as u64 & kind.mask(),
        Part::High => (product >> (bytes * 8)) as u64 & kind.mask(),
        Part::Wide => product as u64 & super::types::mask(bytes * 2),
    })
}

fn binary_float(f: Binary, kind: Type, format: Format, mods: &Mods, a: u64, b: u64) -> Option<u64> {
    let (a, b) = (flush(a, mods, kind), flush(b, mods, kind));
    if f == Binary::CopySign {
        let sign = 1u64 << (kind.bytes() * 8 - 1);
        return Some(a & sign | b & !sign);
    }
    if kind == Type::F32 && mods.round == Round::Nearest {
        let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        let value = match f {
            Binary::Add => Some(x + y),
            Binary::Sub => Some(x - y),
            Binary::Mul => Some(x * y),
            Binary::Div => Some(x / y),
            _ => None,
        };
        if let Some(value) = value {
            return Some(finish(value.to_bits().into(), format, kind, mods));
        }
    }
    let (x, y) = (format.decode(a), format.decode(b));
    let is_wide = kind == Type::F64;
    if is_wide && mods.round != Round::Nearest {
        return None;
    }
    let value = match f {
        Binary::Add if is_wide => x + y,
        Binary::Sub if is_wide => x - y,
        Binary::Mul if is_wide => x * y,
        Binary::Div if is_wide => x / y,
        Binary::Add => float::add_odd(x, y),
        Binary::Sub => float::add_odd(x, -y),
        Binary::Mul => x * y,
        Binary::Div => float::div_odd(x, y),
        Binary::Min | Binary::Max => return Some(choose(f == Binary::Min, (a, x), (b, y), format, mods)),
        _ => return None,
    };
    let is_zero_sum =
        value == 0.0 && matches!(f, Binary::Add | Binary::Sub) && mods.round == Round::Down && x != 0.0;
    let value = if is_zero_sum { -0.0 } else { value };
    Some(finish(format.encode(value, mods.round, false), format, kind, mods))
}

/// The lesser or the greater of two: −0 is less than +0, a NaN loses unless it shall win.
fn choose(least: bool, a: (u64, f64), b: (u64, f64), format: Format, mods: &Mods) -> u64 {
    let sign = format.encode(-0.0, Round::Nearest, false);
    let (xa, xb) = if mods.abs { (a.1.abs(), b.1.abs()) } else { (a.1, b.1) };
    let bits = if mods.abs { (a.0 & !sign, b.0 & !sign) } else { (a.0, b.0) };
    let chosen = match (a.1.is_nan(), b.1.is_nan()) {
        (true, true) => return format.nan(),
        (true, false) | (false, true) if mods.nan => return format.nan(),
        (true, false) => bits.1,
        (false, true) => bits.0,
        _ => {
            let a_is_less = xa < xb || xa == xb && xa.is_sign_negative();
            if a_is_less == least { bits.0 } else { bits.1 }
        }
    };
    if mods.xorsign { chosen & !sign | (a.0 ^ b.0) & sign } else { chosen }
}

pub(super) fn ternary(
    f: Ternary,
    kind: Type,
    mods: &Mods,
    [a, b, c]: [u64; 3],
    carry: &mut bool,
) -> Option<u64> {
    if kind.half().is_some() {
        return halves(kind, [a, b, c], |half, values| ternary(f, half, mods, values, &mut false));
    }
    let bytes = kind.bytes();
    Some(match f {
        Ternary::Fma => match kind.format() {
            Some(format) => return fma(kind, format, mods, [a, b, c]),
            None => {
                let product = multiply(kind, mods.part, a, b)?;
                let wide = if mods.part == Part::Wide { bytes * 2 } else { bytes };
                let sum = if wide == 16 { return None } else { Type::U(wide as u8) };
                return add(Binary::Add, sum, mods, product, c, carry);
            }
        },
        Ternary::MadC => return add(Binary::AddC, kind, mods, multiply(kind, mods.part, a, b)?, c, carry),
        Ternary::Sad if kind.is_signed() => {
            c.wrapping_add(signed(a, bytes).abs_diff(signed(b, bytes))) & kind.mask()
        }
        Ternary::Sad => c.wrapping_add(a.abs_diff(b)) & kind.mask(),
        Ternary::Bfe => extract(kind, a, b as u32 & 0xFF, c as u32 & 0xFF),
        Ternary::Prmt => permute(a, b, c),
        Ternary::Shf => shift_pair(mods, a as u32, b as u32, c as u32).into(),
        Ternary::Lop3(table) => lop3(a, b, c, table) & kind.mask(),
        Ternary::Dp4a => {
            let byte = |value: u64, index: u64| {
                let byte = value >> (index * 8) & 0xFF;
                if kind.is_signed() { i64::from(byte as u8 as i8) } else { byte as i64 }
            };
            let sum: i64 = (0..4).map(|index| byte(a, index) * byte(b, index)).sum();
            c.wrapping_add(sum as u64) & 0xFFFF_FFFF
        }
        Ternary::Min3 | Ternary::Max3 => {
            let pick = if f == Ternary::Min3 { Binary::Min } else { Binary::Max };
            return binary(pick, kind, mods, binary(pick, kind, mods, a, b, carry)?, c, carry);
        }
    })
}

fn fma(kind: Type, format: Format, mods: &Mods, values: [u64; 3]) -> Option<u64> {
    let [a, b, c] = values.map(|value| flush(value, mods, kind));
    if kind == Type::F32 && mods.round == Round::Nearest {
        let [x, y, z] = [a, b, c].map(|value| f32::from_bits(value as u32));
        return Some(finish(x.mul_add(y, z).to_bits().into(), format, kind, mods));
    }
    let [x, y, z] = [a, b, c].map(|value| format.decode(value));
    if kind == Type::F64 {
        return (mods.round == Round::Nearest).then(|| finish(x.mul_add(y, z).to_bits(), format, kind, mods));
    }
    Some(finish(format.encode(float::fma_odd(x, y, z), mods.round, false), format, kind, mods))
}

/// A field of bits, with the sign of its highest bit (or of the value's, where it reaches beyond).
fn extract(kind: Type, a: u64, start: u32, length: u32) -> u64 {
    let width = kind.bytes() as u32 * 8;
    let a = a & kind.mask();
    if length == 0 {
        return 0;
    }
    let field = a.checked_shr(start).unwrap_or(0);
    let field = if length >= 64 { field } else { field & ((1 << length) - 1) };
    if !kind.is_signed() {
        return field;
    }
    let top = (start + length - 1).min(width - 1);
    let is_negative = a >> top & 1 == 1;
    let held = (width.saturating_sub(start)).min(length);
    if is_negative && held < 64 { (field | u64::MAX << held) & kind.mask() } else { field }
}

/// Inserts the lowest bits of `a` into `b`.
pub(super) fn insert(kind: Type, a: u64, b: u64, start: u32, length: u32) -> u64 {
    let width = kind.bytes() as u32 * 8;
    if start >= width || length == 0 {
        return b & kind.mask();
    }
    let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let place = field << start;
    (b & !place | a << start & place) & kind.mask()
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = a & 0xFFFF_FFFF | b << 32;
    (0..4).fold(0, |word, index| {
        let select = selector >> (index * 4) & 0xF;
        let byte = bytes >> ((select & 7) * 8) & 0xFF;
        let byte = if select & 8 == 0 {
            byte
        } else if byte & 0x80 != 0 {
            0xFF
        } else {
            0
        };
        word | byte << (index * 8)
    })
}

fn shift_pair(mods: &Mods, low: u32, high: u32, count: u32) -> u32 {
    let count = if mods.wrap { count & 31 } else { count.min(32) };
    let pair = u64::from(low) | u64::from(high) << 32;
    if mods.left { ((pair << count) >> 32) as u32 } else { (pair >> count) as u32 }
}

fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    (0..8).filter(|index| table >> index & 1 == 1).fold(0, |word, index| {
        let pick = |value: u64, bit: u32| if index >> bit & 1 == 1 { value } else { !value };
        word | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

pub(super) fn compare(how: Compare, kind: Type, flushes: bool, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = if let Some(format) = kind.format() {
        let mask = |bits: u64| {
            if flushes && kind == Type::F32 && bits & 0x7F80_0000 == 0 { bits & F32_SIGN } else { bits }
        };
        format.decode(mask(a)).partial_cmp(&format.decode(mask(b)))
    } else if kind.is_signed() {
        Some(signed(a, kind.bytes()).cmp(&signed(b, kind.bytes())))
    } else {
        Some((a & kind.mask()).cmp(&(b & kind.mask())))
    };
    match how {
        Compare::Eq => order == Some(Equal),
        Compare::Ne => matches!(order, Some(Less | Greater)),
        Compare::Lt => order == Some(Less),
        Compare::Le => matches!(order, Some(Less | Equal)),
        Compare::Gt => order == Some(Greater),
        Compare::Ge => matches!(order, Some(Greater | Equal)),
        Compare::Equ => matches!(order, None | Some(Equal)),
        Compare::Neu => order != Some(Equal),
        Compare::Ltu => matches!(order, None | Some(Less)),
        Compare::Leu => order != Some(Greater),
        Compare::Gtu => matches!(order, None | Some(Greater)),
        Compare::Geu => order != Some(Less),
        Compare::Num => order.is_some(),
        Compare::Nan => order.is_none(),
    }
}
