//! What results must be, computed in another way than the library does: element formats by their definition,
//! sums exactly in wide numbers.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;

/// The element types, by their numbers in the C interface.
pub const TYPES: [(&str, usize); 12] = [
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bfloat16", 2),
    ("float8e4m3", 1),
    ("float8e5m2", 1),
];

pub fn is_float(dtype: usize) -> bool {
    dtype >= 6
}

/// A float format of at most 16 bits.
#[derive(Clone, Copy)]
struct Small {
    bits: u32,
    mantissa: u32,
    bias: i32,
    /// Whether all ones in the exponent mean infinity and NaN (else the last code only is NaN).
    ieee: bool,
    /// Whether what is too large becomes the largest number instead of infinity.
    saturates: bool,
}

fn small(dtype: usize) -> Small {
    match dtype {
        6 => Small { bits: 16, mantissa: 10, bias: 15, ieee: true, saturates: false },
        9 => Small { bits: 16, mantissa: 7, bias: 127, ieee: true, saturates: false },
        10 => Small { bits: 8, mantissa: 3, bias: 7, ieee: false, saturates: true },
        11 => Small { bits: 8, mantissa: 2, bias: 15, ieee: true, saturates: true },
        _ => panic!("type {dtype} is not small"),
    }
}

impl Small {
    fn decode(self, code: u32) -> f64 {
        let exponent_bits = self.bits - 1 - self.mantissa;
        let negative = code >> (self.bits - 1) & 1 == 1;
        let exponent = code >> self.mantissa & ((1 << exponent_bits) - 1);
        let mantissa = code & ((1 << self.mantissa) - 1);
        let top = exponent == (1 << exponent_bits) - 1;
        let magnitude = if top && self.ieee {
            if mantissa == 0 { f64::INFINITY } else { f64::NAN }
        } else if top && mantissa == (1 << self.mantissa) - 1 && !self.ieee {
            f64::NAN
        } else if exponent == 0 {
            f64::from(mantissa) * 2f64.powi(1 - self.bias - self.mantissa as i32)
        } else {
            let fraction = 1.0 + f64::from(mantissa) * 2f64.powi(-(self.mantissa as i32));
            fraction * 2f64.powi(exponent as i32 - self.bias)
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The nearest code, ties to even, by looking through all of them.
    fn encode(self, table: &[(f64, u32)], value: f64) -> u32 {
        let sign = if value.is_sign_negative() { 1 << (self.bits - 1) } else { 0 };
        let magnitude = value.abs();
        let (largest, largest_code) = *table.last().unwrap();
        let infinity = if self.ieee { Some(largest_code + 1) } else { None };
        if value.is_nan() {
            // The canonical NaN: positive, quiet.
            let exponent = ((1 << (self.bits - 1 - self.mantissa)) - 1) << self.mantissa;
            return if self.ieee { exponent | 1 << (self.mantissa - 1) } else { (1 << (self.bits - 1)) - 1 };
        }
        if let (true, Some(code)) = (magnitude.is_infinite(), infinity) {
            return sign | code;
        }
        let above = table.partition_point(|(number, _)| *number < magnitude);
        if above == table.len() {
            // Half a step above the largest number and more would round to a number that is not there.
            let step = largest - table[table.len() - 2].0;
            let beyond = magnitude >= largest + step / 2.0;
            return sign | if beyond && !self.saturates { infinity.unwrap() } else { largest_code };
        }
        let (upper, upper_code) = table[above];
        if upper == magnitude || above == 0 {
            return sign | upper_code;
        }
        let (lower, lower_code) = table[above - 1];
        let nearer_lower = magnitude - lower < upper - magnitude;
        let tie = magnitude - lower == upper - magnitude;
        sign | if nearer_lower || (tie && lower_code % 2 == 0) { lower_code } else { upper_code }
    }
}

/// All finite numbers of a small format that are not negative, ascending, with their codes.
fn table(dtype: usize) -> &'static [(f64, u32)] {
    static TABLES: [OnceLock<Vec<(f64, u32)>>; 12] = [const { OnceLock::new() }; 12];
    TABLES[dtype].get_or_init(|| {
        let format = small(dtype);
        (0..1u32 << (format.bits - 1))
            .map(|code| (format.decode(code), code))
            .filter(|(number, _)| number.is_finite())
            .collect()
    })
}

/// An element's bytes as a number: exact for every type but 64-bit integers, which have their own way.
pub fn decode(dtype: usize, bytes: &[u8]) -> f64 {
    match dtype {
        7 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        8 => f64::from_le_bytes(bytes.try_into().unwrap()),
        6 | 9 => small(dtype).decode(u32::from(u16::from_le_bytes(bytes.try_into().unwrap()))),
        10 | 11 => small(dtype).decode(u32::from(bytes[0])),
        _ => integer(dtype, bytes) as f64,
    }
}

/// The nearest element to a number.
pub fn encode(dtype: usize, value: f64) -> Vec<u8> {
    match dtype {
        7 => (value as f32).to_le_bytes().to_vec(),
        8 => value.to_le_bytes().to_vec(),
        6 | 9 => (small(dtype).encode(table(dtype), value) as u16).to_le_bytes().to_vec(),
        10 | 11 => vec![small(dtype).encode(table(dtype), value) as u8],
        _ => wrap(dtype, value as i128),
    }
}

/// An integer element's value.
pub fn integer(dtype: usize, bytes: &[u8]) -> i128 {
    match dtype {
        0 => i128::from(bytes[0] as i8),
        1 => i128::from(bytes[0]),
        2 => i128::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        3 => i128::from(u32::from_le_bytes(bytes.try_into().unwrap())),
        4 => i128::from(i64::from_le_bytes(bytes.try_into().unwrap())),
        5 => i128::from(u64::from_le_bytes(bytes.try_into().unwrap())),
        _ => panic!("type {dtype} is no integer"),
    }
}

/// An integer element from the low bits of a value.
pub fn wrap(dtype: usize, value: i128) -> Vec<u8> {
    value.to_le_bytes()[..TYPES[dtype].1].to_vec()
}

/// The reduction of one element of every rank, in rank order. `op` is 0…4, or 5 for a pre-multiplied sum with
/// `factors`. Floating inputs must be such that sums and products are exact in the accumulator (f32; f64 for
/// float64): then no order matters and one rounding remains, which is what the library promises.
pub fn reduce(dtype: usize, op: usize, inputs: &[Vec<u8>], factors: &[Vec<u8>]) -> Vec<u8> {
    if is_float(dtype) {
        reduce_floats(dtype, op, inputs, factors)
    } else {
        reduce_integers(dtype, op, inputs, factors)
    }
}

fn reduce_integers(dtype: usize, op: usize, inputs: &[Vec<u8>], factors: &[Vec<u8>]) -> Vec<u8> {
    let values: Vec<i128> = inputs.iter().map(|bytes| integer(dtype, bytes)).collect();
    let result = match op {
        0 => values.iter().sum(),
        1 => values
            .iter()
            .fold(1i128, |product, value| integer(dtype, &wrap(dtype, product.wrapping_mul(*value)))),
        2 => *values.iter().max().unwrap(),
        3 => *values.iter().min().unwrap(),
        4 => values.iter().sum::<i128>() / values.len() as i128,
        _ => {
            let scaled = |(value, factor): (&i128, &Vec<u8>)| value.wrapping_mul(integer(dtype, factor));
            values.iter().zip(factors).map(scaled).fold(0i128, i128::wrapping_add)
        }
    };
    wrap(dtype, result)
}

fn reduce_floats(dtype: usize, op: usize, inputs: &[Vec<u8>], factors: &[Vec<u8>]) -> Vec<u8> {
    let values: Vec<f64> = inputs.iter().map(|bytes| decode(dtype, bytes)).collect();
    if values.len() == 1 && op < 5 {
        return inputs[0].clone();
    }
    let nan = values.iter().any(|value| value.is_nan());
    // -0 counts as below +0.
    let key = |value: &f64| (*value, !value.is_sign_negative());
    let by_key = |a: &&f64, b: &&f64| key(a).partial_cmp(&key(b)).unwrap();
    let result = match op {
        0 => values.iter().copied().reduce(|a, b| a + b).unwrap(),
        1 => values.iter().product(),
        2 | 3 if nan => f64::NAN,
        2 => *values.iter().max_by(by_key).unwrap(),
        3 => *values.iter().min_by(by_key).unwrap(),
        4 => {
            let (sum, ranks) = (values.iter().copied().reduce(|a, b| a + b).unwrap(), values.len() as f64);
            // The division is made, and rounded, in the accumulator.
            if dtype == 8 { sum / ranks } else { f64::from(sum as f32 / ranks as f32) }
        }
        _ => {
            let scaled = |(value, factor): (&f64, &Vec<u8>)| value * decode(dtype, factor);
            values.iter().zip(factors).map(scaled).reduce(|a, b| a + b).unwrap()
        }
    };
    encode(dtype, result)
}

/// Numbers that look random and are the same everywhere.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An input element that suits [`reduce`]: anything for integers; for floats small integers, or powers of two
/// for products.
pub fn element(dtype: usize, op: usize, random: u64) -> Vec<u8> {
    if !is_float(dtype) {
        return random.to_le_bytes()[..TYPES[dtype].1].to_vec();
    }
    if op == 1 {
        return encode(dtype, [1.0, -1.0, 2.0, 0.5, -2.0, 1.0, 1.0, -0.5][(random % 8) as usize]);
    }
    encode(dtype, (random % 9) as f64 - 4.0)
}
