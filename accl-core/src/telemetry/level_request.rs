//! Another log level for a process that runs, asked for by a tool: a word in the file of its flight recorder, which the process
//! compares with what it has seen at the beginning of each operation, and whenever it looks around in a wait.
//!
//! ```text
//!     0: nobody has asked | 1 << 32: as the settings have it | (2 + place of the level) << 32 | subsystems
//! ```

use crate::config::{LEVELS, Level, Log};

const AS_SET: u64 = 1 << 32;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LevelRequest {
    /// What the settings say.
    AsSet,
    /// This level, with these subsystems: a mask of [`crate::config::subsystem`] bits.
    Level(Level, u32),
}

impl LevelRequest {
    /// The word that stands for it.
    pub fn encode(self) -> u64 {
        match self {
            Self::AsSet => AS_SET,
            Self::Level(level, subsystems) => (2 + level as u64) << 32 | u64::from(subsystems),
        }
    }

    /// What a word stands for: nothing, if nobody has asked, or something else has come into the file.
    pub fn decode(word: u64) -> Option<Self> {
        if word == AS_SET {
            return Some(Self::AsSet);
        }
        let place = (word >> 32).checked_sub(2)?;
        let mut levels = [Level::Silent].into_iter().chain(LEVELS.map(|(_, level)| level));
        levels.find(|level| *level as u64 == place).map(|level| Self::Level(level, word as u32))
    }

    /// The settings with what is asked for in place of their own level.
    pub(super) fn applied_to(self, log: &Log) -> Log {
        match self {
            Self::AsSet => log.clone(),
            Self::Level(level, subsystems) => Log { level, subsystems, ..log.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_for_levels_and_for_nothing_else() {
        let requests = [
            LevelRequest::AsSet,
            LevelRequest::Level(Level::Silent, 0),
            LevelRequest::Level(Level::Info, 0x1081),
            LevelRequest::Level(Level::Trace, u32::MAX),
        ];
        for request in requests {
            assert_eq!(LevelRequest::decode(request.encode()), Some(request));
        }
        for word in [0, 1, AS_SET | 1, 9 << 32, u64::MAX] {
            assert_eq!(LevelRequest::decode(word), None, "{word:x}");
        }
    }
}
