//! Where values come from: the environment, then the file that `ACCL_CONF_FILE`, `PCCL_CONF_FILE` or `NCCL_CONF_FILE` names, or
//! `~/.pccl.conf` and `~/.nccl.conf` if none does, then `/etc/nccl.conf`.

use super::spelling;
use super::table::{SETTINGS, Setting};
use crate::error::{Error, Result};
use crate::os::process;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Who set a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nobody; the table's default.
    Default,
    /// The environment variable of this name.
    Environment(String),
    /// The line of a file.
    File {
        /// Where the file is.
        path: String,
        /// The line in it, counted from 1.
        line: usize,
        /// The name that stands there.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::Environment(_) => formatter.write_str("environment"),
            Self::File { path, line, .. } => write!(formatter, "{path}:{line}"),
        }
    }
}

impl Origin {
    /// The name with the prefix that was set; none for a default.
    pub fn full_name(&self) -> Option<&str> {
        match self {
            Self::Default => None,
            Self::Environment(name) | Self::File { name, .. } => Some(name),
        }
    }
}

/// All values that are set anywhere, by full name.
#[derive(Debug, Default)]
pub struct Source {
    values: HashMap<String, (String, Origin)>,
}

/// Where this user's programs keep what can be made again: `$XDG_CACHE_HOME`, else `~/.cache`.
pub fn cache_directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))
}

/// The user's files, of which a later one beats an earlier one: the one that is named, or those of both faces.
fn user_files() -> Vec<String> {
    let named = PREFIXES.iter().find_map(|prefix| std::env::var(format!("{prefix}CONF_FILE")).ok());
    if let Some(named) = named {
        return vec![named];
    }
    let home = std::env::var("HOME");
    home.map(|home| [".nccl.conf", ".pccl.conf"].map(|name| format!("{home}/{name}")).into())
        .unwrap_or_default()
}

const PREFIXES: [&str; 3] = ["ACCL_", "PCCL_", "NCCL_"];

impl Source {
    /// The environment of this process and the configuration files of its user and machine.
    ///
    /// An error (System) if a file is there and cannot be read now, as without a free file descriptor: this rank would
    /// go on with other values than its peers.
    pub fn of_process() -> Result<Self> {
        let mut source = Self::default();
        source.add_file("/etc/nccl.conf")?;
        for path in user_files() {
            source.add_file(&path)?;
        }
        for (name, value) in std::env::vars_os() {
            if let (Ok(name), Ok(value)) = (name.into_string(), value.into_string())
                && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            {
                source.values.insert(name.clone(), (value, Origin::Environment(name)));
            }
        }
        Ok(source)
    }

    /// An environment for tests.
    pub fn of_pairs(pairs: &[(&str, &str)]) -> Self {
        let values = pairs
            .iter()
            .map(|(name, value)| {
                ((*name).to_string(), ((*value).to_string(), Origin::Environment((*name).to_string())))
            })
            .collect();
        Self { values }
    }

    /// Reads the text of a configuration file: KEY=VALUE a line, `#` in column 1 is a comment, nothing is
    /// trimmed or unquoted (`abi/clients.md` §3.1).
    pub fn add_lines(&mut self, path: &str, text: &str) {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            if let Some((name, value)) = line.split_once('=') {
                let origin = Origin::File { path: path.to_string(), line: at + 1, name: name.to_string() };
                self.values.insert(name.to_string(), (value.to_string(), origin));
            }
        }
    }

    fn add_file(&mut self, path: &str) -> Result<()> {
        match std::fs::read_to_string(path) {
            Ok(text) => self.add_lines(path, &text),
            Err(error) if process::lacks_resources(&error) => {
                return Err(Error::system(format_args!("cannot read the settings in {path}"), error));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// The value of a setting by its name without prefix, and who set it.
    pub fn lookup(&self, name: &str) -> (String, Origin) {
        PREFIXES
            .iter()
            .find_map(|prefix| self.values.get(&format!("{prefix}{name}")).cloned())
            .unwrap_or_else(|| {
                let default =
                    SETTINGS.iter().find(|setting| setting.name == name).map_or("", |s: &Setting| s.default);
                (default.to_string(), Origin::Default)
            })
    }

    /// The same with no setting but this one.
    pub(super) fn only(&self, name: &str) -> Self {
        let (value, origin) = self.lookup(name);
        let full_name = origin.full_name().map(str::to_string);
        Self { values: full_name.map(|full_name| (full_name, (value, origin))).into_iter().collect() }
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.lookup(name).0
    }

    pub(super) fn switch(&self, name: &str) -> Result<bool> {
        Ok(self.optional_switch(name)?.unwrap_or(false))
    }

    pub(super) fn optional_switch(&self, name: &str) -> Result<Option<bool>> {
        match self.text(name).as_str() {
            "" => Ok(None),
            "0" => Ok(Some(false)),
            "1" => Ok(Some(true)),
            _ => Err(self.explain(name, &Error::argument("need 0 or 1"))),
        }
    }

    pub(super) fn seconds(&self, name: &str) -> Result<Option<Duration>> {
        let text = self.text(name);
        let seconds: f64 = if text.is_empty() { 0.0 } else { text.parse().unwrap_or(f64::NAN) };
        if seconds == 0.0 {
            return Ok(None);
        }
        // More than that cannot be added to every clock.
        let most = 1e9;
        let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= most);
        duration.map(Some).ok_or_else(|| {
            self.explain(name, &Error::argument("need a number of seconds up to 10^9, 0 for none"))
        })
    }

    pub(super) fn optional_bytes(&self, name: &str) -> Result<Option<usize>> {
        if self.text(name).is_empty() { Ok(None) } else { self.bytes(name).map(Some) }
    }

    pub(super) fn bytes(&self, name: &str) -> Result<usize> {
        let text = self.text(name);
        let (digits, factor) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
            _ => (text.as_str(), 1),
        };
        digits
            .parse::<usize>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
            .ok_or_else(|| self.explain(name, &Error::argument("need a number of bytes, such as 16K or 1M")))
    }

    /// The error of a value that cannot be understood, with name, value and origin.
    pub(super) fn explain(&self, name: &str, error: &Error) -> Error {
        error.within(format!("setting {} is not understood", self.shown(name)))
    }

    /// A setting with name, value and origin, for texts.
    pub(super) fn shown(&self, name: &str) -> String {
        let (value, origin) = self.lookup(name);
        let full = origin.full_name().unwrap_or(name);
        match &origin {
            Origin::File { .. } => format!("{full}={value} ({origin})"),
            Origin::Default | Origin::Environment(_) => format!("{full}={value}"),
        }
    }

    /// What to say of names that were probably meant to be others, in their order.
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<_> = self.values.keys().filter_map(|name| spelling::hint(name)).collect();
        hints.sort_unstable();
        hints
    }

    /// Names that somebody has set and that have no effect here, with value and origin, in their order.
    pub fn without_effect(&self) -> Vec<(String, String, Origin)> {
        let has_none = |name: &str| {
            PREFIXES.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(super::accepted::is_accepted))
        };
        let set = self.values.iter().filter(|(name, _)| has_none(name));
        let mut found: Vec<_> =
            set.map(|(name, (value, origin))| (name.clone(), value.clone(), origin.clone())).collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found
    }

    /// All settings, with value and origin.
    pub fn all(&self) -> impl Iterator<Item = (&'static Setting, String, Origin)> {
        SETTINGS.iter().map(|setting| {
            let (value, origin) = self.lookup(setting.name);
            (setting, value, origin)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_lines_are_taken_as_they_are_and_the_environment_wins() {
        let mut source = Source::of_pairs(&[]);
        source.add_lines("f", "#NCCL_ALGO=tree\nNCCL_ALGO= ring \nno equals sign\nNCCL_TIMEOUT=5");
        let origin = Origin::File { path: "f".into(), line: 2, name: "NCCL_ALGO".into() };
        assert_eq!(source.lookup("ALGO"), (" ring ".into(), origin));
        assert_eq!(source.shown("TIMEOUT"), "NCCL_TIMEOUT=5 (f:4)");
        assert_eq!(source.seconds("TIMEOUT").unwrap(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn seconds_are_kept_within_what_clocks_can_add() {
        let seconds = |text| Source::of_pairs(&[("ACCL_TIMEOUT", text)]).seconds("TIMEOUT");
        assert_eq!(seconds("1e9").unwrap(), Some(Duration::from_secs(1_000_000_000)));
        for text in ["1e10", "inf", "nan", "-1", "1 s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_know_their_suffixes() {
        for (text, expected) in [("7", 7), ("16K", 16 << 10), ("2m", 2 << 20), ("1G", 1 << 30)] {
            assert_eq!(
                Source::of_pairs(&[("NCCL_SEGMENT_BYTES", text)]).bytes("SEGMENT_BYTES").unwrap(),
                expected
            );
        }
        for text in ["", "K", "-1", "1T", "99999999999999999999G", "18446744073709551615G"] {
            assert!(
                Source::of_pairs(&[("ACCL_SEGMENT_BYTES", text)]).bytes("SEGMENT_BYTES").is_err(),
                "{text}"
            );
        }
    }
}
