//! An independent reference: slow, and simple enough to be checked by reading. Nothing of the kernels is used.
//!
//! A narrow float is described by four numbers, and decoded by the textbook formula into `f64`, which holds all of
//! them exactly. Rounding searches among all values of the format. Folding is done in `f32` where the accumulator is
//! `f32`, in the order of the sources.

use crate::types::{DataType, ReduceOp};

use super::Form;

/// A binary floating format of at most 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narrow {
    pub(super) exponent_bits: u32,
    pub(super) mantissa_bits: u32,
    /// E4M3 has no infinity, and one NaN where the others have a whole binade of them.
    pub(super) has_infinity: bool,
    /// Too large a number becomes the largest number, not infinity.
    pub(super) saturates: bool,
    pub(super) nan: u16,
}

pub(super) const F16: Narrow =
    Narrow { exponent_bits: 5, mantissa_bits: 10, has_infinity: true, saturates: false, nan: 0x7e00 };
pub(super) const BF16: Narrow =
    Narrow { exponent_bits: 8, mantissa_bits: 7, has_infinity: true, saturates: false, nan: 0x7fc0 };
pub(super) const E4M3: Narrow =
    Narrow { exponent_bits: 4, mantissa_bits: 3, has_infinity: false, saturates: true, nan: 0x7f };
pub(super) const E5M2: Narrow =
    Narrow { exponent_bits: 5, mantissa_bits: 2, has_infinity: true, saturates: true, nan: 0x7e };

impl Narrow {
    pub(super) fn of(dtype: DataType) -> Option<Self> {
        match dtype {
            DataType::Float16 => Some(F16),
            DataType::Bfloat16 => Some(BF16),
            DataType::Float8e4m3 => Some(E4M3),
            DataType::Float8e5m2 => Some(E5M2),
            _ => None,
        }
    }

    pub(super) fn sign_bit(self) -> u16 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The value of a code, by the definition of the format.
    pub(super) fn decode(self, code: u16) -> f64 {
        let sign = if code & self.sign_bit() == 0 { 1.0 } else { -1.0 };
        let magnitude = code & (self.sign_bit() - 1);
        let mantissa = f64::from(magnitude % (1 << self.mantissa_bits)) / f64::from(1 << self.mantissa_bits);
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let top = (1 << self.exponent_bits) - 1;
        if self.has_infinity && exponent == top {
            return if mantissa == 0.0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if !self.has_infinity && magnitude == self.sign_bit() - 1 {
            return f64::NAN;
        }
        if exponent == 0 {
            sign * mantissa * 2f64.powi(1 - bias)
        } else {
            sign * (1.0 + mantissa) * 2f64.powi(exponent - bias)
        }
    }

    /// The code of the largest number.
    pub(super) fn largest(self) -> u16 {
        let all = self.sign_bit() - 1;
        if self.has_infinity { all - (1 << self.mantissa_bits) } else { all - 1 }
    }

    /// The code of the number nearest to `x`; of two, the one with an even code.
    pub(super) fn encode(self, x: f64) -> u16 {
        if x.is_nan() {
            return self.nan;
        }
        let sign = if x.is_sign_negative() { self.sign_bit() } else { 0 };
        let x = x.abs();
        if x.is_infinite() {
            return sign | if self.has_infinity { self.largest() + 1 } else { self.largest() };
        }
        // Codes of non-negative numbers ascend with their values: find the last that is not above x.
        let (mut low, mut high) = (0, self.largest() + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.decode(middle) <= x { low = middle } else { high = middle }
        }
        // What follows the largest number counts as one more step of the same size, as IEEE 754 says.
        let step = if low == self.largest() {
            self.decode(low) - self.decode(low - 1)
        } else {
            self.decode(low + 1) - self.decode(low)
        };
        let above = x - self.decode(low);
        let up = above > step / 2.0 || (above == step / 2.0 && low % 2 == 1);
        let code = low + u16::from(up);
        sign | if self.saturates { code.min(self.largest()) } else { code }
    }
}

/// A number of one of the accumulator types.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    F32(f32),
    F64(f64),
    /// Any integer; reduced to its type when it is stored.
    Int(i128),
}

/// One value of one source: its bytes, their form, and the source's factor.
pub(super) type Input<'a> = (&'a [u8], Form, Option<[u8; 8]>);

/// The rules of one reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oracle {
    pub(super) dtype: DataType,
    pub(super) op: ReduceOp,
    pub(super) ranks: usize,
}

impl Oracle {
    fn extreme(self) -> bool {
        matches!(self.op, ReduceOp::Max | ReduceOp::Min)
    }

    fn signed(self) -> bool {
        matches!(self.dtype, DataType::Int8 | DataType::Int32 | DataType::Int64)
    }

    pub(super) fn accumulator_bytes(self) -> usize {
        let element = self.dtype.size_bytes();
        if Narrow::of(self.dtype).is_some() && !self.extreme() {
            4
        } else if !self.dtype.is_float() && self.op == ReduceOp::Avg {
            if element == 8 { 16 } else { 8 }
        } else {
            element
        }
    }

    pub(super) fn bytes(self, form: Form) -> usize {
        if form == Form::Element { self.dtype.size_bytes() } else { self.accumulator_bytes() }
    }

    /// The number in `bytes`. Max and min of narrow floats compare in `f64`, which is exact.
    fn get(self, bytes: &[u8], form: Form) -> Number {
        if let Some(narrow) = Narrow::of(self.dtype) {
            if form == Form::Accumulator && !self.extreme() {
                return Number::F32(f32::from_le_bytes(bytes.try_into().unwrap()));
            }
            let mut code = [0; 2];
            code[..bytes.len()].copy_from_slice(bytes);
            let value = narrow.decode(u16::from_le_bytes(code));
            return if self.extreme() { Number::F64(value) } else { Number::F32(value as f32) };
        }
        match self.dtype {
            DataType::Float32 => Number::F32(f32::from_le_bytes(bytes.try_into().unwrap())),
            DataType::Float64 => Number::F64(f64::from_le_bytes(bytes.try_into().unwrap())),
            _ => {
                let wide = form == Form::Accumulator && bytes.len() > self.dtype.size_bytes();
                let negative = (self.signed() || wide) && bytes[bytes.len() - 1] >= 0x80;
                let mut all = if negative { [0xff; 16] } else { [0; 16] };
                all[..bytes.len()].copy_from_slice(bytes);
                Number::Int(i128::from_le_bytes(all))
            }
        }
    }

    fn put(self, number: Number, form: Form) -> Vec<u8> {
        let bytes = self.bytes(form);
        if let Some(narrow) = Narrow::of(self.dtype)
            && (form == Form::Element || self.extreme())
        {
            let value = match number {
                Number::F32(x) => f64::from(x),
                Number::F64(x) => x,
                Number::Int(_) => unreachable!(),
            };
            return narrow.encode(value).to_le_bytes()[..bytes].to_vec();
        }
        match number {
            Number::F32(x) if x.is_nan() => 0x7fc0_0000u32.to_le_bytes().to_vec(),
            Number::F32(x) => x.to_le_bytes().to_vec(),
            Number::F64(x) if x.is_nan() => 0x7ff8_0000_0000_0000u64.to_le_bytes().to_vec(),
            Number::F64(x) => x.to_le_bytes().to_vec(),
            Number::Int(x) => x.to_le_bytes()[..bytes].to_vec(),
        }
    }

    fn combine(self, left: Number, right: Number) -> Number {
        match (left, right) {
            (Number::F32(a), Number::F32(b)) if self.extreme() => {
                Number::F32(self.pick(f64::from(a), f64::from(b)) as f32)
            }
            (Number::F64(a), Number::F64(b)) if self.extreme() => Number::F64(self.pick(a, b)),
            (Number::F32(a), Number::F32(b)) => {
                Number::F32(if self.op == ReduceOp::Prod { a * b } else { a + b })
            }
            (Number::F64(a), Number::F64(b)) => {
                Number::F64(if self.op == ReduceOp::Prod { a * b } else { a + b })
            }
            (Number::Int(a), Number::Int(b)) => Number::Int(match self.op {
                // Products are reduced to the type at each step, or they would leave i128.
                ReduceOp::Prod => self.wrapped(a.wrapping_mul(b)),
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Avg => a + b,
                ReduceOp::Sum | ReduceOp::PreMulSum => self.wrapped(a + b),
            }),
            _ => unreachable!(),
        }
    }

    /// The larger or smaller of two floats, with NaN above all and zeros told apart.
    fn pick(self, a: f64, b: f64) -> f64 {
        if a.is_nan() || b.is_nan() {
            return f64::NAN;
        }
        let a_is_less = a < b || (a == b && a.is_sign_negative());
        if (self.op == ReduceOp::Max) == a_is_less { b } else { a }
    }

    fn wrapped(self, x: i128) -> i128 {
        match self.get(&x.to_le_bytes()[..self.dtype.size_bytes()], Form::Element) {
            Number::Int(x) => x,
            _ => unreachable!(),
        }
    }

    fn scaled(self, number: Number, factor: Number) -> Number {
        match (number, factor) {
            (Number::F32(a), Number::F32(b)) => Number::F32(a * b),
            (Number::F64(a), Number::F64(b)) => Number::F64(a * b),
            (Number::Int(a), Number::Int(b)) => Number::Int(self.wrapped(a.wrapping_mul(b))),
            _ => unreachable!(),
        }
    }

    fn divided(self, number: Number) -> Number {
        match number {
            Number::F32(x) => Number::F32(x / self.ranks as f32),
            Number::F64(x) => Number::F64(x / self.ranks as f64),
            Number::Int(x) => Number::Int(x / self.ranks as i128),
        }
    }

    /// One element of the result: the bytes of each source with its form and factor, to the bytes of the destination.
    pub(super) fn reduce(self, sources: &[Input<'_>], form: Form) -> Vec<u8> {
        if let [(bytes, source_form, factor)] = *sources {
            let same = source_form == form || self.accumulator_bytes() == self.dtype.size_bytes();
            let scaled = self.op == ReduceOp::PreMulSum && source_form == Form::Element && factor.is_some();
            let divided = self.op == ReduceOp::Avg && form == Form::Element && self.ranks > 1;
            if same && !scaled && !divided {
                return bytes.to_vec();
            }
        }
        let mut result = None;
        for &(bytes, source_form, factor) in sources {
            let mut number = self.get(bytes, source_form);
            if let Some(factor) = factor
                && self.op == ReduceOp::PreMulSum
                && source_form == Form::Element
            {
                number = self.scaled(number, self.get(&factor[..self.dtype.size_bytes()], Form::Element));
            }
            result = Some(result.map_or(number, |sum| self.combine(sum, number)));
        }
        let result = result.unwrap();
        let finished =
            if self.op == ReduceOp::Avg && form == Form::Element { self.divided(result) } else { result };
        self.put(finished, form)
    }
}
