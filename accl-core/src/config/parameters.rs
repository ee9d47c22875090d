//! Settings by key, for programs that ask for them while they run: the name with the prefix `NCCL_` (or `PCCL_`, `ACCL_`). What
//! they get is what a communicator made now would be given.

use super::accepted::ACCEPTED;
use super::source::{Origin, Source};
use super::table::{Kind, SETTINGS};
use crate::error::{Error, Result};

/// A setting, or a name that is accepted without effect: its place in the two tables, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter(usize);

/// A value as its setting understands it.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Of a switch, of bytes, and of a text that is a number.
    Integer(i64),
    /// Seconds.
    Real(f64),
    /// Anything else.
    Text(String),
}

impl Parameter {
    /// All settings, and `PARAM_DUMP_ALL=true` adds the names without effect.
    pub fn all() -> Result<impl Iterator<Item = Self>> {
        let tells_all = match Source::of_process()?.text("PARAM_DUMP_ALL").to_ascii_lowercase().as_str() {
            "" | "0" | "f" | "false" => false,
            "1" | "t" | "true" => true,
            _ => {
                return Err(Error::argument(
                    "NCCL_PARAM_DUMP_ALL is neither true nor false; set one of them",
                ));
            }
        };
        let count = SETTINGS.len() + if tells_all { ACCEPTED.len() } else { 0 };
        Ok((0..count).map(Self))
    }

    /// The parameter at a place, which [`Parameter::place`] gave.
    pub fn at(place: usize) -> Option<Self> {
        (place < SETTINGS.len() + ACCEPTED.len()).then_some(Self(place))
    }

    /// A number for it, the same as long as the process lives.
    pub fn place(self) -> usize {
        self.0
    }

    /// The parameter of a key.
    pub fn of_key(key: &str) -> Option<Self> {
        let (prefix, name) = key.split_at_checked(5)?;
        let is_known = ["ACCL_", "PCCL_", "NCCL_"].contains(&prefix);
        let all = (0..SETTINGS.len() + ACCEPTED.len()).map(Self);
        all.filter(|_| is_known).find(|parameter| parameter.name() == name)
    }

    /// Its name without a prefix.
    fn name(self) -> &'static str {
        SETTINGS.get(self.0).map_or_else(|| ACCEPTED[self.0 - SETTINGS.len()], |setting| setting.name)
    }

    /// The key by which it is listed.
    pub fn key(self) -> String {
        format!("NCCL_{}", self.name())
    }

    /// Its value as it was written; empty if it is unset and has no default.
    pub fn text(self) -> Result<String> {
        Ok(Source::of_process()?.text(self.name()))
    }

    /// Its value as the setting understands it.
    ///
    /// An error (InvalidArgument) if it does not.
    pub fn value(self) -> Result<Value> {
        self.value_in(&Source::of_process()?)
    }

    fn value_in(self, source: &Source) -> Result<Value> {
        let name = self.name();
        let text = source.text(name);
        let kind = SETTINGS.get(self.0).map_or(Kind::Text, |setting| setting.kind);
        match kind {
            _ if text.is_empty() => Ok(Value::Text(text)),
            Kind::Switch => source.switch(name).map(|on| Value::Integer(on.into())),
            Kind::Seconds => {
                source.seconds(name).map(|limit| Value::Real(limit.map_or(0.0, |limit| limit.as_secs_f64())))
            }
            Kind::Bytes => {
                let bytes = source.bytes(name)?;
                i64::try_from(bytes)
                    .map(Value::Integer)
                    .map_err(|_| source.explain(name, &Error::argument("need a number of bytes below 2^63")))
            }
            Kind::Text => Ok(integer(&text).map_or_else(|| Value::Text(text), Value::Integer)),
        }
    }

    /// A line for people: key, value, who has set it, and what it does.
    pub fn describe(self) -> Result<String> {
        let (value, origin) = Source::of_process()?.lookup(self.name());
        let shown = |text: &str| if text.is_empty() { "<unset>".to_string() } else { text.to_string() };
        let by = origin.full_name().filter(|_| origin != Origin::Default);
        let by = by.map_or_else(|| "default".to_string(), |name| format!("{origin} as {name}"));
        let (default, help) =
            SETTINGS.get(self.0).map_or(("", "no effect here"), |setting| (setting.default, setting.help));
        Ok(format!("{} value={} set_by={by} default={}: {help}", self.key(), shown(&value), shown(default)))
    }
}

/// A number as C reads it: decimal, 0x for hexadecimal, 0 before it for octal.
fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (base, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        None => (10, digits),
    };
    let number = i64::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with(['+', '-']))?;
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_settings_and_what_is_accepted() {
        for key in ["NCCL_TIMEOUT", "ACCL_TIMEOUT", "PCCL_TIMEOUT"] {
            assert_eq!(Parameter::of_key(key).unwrap().key(), "NCCL_TIMEOUT");
        }
        assert_eq!(Parameter::of_key("NCCL_NTHREADS").unwrap().key(), "NCCL_NTHREADS");
        for key in ["", "NCCL", "NCCL_", "TIMEOUT", "XCCL_TIMEOUT", "NCCL_SUCH", "nccl_timeout", "ÄÄÄTIMEOUT"]
        {
            assert_eq!(Parameter::of_key(key), None, "{key}");
        }
        let last = SETTINGS.len() + ACCEPTED.len() - 1;
        assert_eq!(Parameter::at(last).unwrap().place(), last);
        assert_eq!(Parameter::at(last + 1), None);
    }

    #[test]
    fn values_are_of_their_settings_kind() {
        let value = |name: &str, text: &str| {
            let name = format!("NCCL_{name}");
            Parameter::of_key(&name).unwrap().value_in(&Source::of_pairs(&[(&name, text)]))
        };
        assert_eq!(value("DETERMINISTIC", "1"), Ok(Value::Integer(1)));
        assert_eq!(value("SEGMENT_BYTES", "2K"), Ok(Value::Integer(2048)));
        assert_eq!(value("TIMEOUT", "1.5"), Ok(Value::Real(1.5)));
        assert_eq!(value("ALGO", "ring"), Ok(Value::Text("ring".into())));
        assert_eq!(value("NTHREADS", "0x10"), Ok(Value::Integer(16)));
        assert_eq!(value("IB_TIMEOUT", "010"), Ok(Value::Integer(8)));
        assert_eq!(value("IB_GID_INDEX", "-1"), Ok(Value::Integer(-1)));
        assert_eq!(value("IB_TIMEOUT", "--1"), Ok(Value::Text("--1".into())));
        assert!(value("DETERMINISTIC", "2").is_err() && value("TIMEOUT", "soon").is_err());
        assert!(value("SEGMENT_BYTES", "9223372036854775808").is_err());
        let unset = Parameter::of_key("NCCL_TUNE").unwrap().value_in(&Source::of_pairs(&[]));
        assert_eq!(unset, Ok(Value::Text(String::new())));
    }
}
