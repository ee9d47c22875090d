//! The element types and operators of the C interface: numbers, names, and how small values look in memory.

/// An element type; the numbers are the interface's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

/// How a floating type divides its bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatFormat {
    exponent_bits: u32,
    mantissa_bits: u32,
}

impl DataType {
    pub(crate) const ALL: [Self; 12] = [
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

    /// The names of nccl-tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "half",
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "f8e4m3",
            Self::Float8e5m2 => "f8e5m2",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    pub(crate) fn float(self) -> Option<FloatFormat> {
        let (exponent_bits, mantissa_bits) = match self {
            Self::Float16 => (5, 10),
            Self::Float32 => (8, 23),
            Self::Float64 => (11, 52),
            Self::Bfloat16 => (8, 7),
            Self::Float8e4m3 => (4, 3),
            Self::Float8e5m2 => (5, 2),
            _ => return None,
        };
        Some(FloatFormat { exponent_bits, mantissa_bits })
    }

    pub(crate) fn signed(self) -> bool {
        !matches!(self, Self::Uint8 | Self::Uint32 | Self::Uint64)
    }

    /// The oldest library version that has the type.
    pub(crate) fn since(self) -> i32 {
        match self {
            Self::Bfloat16 => 21000,
            Self::Float8e4m3 | Self::Float8e5m2 => 22403,
            _ => 0,
        }
    }

    /// Up to here every integer is a value of the type, and so is every sum of such that stays within.
    pub(crate) fn exact_limit(self) -> i64 {
        match self.float() {
            Some(format) => 1 << (format.mantissa_bits + 1).min(20),
            None if self == Self::Int8 => 127,
            None if self == Self::Uint8 => 255,
            None => 1 << 20,
        }
    }

    /// The bits of an integer, wrapped to the width of the type where it is integral.
    pub(crate) fn bits_of(self, value: i64) -> u64 {
        match self.float() {
            Some(format) => format.encode(value as f64),
            None => value as u64 & self.mask(),
        }
    }

    /// All bits of one element.
    pub(crate) fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }

    /// The value, for people.
    pub(crate) fn show(self, bits: u64) -> String {
        match self.float() {
            Some(format) => {
                let value = format.decode(bits);
                let plain = value == 0.0 || (1e-4..1e7).contains(&value.abs());
                if plain { format!("{value}") } else { format!("{value:e}") }
            }
            None if self.signed() => format!("{}", self.sign_extend(bits)),
            None => format!("{bits}"),
        }
    }

    pub(crate) fn sign_extend(self, bits: u64) -> i64 {
        let unused = 64 - 8 * self.bytes();
        ((bits << unused) as i64) >> unused
    }

    /// How many representable values lie between two of a floating type; NaN is far from all but itself.
    pub(crate) fn ulps(self, left: u64, right: u64) -> u64 {
        if left == right {
            return 0;
        }
        let Some(format) = self.float() else { return u64::MAX };
        if format.decode(left).is_nan() || format.decode(right).is_nan() {
            return u64::MAX;
        }
        let sign = 1u64 << (8 * self.bytes() - 1);
        // Sign and magnitude as a point on one line, both zeros in one place.
        let line = |bits: u64| {
            let magnitude = (bits & (sign - 1)) as i128;
            if bits & sign == 0 { magnitude } else { -magnitude }
        };
        u64::try_from((line(left) - line(right)).unsigned_abs()).unwrap_or(u64::MAX)
    }
}

impl FloatFormat {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The nearest value of the format, ties to even. For finite values inside its range, which is all we need.
    pub(crate) fn encode(self, value: f64) -> u64 {
        let sign = u64::from(value.is_sign_negative()) << (self.exponent_bits + self.mantissa_bits);
        let magnitude = value.abs();
        if magnitude == 0.0 {
            return sign;
        }
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        // In units of the last place of that exponent; exact, for it is a scaling by a power of two.
        let units = magnitude * f64::powi(2.0, self.mantissa_bits as i32 - exponent);
        let units = units.round_ties_even() as u64;
        // A carry out of the mantissa adds one to the exponent, which is what the sum does anyway; a subnormal
        // has no hidden bit and so the exponent field 0.
        let field = (exponent + self.bias() - 1) as u64;
        sign | ((field << self.mantissa_bits) + units)
    }

    pub(crate) fn decode(self, bits: u64) -> f64 {
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let top = (1 << self.exponent_bits) - 1;
        let field = (bits >> self.mantissa_bits) & top;
        let sign = if bits >> (self.exponent_bits + self.mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
        let fraction = mantissa as f64 / (1u64 << self.mantissa_bits) as f64;
        // f8e4m3 has no infinity: its top exponent holds numbers, but for one NaN.
        let narrow = self.exponent_bits == 4;
        if field == top && !narrow {
            return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if field == top && mantissa == 7 {
            return f64::NAN;
        }
        match field {
            0 => sign * fraction * f64::powi(2.0, 1 - self.bias()),
            _ => sign * (1.0 + fraction) * f64::powi(2.0, field as i32 - self.bias()),
        }
    }
}

/// A reduction, or none for tests that only move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operator {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    /// Each rank's input times its own factor, then summed: made with ncclRedOpCreatePreMulSum.
    MulSum,
}

impl Operator {
    pub(crate) const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::MulSum];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The interface's number; a MulSum is made at run time.
    pub(crate) fn number(self) -> Option<i32> {
        match self {
            Self::Sum => Some(0),
            Self::Prod => Some(1),
            Self::Max => Some(2),
            Self::Min => Some(3),
            Self::Avg => Some(4),
            Self::MulSum => None,
        }
    }

    /// The oldest library version that has the operator.
    pub(crate) fn since(self) -> i32 {
        match self {
            Self::Avg => 21000,
            Self::MulSum => 21100,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_formats_agree_with_the_language() {
        for value in [0.0, 1.0, -1.0, 0.1, 3.5, 1e-42, 65504.0, -7.0 / 3.0] {
            let single = DataType::Float32.float().unwrap();
            assert_eq!(single.encode(value), u64::from((value as f32).to_bits()), "{value}");
            let double = DataType::Float64.float().unwrap();
            assert_eq!(double.encode(value), value.to_bits(), "{value}");
            assert_eq!(double.decode(value.to_bits()), value);
        }
    }

    #[test]
    fn every_value_of_the_narrow_formats_comes_back() {
        for kind in DataType::ALL.into_iter().filter(|kind| kind.bytes() <= 2) {
            let Some(format) = kind.float() else { continue };
            for bits in 0..=kind.mask() {
                let value = format.decode(bits);
                if value.is_finite() {
                    assert_eq!(format.encode(value), bits, "{} {value}", kind.name());
                }
            }
        }
    }

    #[test]
    fn known_encodings() {
        assert_eq!(DataType::Float16.bits_of(1), 0x3c00);
        assert_eq!(DataType::Bfloat16.bits_of(-2), 0xc000);
        assert_eq!(DataType::Float8e4m3.bits_of(16), 0x58);
        assert_eq!(DataType::Float8e5m2.bits_of(1), 0x3c);
        assert_eq!(DataType::Int8.bits_of(-1), 0xff);
        assert_eq!(DataType::Float8e4m3.show(0x7e), "448");
        assert_eq!(DataType::Int8.show(0xff), "-1");
    }

    #[test]
    fn integers_up_to_the_limit_are_exact() {
        for kind in DataType::ALL {
            let Some(format) = kind.float() else { continue };
            for value in -kind.exact_limit()..=kind.exact_limit() {
                assert_eq!(format.decode(kind.bits_of(value)), value as f64, "{}", kind.name());
            }
        }
    }

    #[test]
    fn distance_counts_values() {
        let kind = DataType::Float16;
        assert_eq!(kind.ulps(0x3c00, 0x3c02), 2);
        assert_eq!(kind.ulps(0x0001, 0x8001), 2);
        assert_eq!(kind.ulps(0x0000, 0x8000), 0);
        assert_eq!(kind.ulps(0x7e00, 0x3c00), u64::MAX);
        assert_eq!(DataType::Float64.ulps(u64::MAX >> 1, 0), u64::MAX);
    }

    #[test]
    fn names_come_back() {
        for kind in DataType::ALL {
            assert_eq!(DataType::parse(kind.name()), Some(kind));
        }
        for op in Operator::ALL {
            assert_eq!(Operator::parse(op.name()), Some(op));
        }
    }
}
