//! Operands: registers, numbers, names and addresses.

use super::float::Round;
use super::lex::split;
use super::names::special;
use super::parse::{Body, Parsed, Symbol};
use super::types::{Address, Operand, Register, Type};

/// A number as the bits of a type.
pub(super) fn number(text: &str, kind: Type) -> Option<u64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits.trim()),
        None => (false, text),
    };
    let bits = if let Some(hex) = digits.strip_prefix("0f").or_else(|| digits.strip_prefix("0F")) {
        let bits = u64::from_str_radix(hex, 16).ok()?;
        if kind == Type::F64 { f64::from(f32::from_bits(bits as u32)).to_bits() } else { bits }
    } else if let Some(hex) = digits.strip_prefix("0d").or_else(|| digits.strip_prefix("0D")) {
        u64::from_str_radix(hex, 16).ok()?
    } else if digits.contains('.') {
        let value: f64 = digits.parse().ok()?;
        let value = if is_negative { -value } else { value };
        return Some(kind.format()?.encode(value, Round::Nearest, false));
    } else if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex.trim_end_matches('U'), 16).ok()?
    } else {
        digits.trim_end_matches('U').parse().ok()?
    };
    let bits = if is_negative { bits.wrapping_neg() } else { bits };
    Some(if kind == Type::Pred { bits & 1 } else { bits & kind.mask() })
}

pub(super) fn vector(text: &str) -> Vec<&str> {
    match text.strip_prefix('{') {
        Some(inner) => split(inner.trim_end_matches('}')),
        None => vec![text],
    }
}

pub(super) fn register(body: &Body<'_>, name: &str) -> Parsed<Register> {
    body.register(name).ok_or_else(|| format!("register {name}"))
}

/// A register, or `_` for a result that nobody wants.
pub(super) fn sink(body: &Body<'_>, name: &str) -> Parsed<Option<Register>> {
    if name == "_" { Ok(None) } else { register(body, name).map(Some) }
}

pub(super) fn operand(body: &Body<'_>, text: &str, kind: Type) -> Parsed<Operand> {
    if let Some(register) = body.register(text) {
        return Ok(Operand::Register(register));
    }
    if let Some(special) = special(text) {
        return Ok(Operand::Special(special));
    }
    if let Some(value) = number(text, kind) {
        return Ok(Operand::Value(value));
    }
    let (name, offset) = match text.split_once('+') {
        Some((name, offset)) => {
            (name.trim(), number(offset.trim(), Type::B(8)).ok_or_else(|| format!("offset {offset}"))?)
        }
        None => (text, 0),
    };
    let name = name.strip_prefix("generic(").map_or(name, |inner| inner.trim_end_matches(')'));
    match body.symbol(name) {
        Some(Symbol::Shared(at) | Symbol::Parameter(at)) => Ok(Operand::Value(at + offset)),
        Some(Symbol::Global(index)) => Ok(Operand::Value(body.addresses[index] + offset)),
        Some(Symbol::Frame(at)) => Ok(Operand::Frame(at + offset)),
        None => Err(format!("operand {text}")),
    }
}

pub(super) fn address(body: &Body<'_>, text: &str) -> Parsed<Address> {
    let inner = text.trim_start_matches('[').trim_end_matches(']').trim();
    let (base, offset) = match inner.rfind(['+', '-']).filter(|&at| at > 0) {
        Some(at) => {
            let number: i64 =
                inner[at..].replace(['+', ' '], "").parse().map_err(|_| format!("offset in {text}"))?;
            (inner[..at].trim_end_matches('+').trim(), number)
        }
        None => (inner, 0),
    };
    Ok(Address { base: operand(body, base, Type::B(8))?, offset })
}
