//! What moving and reducing bytes costs on this machine, as figures: measured by `tune`, kept in a file, told to all
//! ranks through the memory that they share, used by the cost model (`algo/cost.rs`).
//!
//! Figures are integers, so that all ranks compute with the same numbers whichever way they came.

use crate::error::{Error, Result};
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// What a figure counts, and so how it is written and what range makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A time; kept in picoseconds, written in nanoseconds.
    Time,
    /// Time for each KiB; kept in picoseconds, written in nanoseconds.
    TimePerKib,
    /// A length in KiB.
    Kib,
}

impl Unit {
    /// As it stands behind a value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "ns",
            Self::TimePerKib => "ns/KiB",
            Self::Kib => "KiB",
        }
    }

    /// Kept integers for each written unit.
    fn scale(self) -> f64 {
        match self {
            Self::Time | Self::TimePerKib => 1000.0,
            Self::Kib => 1.0,
        }
    }

    /// The values that can be true, as written.
    pub fn range(self) -> RangeInclusive<f64> {
        match self {
            Self::Time | Self::TimePerKib => 1.0..=1e6,
            Self::Kib => 16.0..=16e6,
        }
    }
}

/// One figure of a [`Machine`].
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in files.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What it says, in one line.
    pub meaning: &'static str,
    default: u32,
}

/// Makes [`Machine`], [`FIGURES`] and the conversions between a figure's field and its place from one table. Values are
/// as kept: picoseconds, or KiB.
macro_rules! figures {
    ($($field:ident, $name:literal, $unit:ident, $default:literal, $meaning:literal;)*) => {
        /// The figures of a machine; the default is a typical one: two cores of a server that share a cache.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Machine {
            $(#[doc = $meaning] pub $field: u32,)*
        }

        /// All figures, in the order of [`Machine::words`].
        pub const FIGURES: [Figure; [$($default),*].len()] = [
            $(Figure { name: $name, unit: Unit::$unit, meaning: $meaning, default: $default },)*
        ];

        impl Machine {
            /// All figures as integers, in the order of [`FIGURES`].
            pub fn words(&self) -> [u32; FIGURES.len()] {
                [$(self.$field),*]
            }

            fn of_words(words: [u32; FIGURES.len()]) -> Self {
                let [$($field),*] = words;
                Self { $($field),* }
            }
        }
    };
}

figures! {
    handover_ps, "handover", Time, 110_000, "until two cores that tell each other something both know it";
    yield_ps, "yield", Time, 800_000, "until the other thread runs, where two share a core";
    dirty_read_ps_per_kib, "dirty-read", TimePerKib, 120_000,
        "reading a few KiB that another core has just written";
    dirty_read_bulk_ps_per_kib, "dirty-read-bulk", TimePerKib, 60_000,
        "the same for a few hundred KiB, which the processor reads ahead";
    dirty_write_ps_per_kib, "dirty-write", TimePerKib, 90_000,
        "writing a few KiB that another core has just read";
    copy_l2_ps_per_kib, "copy-l2", TimePerKib, 20_500, "copying within the second-level cache";
    copy_l3_ps_per_kib, "copy-l3", TimePerKib, 69_700, "copying within the shared cache";
    copy_memory_ps_per_kib, "copy-memory", TimePerKib, 128_000, "copying from memory to memory";
    copy_streaming_ps_per_kib, "copy-streaming", TimePerKib, 73_100,
        "the same with stores that go around the caches";
    add_l2_ps_per_kib, "add-l2", TimePerKib, 26_900,
        "adding two rows of float within the second-level cache, for each KiB of the sum";
    add_l3_ps_per_kib, "add-l3", TimePerKib, 104_500, "the same within the shared cache";
    add_memory_ps_per_kib, "add-memory", TimePerKib, 186_000, "the same from memory to memory";
    add_streaming_ps_per_kib, "add-streaming", TimePerKib, 128_000,
        "the same with stores that go around the caches";
    remote_call_ps, "remote-call", Time, 350_000,
        "having the kernel read another process's memory (process_vm_readv), apart from the bytes";
    remote_l2_ps_per_kib, "remote-l2", TimePerKib, 35_300, "its bytes within the second-level cache";
    remote_l3_ps_per_kib, "remote-l3", TimePerKib, 89_000, "its bytes within the shared cache";
    remote_memory_ps_per_kib, "remote-memory", TimePerKib, 180_000, "its bytes from memory to memory";
    l2_kib, "l2", Kib, 2048, "size of the second-level cache of one core";
    l3_kib, "l3", Kib, 32_768, "up to how much data the shared cache helps";
}

/// The first line of a file; another number is another format.
const FORMAT: &str = "accl-tune 1";

impl Default for Machine {
    fn default() -> Self {
        Self::of_words(FIGURES.map(|figure| figure.default))
    }
}

impl Machine {
    /// A machine of figures that somebody else has written; `None` unless each of them can be true.
    pub fn from_words(words: [u32; FIGURES.len()]) -> Option<Self> {
        let sane = FIGURES.iter().zip(words).all(|(figure, word)| figure.holds(figure.written(word)));
        sane.then(|| Self::of_words(words))
    }

    /// A machine of values as they are written, in the order of [`FIGURES`]; each is brought into its range.
    pub fn from_values(values: [f64; FIGURES.len()]) -> Self {
        let mut words = Self::default().words();
        for ((word, figure), value) in words.iter_mut().zip(FIGURES).zip(values) {
            let range = figure.unit.range();
            if value.is_finite() {
                *word = figure.kept(value.clamp(*range.start(), *range.end()));
            }
        }
        Self::of_words(words)
    }

    /// The values as they are written, in the order of [`FIGURES`].
    pub fn values(&self) -> [f64; FIGURES.len()] {
        let words = self.words();
        std::array::from_fn(|index| FIGURES[index].written(words[index]))
    }

    /// The text of a file: the format's line, then `name = value unit`, a figure a line, each after what it says.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FORMAT}\n");
        for (figure, value) in FIGURES.iter().zip(self.values()) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# {}\n{} = {value} {}", figure.meaning, figure.name, figure.unit.name());
        }
        text
    }

    /// Reads the text of a file. Figures that it lacks keep their defaults, names that are unknown are ignored: they
    /// may be a later version's. An error (InvalidArgument) names line, value and what was needed.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().map_or("", |(_, line)| line.trim_end());
        if first != FORMAT {
            return Err(Error::argument(format!("line 1 is {}, need \"{FORMAT}\"", shown(first))));
        }
        let mut words = Self::default().words();
        for (index, line) in lines {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = figure_of(line).map_err(|error| error.within(format!("line {}", index + 1)))?;
            if let Some((place, word)) = parsed {
                words[place] = word;
            }
        }
        Ok(Self::of_words(words))
    }
}

impl Figure {
    fn holds(&self, value: f64) -> bool {
        self.unit.range().contains(&value)
    }

    fn written(&self, word: u32) -> f64 {
        f64::from(word) / self.unit.scale()
    }

    fn kept(&self, value: f64) -> u32 {
        // Within the range, so within the integer.
        (value * self.unit.scale()).round() as u32
    }
}

/// The place and the kept value of `name = value unit`; `None` for an unknown name.
fn figure_of(line: &str) -> Result<Option<(usize, u32)>> {
    let Some((name, rest)) = line.split_once('=') else {
        return Err(Error::argument(format!("{} is not \"name = value unit\"", shown(line))));
    };
    let name = name.trim();
    let Some(place) = FIGURES.iter().position(|figure| figure.name == name) else { return Ok(None) };
    let (figure, range) = (&FIGURES[place], FIGURES[place].unit.range());
    let unit = figure.unit.name();
    let number = rest.trim().strip_suffix(unit).and_then(|number| number.trim_end().parse::<f64>().ok());
    match number.filter(|number| figure.holds(*number)) {
        Some(number) => Ok(Some((place, figure.kept(number)))),
        None => Err(Error::argument(format!(
            "{name} is {}, need a number from {} to {} with \"{unit}\" behind it",
            shown(rest.trim()),
            range.start(),
            range.end()
        ))),
    }
}

/// A quoted text of bounded length.
fn shown(text: &str) -> String {
    const MOST_BYTES: usize = 60;
    let end = text.floor_char_boundary(MOST_BYTES);
    format!("{:?}{}", &text[..end], if end < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let machine = Machine { handover_ps: 99_123, l3_kib: 77, ..Machine::default() };
        let text = machine.to_text();
        assert!(text.starts_with("accl-tune 1\n") && text.contains("\nhandover = 99.123 ns\n"), "{text}");
        assert!(text.contains("\nl3 = 77 KiB\n"), "{text}");
        assert_eq!(Machine::parse(&text), Ok(machine));
        assert_eq!(Machine::from_words(machine.words()), Some(machine));
        assert_eq!(Machine::from_values(machine.values()), machine);
    }

    #[test]
    fn unknown_and_missing_names_are_no_error() {
        let text = "accl-tune 1\n\n# a comment\nwarp = 9 furlongs\n yield =  2.5 ns \n";
        let expected = Machine { yield_ps: 2500, ..Machine::default() };
        assert_eq!(Machine::parse(text), Ok(expected));
    }

    #[test]
    fn what_is_malformed_is_told_with_line_value_and_range() {
        for (text, words) in [
            ("", "line 1 is \"\", need \"accl-tune 1\""),
            ("accl-tune 2\n", "line 1 is \"accl-tune 2\""),
            ("accl-tune 1\nhandover", "line 2: \"handover\" is not"),
            (
                "accl-tune 1\n\nhandover = 0 ns",
                "line 3: handover is \"0 ns\", need a number from 1 to 1000000",
            ),
            ("accl-tune 1\nhandover = 5", "line 2: handover is \"5\", need"),
            ("accl-tune 1\nhandover = 5 ns/KiB", "line 2: handover is \"5 ns/KiB\", need"),
            ("accl-tune 1\ncopy-l2 = NaN ns/KiB", "line 2: copy-l2 is \"NaN ns/KiB\""),
            ("accl-tune 1\ncopy-l2 = 1e300 ns/KiB", "line 2: copy-l2 is \"1e300 ns/KiB\""),
            ("accl-tune 1\nl2 = 15 KiB", "line 2: l2 is \"15 KiB\", need a number from 16 to 16000000"),
        ] {
            let error = Machine::parse(text).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
            assert!(error.text().contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn words_that_cannot_be_true_are_refused() {
        assert_eq!(Machine::from_words([0; FIGURES.len()]), None);
        assert_eq!(Machine::from_words([u32::MAX; FIGURES.len()]), None);
        for place in 0..FIGURES.len() {
            let mut words = Machine::default().words();
            words[place] = 0;
            assert_eq!(Machine::from_words(words), None, "{}", FIGURES[place].name);
        }
    }

    #[test]
    fn values_are_brought_into_their_range() {
        let machine = Machine::from_values([f64::INFINITY; FIGURES.len()]);
        assert_eq!(machine, Machine::default());
        let machine = Machine::from_values([-1.0; FIGURES.len()]);
        assert_eq!((machine.handover_ps, machine.l2_kib), (1000, 16));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*", lines in prop::collection::vec("[a-z0-9-]{0,14} ?=? ?-?[0-9.e]{0,6} ?(ns|ns/KiB|KiB)?", 0..20)) {
            let _ = Machine::parse(&text);
            if let Ok(machine) = Machine::parse(&format!("{FORMAT}\n{}", lines.join("\n"))) {
                prop_assert_eq!(Machine::from_words(machine.words()), Some(machine));
                prop_assert_eq!(Machine::parse(&machine.to_text()), Ok(machine));
            }
        }

        #[test]
        fn known_names_with_any_value(place in 0..FIGURES.len(), value in any::<f64>()) {
            let figure = FIGURES[place];
            let text = format!("{FORMAT}\n{} = {value} {}\n", figure.name, figure.unit.name());
            prop_assert_eq!(Machine::parse(&text).is_ok(), figure.unit.range().contains(&value));
        }
    }
}
