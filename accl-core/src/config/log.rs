//! The settings of the log: `DEBUG`, `DEBUG_SUBSYS`, `DEBUG_FILE`, `DEBUG_TIMESTAMP_FORMAT`, `DEBUG_TIMESTAMP_LEVELS`,
//! `WARN_ENABLE_DEBUG_INFO`.
//!
//! NCCL takes what it does not know for nothing, so a wrong word is no error here either: it is complained about, and
//! what is left counts.

use super::source::Source;

/// How much is logged; each level includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// Nothing.
    #[default]
    Silent,
    /// The version, once.
    Version,
    /// Warnings, and the text of each failed call.
    Warn,
    /// NCCL's level between the two; nothing of ours is of it.
    Attn,
    /// What goes on, by subsystem.
    Info,
    /// As NCCL has it: no more than [`Level::Info`].
    Abort,
    /// Every call, with its arguments.
    Trace,
}

/// Levels by their names.
pub const LEVELS: [(&str, Level); 6] = [
    ("VERSION", Level::Version),
    ("WARN", Level::Warn),
    ("ATTN", Level::Attn),
    ("INFO", Level::Info),
    ("ABORT", Level::Abort),
    ("TRACE", Level::Trace),
];

/// Subsystems are bits: what a line of level INFO is about. The numbers are NCCL's.
pub mod subsystem {
    /// How communicators come to be and end.
    pub const INIT: u32 = 0x1;
    /// Collective calls.
    pub const COLL: u32 = 0x2;
    /// Sends and receives, and how ranks of a host reach each other.
    pub const P2P: u32 = 0x4;
    /// Shared memory.
    pub const SHM: u32 = 0x8;
    /// Connections between hosts.
    pub const NET: u32 = 0x10;
    /// Which algorithms are chosen.
    pub const TUNING: u32 = 0x40;
    /// Settings that are not the default.
    pub const ENV: u32 = 0x80;
    /// Every call; of level TRACE.
    pub const CALL: u32 = 0x200;
    /// How ranks find each other.
    pub const BOOTSTRAP: u32 = 0x1000;
    /// How long things take.
    pub const PROFILE: u32 = 0x4000;
    /// How communicators end.
    pub const DESTROY: u32 = 0x1_0000;
}

/// Subsystems by their names, those without lines of ours too.
const SUBSYSTEMS: [(&str, u32); 18] = [
    ("INIT", subsystem::INIT),
    ("COLL", subsystem::COLL),
    ("P2P", subsystem::P2P),
    ("SHM", subsystem::SHM),
    ("NET", subsystem::NET),
    ("GRAPH", 0x20),
    ("TUNING", subsystem::TUNING),
    ("ENV", subsystem::ENV),
    ("ALLOC", 0x100),
    ("CALL", subsystem::CALL),
    ("PROXY", 0x400),
    ("NVLS", 0x800),
    ("BOOTSTRAP", subsystem::BOOTSTRAP),
    ("REG", 0x2000),
    ("PROFILE", subsystem::PROFILE),
    ("RAS", 0x8000),
    ("DESTROY", subsystem::DESTROY),
    ("ALLOC_HOST", 0x2_0000),
];

/// What is logged, and where to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    /// `DEBUG`.
    pub level: Level,
    /// `DEBUG_SUBSYS`: a mask of [`subsystem`] bits.
    pub subsystems: u32,
    /// `DEBUG_FILE`, with %h and %p still in it; none is standard output.
    pub file: Option<String>,
    /// `DEBUG_TIMESTAMP_FORMAT`, as strftime has it, and %3f for milliseconds; empty for no time.
    pub timestamp_format: String,
    /// `DEBUG_TIMESTAMP_LEVELS`: bit n stands for the n-th [`Level`].
    pub timestamp_levels: u32,
    /// `WARN_ENABLE_DEBUG_INFO`: the first warning makes the level [`Level::Info`].
    pub warning_raises: bool,
}

impl Level {
    /// The level of a name, in any case.
    pub fn of_name(name: &str) -> Option<Self> {
        look_up(&LEVELS, name)
    }
}

/// The subsystems of a list as `DEBUG_SUBSYS` has it. The error says what is unknown, and what there is.
pub fn subsystems_of(list: &str) -> std::result::Result<u32, String> {
    let mut complaint = None;
    let mask = mask_of(list, &SUBSYSTEMS, &mut |word| {
        complaint
            .get_or_insert_with(|| format!("\"{word}\" is unknown; there are {}, ALL", names(&SUBSYSTEMS)));
    });
    complaint.map_or(Ok(mask), Err)
}

impl Log {
    /// Reads the settings. The texts say what was not understood.
    pub(super) fn from_source(source: &Source) -> (Self, Vec<String>) {
        let mut complaints = Vec::new();
        let mut complain = |name: &str, word: &str, known: &str| {
            let shown = source.shown(name);
            complaints
                .push(format!("{shown}: \"{word}\" is unknown and counts for nothing; there are {known}"));
        };
        let text = source.text("DEBUG");
        let level = look_up(&LEVELS, &text);
        if level.is_none() && !["", "NONE"].contains(&text.as_str()) {
            complain("DEBUG", &text, &names(&LEVELS));
        }
        let raises = source.text("WARN_ENABLE_DEBUG_INFO");
        if !["", "0", "1"].contains(&raises.as_str()) {
            complain("WARN_ENABLE_DEBUG_INFO", &raises, "0, 1");
        }
        let mut mask = |name: &str, table: &[(&str, u32)]| {
            mask_of(&source.text(name), table, &mut |word| {
                complain(name, word, &format!("{}, ALL", names(table)))
            })
        };
        let level_bits = LEVELS.map(|(name, level)| (name, 1 << level as u32));
        let (subsystems, timestamp_levels) =
            (mask("DEBUG_SUBSYS", &SUBSYSTEMS), mask("DEBUG_TIMESTAMP_LEVELS", &level_bits));
        let log = Self {
            level: level.unwrap_or_default(),
            subsystems,
            file: Some(source.text("DEBUG_FILE")).filter(|file| !file.is_empty()),
            // Launchers that cut their arguments at blanks get to write them as underscores.
            timestamp_format: source.text("DEBUG_TIMESTAMP_FORMAT").replace('_', " "),
            timestamp_levels,
            warning_raises: raises == "1",
        };
        (log, complaints)
    }
}

fn look_up<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
}

fn names<T>(table: &[(&str, T)]) -> String {
    table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The bits of a list of names; `^` before it stands for all others.
fn mask_of(list: &str, table: &[(&str, u32)], unknown: &mut dyn FnMut(&str)) -> u32 {
    let (inverted, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let mut mask = 0;
    for word in list.split(',').filter(|word| !word.is_empty()) {
        if word.eq_ignore_ascii_case("ALL") {
            mask = u32::MAX;
        } else if let Some(bits) = look_up(table, word) {
            mask |= bits;
        } else {
            unknown(word);
        }
    }
    if inverted { !mask } else { mask }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> (Log, Vec<String>) {
        Log::from_source(&Source::of_pairs(pairs))
    }

    #[test]
    fn levels_and_masks_are_those_of_nccl() {
        let (log, complaints) = read(&[]);
        assert_eq!((log.level, log.subsystems), (Level::Silent, 0x1081));
        assert_eq!((log.timestamp_levels, log.timestamp_format.as_str()), (1 << 2, "[%F %T] "));
        assert!(complaints.is_empty() && log.file.is_none());
        let subsystems = |list| read(&[("NCCL_DEBUG_SUBSYS", list)]).0.subsystems;
        assert_eq!(subsystems("COLL,net"), 0x12);
        assert_eq!(subsystems("^INIT,ENV"), !0x81);
        assert_eq!((subsystems("ALL"), subsystems("^ALL")), (u32::MAX, 0));
        assert_eq!(read(&[("NCCL_DEBUG", "info")]).0.level, Level::Info);
        assert_eq!(read(&[("NCCL_DEBUG_TIMESTAMP_LEVELS", "^WARN")]).0.timestamp_levels, !(1 << 2));
    }

    #[test]
    fn what_is_unknown_is_complained_about_and_nothing_else() {
        let (log, complaints) = read(&[("NCCL_DEBUG", "INFOO"), ("ACCL_DEBUG_SUBSYS", "INIT,NETT")]);
        assert_eq!((log.level, log.subsystems), (Level::Silent, 1));
        assert!(complaints[0].starts_with("NCCL_DEBUG=INFOO: \"INFOO\" is unknown"), "{complaints:?}");
        assert!(complaints[1].starts_with("ACCL_DEBUG_SUBSYS=INIT,NETT: \"NETT\""), "{complaints:?}");
    }

    proptest! {
        #[test]
        fn any_list_has_a_mask(list in "\\PC{0,40}") {
            let mut unknown = 0;
            mask_of(&list, &SUBSYSTEMS, &mut |_| unknown += 1);
            prop_assert!(unknown <= list.len());
        }
    }
}
