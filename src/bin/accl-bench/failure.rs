//! How a run can end: the exit codes, and a failure with its sentence.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Exit codes of the program. They are documented in `--help`; never give one a second meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Exit {
    /// All measured, all right.
    Good = 0,
    /// The command line or the environment asks for what cannot be done.
    Usage = 2,
    /// The library cannot be opened or lacks a function.
    Library = 3,
    /// A call of the library failed.
    Call = 4,
    /// A rank's process ended before its work did.
    Died = 5,
    /// A time limit passed.
    Timeout = 6,
    /// Wrong results, or less bandwidth than NCCL_TESTS_MIN_BW demands. The number is nccl-tests'.
    Verdict = 7,
    /// SIGINT or SIGTERM.
    Interrupted = 130,
}

impl Exit {
    /// Which of two reasons explains the other: calls of survivors fail *because* a rank died.
    pub(crate) fn weight(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Verdict => 1,
            Self::Call => 2,
            Self::Timeout => 3,
            Self::Died => 4,
            Self::Library => 5,
            Self::Usage => 6,
            Self::Interrupted => 7,
        }
    }
}

/// Why a run ends early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) code: Exit,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Exit, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

pub(crate) type Outcome<T> = Result<T, Failure>;
