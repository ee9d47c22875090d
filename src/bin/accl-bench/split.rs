//! NCCL_TESTS_SPLIT: ranks with the same colour form a group of their own.

use std::str::FromStr;

/// How a rank's colour is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    And(u64),
    Or(u64),
    Mod(u64),
    Div(u64),
}

impl Split {
    pub(crate) fn color(self, rank: usize) -> i32 {
        let rank = rank as u64;
        let color = match self {
            Self::And(value) => rank & value,
            Self::Or(value) => rank | value,
            Self::Mod(value) => rank % value,
            Self::Div(value) => rank / value,
        };
        // The interface's colours are 31 bits wide.
        (color & 0x7fff_ffff) as i32
    }
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("NCCL_TESTS_SPLIT: \"{text}\" is none of AND, OR, MOD, DIV (& | % /) and a number");
        let upper = text.trim().to_ascii_uppercase();
        type Make = fn(u64) -> Split;
        let makers: [(&str, Make); 8] = [
            ("AND", Self::And),
            ("OR", Self::Or),
            ("MOD", Self::Mod),
            ("DIV", Self::Div),
            ("&", Self::And),
            ("|", Self::Or),
            ("%", Self::Mod),
            ("/", Self::Div),
        ];
        let (rest, make) = makers
            .into_iter()
            .find_map(|(name, make)| Some((upper.strip_prefix(name)?, make)))
            .ok_or_else(wrong)?;
        let value = number(rest.trim()).ok_or_else(wrong)?;
        match make(value) {
            Self::Mod(0) | Self::Div(0) => Err(format!("NCCL_TESTS_SPLIT: \"{text}\" divides by 0")),
            split => Ok(split),
        }
    }
}

/// Decimal, 0x or 0b.
fn number(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0X") {
        return u64::from_str_radix(digits, 16).ok();
    }
    if let Some(digits) = text.strip_prefix("0B") {
        return u64::from_str_radix(digits, 2).ok();
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_write_it() {
        assert_eq!("MOD 2".parse(), Ok(Split::Mod(2)));
        assert_eq!("%0x10".parse(), Ok(Split::Mod(16)));
        assert_eq!("and 0b101".parse(), Ok(Split::And(5)));
        assert_eq!("/4".parse(), Ok(Split::Div(4)));
        assert_eq!("|1".parse(), Ok(Split::Or(1)));
        for wrong in ["", "2", "XOR 2", "MOD", "DIV 0", "% x"] {
            assert!(wrong.parse::<Split>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn colors() {
        assert_eq!((0..4).map(|rank| Split::Mod(2).color(rank)).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!((0..4).map(|rank| Split::Div(2).color(rank)).collect::<Vec<_>>(), [0, 0, 1, 1]);
    }
}
