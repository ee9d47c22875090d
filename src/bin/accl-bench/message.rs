//! What ranks and the hub say to each other: one JSON object a line, over a socket.
//!
//! The hub is the one who prints and writes files: the process that started the ranks, or rank 0's process under a
//! launcher. It never calls the library, so it outlives what the library does.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Who a rank is. Its first message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Names the job, so that strangers at the door are turned away.
    pub(crate) job: String,
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    pub(crate) host: String,
    pub(crate) processor: String,
    /// Which of its host's ranks.
    pub(crate) device: usize,
}

/// What the library is, from a rank that has opened it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) version: i32,
    pub(crate) path: String,
    /// The colour of its group under NCCL_TESTS_SPLIT, and the size of that.
    pub(crate) group: i32,
    pub(crate) group_ranks: usize,
    /// "NULL" or "host".
    pub(crate) stream: String,
}

/// One rank's measurement of one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Seconds for one operation.
    pub(crate) seconds: f64,
    /// Microseconds for each timed iteration, with -I.
    pub(crate) times_us: Vec<f64>,
    /// None without verification.
    pub(crate) wrong: Option<u64>,
}

/// What the library says that it does for a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Explained {
    /// The library's name of the way.
    pub(crate) way: String,
    pub(crate) predicted_us: f64,
}

impl Explained {
    /// Whether two ranks say the same; numbers may lose their last digits on the way.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let (left, right) = (self.predicted_us, other.predicted_us);
        self.way == other.way && (left - right).abs() <= 1e-9 * left.max(right)
    }
}

/// A row of the table, as one rank sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaseReport {
    /// Counts the rows of the run.
    pub(crate) number: usize,
    pub(crate) size_bytes: usize,
    pub(crate) count_elems: usize,
    pub(crate) kind: String,
    pub(crate) op: String,
    pub(crate) root: i32,
    pub(crate) out_of_place: Measured,
    pub(crate) in_place: Option<Measured>,
    /// With --explain, where the library can.
    pub(crate) explained: Option<Explained>,
}

/// Resident bytes of a rank's process: before and after the communicator was made, and at the end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) before: u64,
    pub(crate) after_init: u64,
    pub(crate) after_run: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToHub {
    Hello(Hello),
    Opened(Opened),
    /// For all ranks: answered with everybody's text when all have sent one. Also a barrier.
    Share(String),
    /// Sign of life, while there is a time limit: a process that is stopped sends none.
    Beat,
    FirstCall {
        us: f64,
        what: String,
    },
    Case(Box<CaseReport>),
    Memory(Memory),
    /// For people, once, however many ranks say it.
    Note(String),
    Failed(Failure),
    Done,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToRank {
    Shared(Vec<String>),
    /// The run is over: leave with this code.
    Stop {
        code: i32,
    },
}

/// One line. Our own types always have a JSON form.
pub(crate) fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
