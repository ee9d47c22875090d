//! The file that the flight recorder keeps for one rank of one communicator, as bytes; all numbers little-endian.
//! ```text
//!     0 head, complete before anybody else can see the file:
//!         0: magic "ACCLREC\n" | 8: version u32 | 12: bytes of the file u32
//!        16: communicator u64 | 24: its parent's, or 0 u64
//!        32: rank u32 | 36: ranks u32 | 40: process number u32 | 44: hosts u32
//!        48: start of the process, in clock ticks since the boot, u64 | 56: boot u64 | 64: PID namespace u64
//!        72: when it was made, in ns since 1970, u64 | 80: code of the library's version u32 | 84: 0 u32
//!        88: name of the communicator [64] | 152: name of the host [64]   (a length u8, then UTF-8)
//!   512 live words, u64 each: see `live`
//!  4096 ring: 256 entries of 64 bytes; operation n of this rank is entry n mod 256
//!         0: n u64, stored first | 8: number among its kind u64, with flags | 16: what u64 | 24: count u64
//!        32: begun u64 | 40: done u64 (ns since 1970, or 0; count only with the flag TIMED) | 48: 0 u64
//!        56: n u64, stored last
//! 20480 peers: for each host a name [64]; then for each rank its process number u32 | its host u32
//! ```
//! One process writes while others read, without a lock: see [`super::records::read`] for what a reader believes.

use crate::error::{Error, Result};
use crate::types::Rank;

const MAGIC: [u8; 8] = *b"ACCLREC\n";
/// Changes when the bytes above mean something else.
pub(super) const RECORD_VERSION: u32 = 1;
pub(super) const LIVE_BYTES: usize = 512;
pub(super) const RING_BYTES: usize = 4096;
pub(super) const RING_ENTRIES: usize = 256;
pub(super) const ENTRY_WORDS: usize = 8;
/// Where the peers begin; what is before them is mapped by its writer.
pub(super) const PEERS_BYTES: usize = RING_BYTES + RING_ENTRIES * ENTRY_WORDS * 8;
const TEXT_BYTES: usize = 64;
/// Ranks and hosts that a file names at most.
const MOST_PEERS: usize = 1 << 16;
/// A longer file is none of ours.
pub(super) const MOST_BYTES: usize = PEERS_BYTES + MOST_PEERS * (TEXT_BYTES + 8);

/// The live words, by their places in the file, in words.
pub(super) mod live {
    use super::LIVE_BYTES;

    const FIRST: usize = LIVE_BYTES / 8;
    /// Collective operations begun and completed; they are numbered from 1, and complete in order.
    pub(crate) const COLLECTIVES_BEGUN: usize = FIRST;
    pub(crate) const COLLECTIVES_DONE: usize = FIRST + 1;
    /// Sends and receives.
    pub(crate) const TRANSFERS_BEGUN: usize = FIRST + 2;
    pub(crate) const TRANSFERS_DONE: usize = FIRST + 3;
    /// Launches on host streams.
    pub(crate) const LAUNCHES_QUEUED: usize = FIRST + 4;
    pub(crate) const LAUNCHES_DONE: usize = FIRST + 5;
    /// A flag while operations come from a host stream.
    pub(crate) const ON_STREAM: usize = FIRST + 6;
    /// The one word that somebody else stores: see `level_request`.
    pub(crate) const LEVEL_REQUEST: usize = FIRST + 7;
    /// How it ended: see `End`; and when, in ns since 1970.
    pub(crate) const END: usize = FIRST + 8;
    pub(crate) const END_NS: usize = FIRST + 9;
    /// The first failure's text: its length, stored last, and its bytes.
    pub(crate) const FAILURE: usize = FIRST + 10;
    /// RDMA: how often paths came up, how often they failed, and the segments that went again then.
    pub(crate) const PATHS_UP: usize = FIRST + 11;
    pub(crate) const PATHS_FAILED: usize = FIRST + 12;
    pub(crate) const SEGMENTS_AGAIN: usize = FIRST + 13;
    /// Odd while what follows is being changed.
    pub(crate) const WAIT_VERSION: usize = FIRST + 16;
    /// Since when it waits (0: it does not), and when it last looked around, in ns since 1970.
    pub(crate) const WAIT_SINCE_NS: usize = FIRST + 17;
    pub(crate) const WAIT_LOOKED_NS: usize = FIRST + 18;
    /// In which operation: as in an entry of the ring.
    pub(crate) const WAIT_NUMBER: usize = FIRST + 19;
    pub(crate) const WAIT_WHAT: usize = FIRST + 20;
    pub(crate) const WAIT_COUNT: usize = FIRST + 21;
    /// How many ranks it waits for, and as many runs of them as fit: first u32, last u32.
    pub(crate) const WAIT_RANKS: usize = FIRST + 22;
    pub(crate) const WAIT_RUNS: usize = FIRST + 23;
    pub(crate) const MOST_RUNS: usize = 16;
    /// Why, in words: length and bytes.
    pub(crate) const WAIT_TEXT: usize = FIRST + 40;
    /// Bytes of either text.
    pub(crate) const MOST_TEXT: usize = 1024;
    pub(crate) const FAILURE_TEXT: usize = WAIT_TEXT + 1 + MOST_TEXT / 8;
    /// What was exchanged with peers, as of the last wait, for as many of them as there is room: rank + 1 (0: none), bytes sent,
    /// bytes received.
    pub(crate) const TRAFFIC: usize = FAILURE_TEXT + MOST_TEXT / 8;
    pub(crate) const MOST_TRAFFIC: usize = 50;
    const _: () = assert!((TRAFFIC + 3 * MOST_TRAFFIC) * 8 <= super::RING_BYTES);
}

/// Flags of an entry's number: it came from a host stream; its times count; it is a send or a receive.
pub(super) const ON_STREAM: u64 = 1 << 63;
pub(super) const TIMED: u64 = 1 << 62;
pub(super) const TRANSFER: u64 = 1 << 61;
const NUMBER: u64 = TRANSFER - 1;

/// How the part of a rank ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum End {
    /// It has not.
    #[default]
    Open,
    /// An operation failed; the text says why.
    Failed,
    /// The program aborted it.
    Aborted,
    /// The program destroyed it.
    Left,
}

impl End {
    pub(super) fn code(self) -> u64 {
        match self {
            Self::Open => 0,
            Self::Failed => 1,
            Self::Aborted => 2,
            Self::Left => 3,
        }
    }

    fn of_code(code: u64) -> Self {
        [Self::Open, Self::Failed, Self::Aborted, Self::Left]
            .into_iter()
            .find(|end| end.code() == code)
            .unwrap_or_default()
    }
}

/// What does not change: whose record it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// The same number for all ranks of the communicator, and for nobody else; it says nothing of their secret.
    pub communicator: u64,
    /// That of the communicator which it was made of, or 0.
    pub parent: u64,
    /// The rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: usize,
    /// The number of its process, in the PID namespace.
    pub pid: u32,
    /// When the process began, in clock ticks since the boot; 0 if that is not known.
    pub start: u64,
    /// The running kernel.
    pub boot: u64,
    /// The PID namespace.
    pub pid_namespace: u64,
    /// When the record was made, in nanoseconds since 1970.
    pub made_ns: u64,
    /// The library's version.
    pub library: u32,
    /// What the program calls the communicator, or nothing.
    pub name: String,
    /// What the host calls itself.
    pub host: String,
    /// The names of the hosts of all ranks.
    pub hosts: Vec<String>,
    /// For each rank, its process number and the place of its host in `hosts`; empty if there are too many to tell.
    pub peers: Vec<(u32, u32)>,
}

/// What a rank waits for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wait {
    /// Since when, and when it last looked around, in nanoseconds since 1970.
    pub since_ns: u64,
    /// When it last looked around; it does so ten times a second.
    pub looked_ns: u64,
    /// In which operation.
    pub operation: Operation,
    /// For how many ranks.
    pub ranks: u64,
    /// For which, as far as there was room: first and last of each run.
    pub runs: Vec<(Rank, Rank)>,
    /// Why, in words; empty if it has not waited for long.
    pub text: String,
}

/// What has become of RDMA paths, those to all peers together: this rank's ends of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Paths {
    /// How often one came up.
    pub came_up: u64,
    /// How often one failed that had been up.
    pub failed: u64,
    /// Segments that went again for that.
    pub segments_again: u64,
}

/// What was exchanged with one peer in messages, as of the rank's last wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// The peer.
    pub peer: Rank,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Operation {
    /// Its place among all operations of the rank.
    pub place: u64,
    /// True for a send or a receive.
    pub transfer: bool,
    /// Its number: among the collectives, or the messages in this direction between these two ranks.
    pub number: u64,
    /// The call: see [`super::calls`].
    pub what: u64,
    /// Its count.
    pub count: u64,
    /// True if it came from a host stream.
    pub on_stream: bool,
    /// When it began and was done, in nanoseconds since 1970: known of calls that are large, or have waited.
    pub begun_ns: Option<u64>,
    /// As `begun_ns`.
    pub done_ns: Option<u64>,
}

/// Everything that a file says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Whose it is.
    pub head: Head,
    /// Collective operations that have begun: the last one's number.
    pub collectives_begun: u64,
    /// The number of the last one that was completed.
    pub collectives_done: u64,
    /// Sends and receives.
    pub transfers_begun: u64,
    /// Of these, completed ones.
    pub transfers_done: u64,
    /// Launches on host streams.
    pub launches_queued: u64,
    /// Of these, completed ones.
    pub launches_done: u64,
    /// How it ended, and when, in nanoseconds since 1970.
    pub end: End,
    /// When it ended.
    pub end_ns: u64,
    /// The first failure.
    pub failure: Option<String>,
    /// What it waits for.
    pub wait: Option<Wait>,
    /// What was exchanged with peers, the first few of them.
    pub traffic: Vec<Traffic>,
    /// What has become of RDMA paths.
    pub paths: Paths,
    /// The last operations, in order.
    pub operations: Vec<Operation>,
}

impl Record {
    /// True while an operation is under way, or a launch is queued.
    pub fn is_busy(&self) -> bool {
        self.collectives_begun > self.collectives_done
            || self.transfers_begun > self.transfers_done
            || self.launches_queued > self.launches_done
    }

    /// The collective operation of a number, if it is still there.
    pub fn collective(&self, number: u64) -> Option<&Operation> {
        self.operations.iter().rev().find(|operation| !operation.transfer && operation.number == number)
    }
}

impl Head {
    /// A file with this head in which nothing has happened.
    pub fn encode(&self) -> Vec<u8> {
        let told = self.hosts.len() <= MOST_PEERS && self.peers.len() <= MOST_PEERS;
        let (hosts, peers) = if told { (&self.hosts[..], &self.peers[..]) } else { (&[][..], &[][..]) };
        let bytes = PEERS_BYTES + hosts.len() * TEXT_BYTES + peers.len() * 8;
        let mut file = vec![0; bytes];
        file[..8].copy_from_slice(&MAGIC);
        let numbers =
            [(8, RECORD_VERSION), (12, bytes as u32), (32, self.rank as u32), (36, self.ranks as u32)];
        for (at, number) in
            numbers.into_iter().chain([(40, self.pid), (44, hosts.len() as u32), (80, self.library)])
        {
            file[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let words = [(16, self.communicator), (24, self.parent), (48, self.start), (56, self.boot)];
        for (at, word) in words.into_iter().chain([(64, self.pid_namespace), (72, self.made_ns)]) {
            file[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        put_text(&mut file[88..], &self.name);
        put_text(&mut file[152..], &self.host);
        let mut at = PEERS_BYTES;
        for host in hosts {
            put_text(&mut file[at..], host);
            at += TEXT_BYTES;
        }
        for (pid, host) in peers {
            file[at..at + 4].copy_from_slice(&pid.to_le_bytes());
            file[at + 4..at + 8].copy_from_slice(&host.to_le_bytes());
            at += 8;
        }
        file
    }

    fn decode(file: &[u8]) -> Result<Self> {
        let number = |at| u32_at(file, at);
        if !file.starts_with(&MAGIC) {
            return Err(wrong("it is no record of ACCL-P"));
        }
        if number(8) != RECORD_VERSION {
            return Err(wrong(format!(
                "it has version {} and this program reads {RECORD_VERSION}; use the accl of the library that wrote it",
                number(8)
            )));
        }
        if number(12) as usize != file.len() || file.len() < PEERS_BYTES {
            return Err(wrong(format!(
                "it should have {} bytes and has {}: it is cut off",
                number(12),
                file.len()
            )));
        }
        let (rank, ranks) = (number(32) as usize, number(36) as usize);
        let (hosts, rest) = (number(44) as usize, file.len() - PEERS_BYTES);
        let peers = rest.checked_sub(hosts.saturating_mul(TEXT_BYTES)).map(|bytes| bytes / 8);
        let peers = peers.filter(|peers| rank < ranks && (*peers == ranks || *peers == 0));
        let Some(peers) = peers.filter(|peers| hosts * TEXT_BYTES + peers * 8 == rest) else {
            return Err(wrong(format!(
                "rank {rank} of {ranks} on {hosts} hosts does not go with {} bytes",
                file.len()
            )));
        };
        let place = |rank: usize| PEERS_BYTES + hosts * TEXT_BYTES + rank * 8;
        let peers: Vec<_> = (0..peers).map(|rank| (number(place(rank)), number(place(rank) + 4))).collect();
        if peers.iter().any(|(_, host)| *host as usize >= hosts) {
            return Err(wrong("a rank is on a host that is not there"));
        }
        Ok(Self {
            communicator: word_at(file, 16),
            parent: word_at(file, 24),
            rank,
            ranks,
            pid: number(40),
            start: word_at(file, 48),
            boot: word_at(file, 56),
            pid_namespace: word_at(file, 64),
            made_ns: word_at(file, 72),
            library: number(80),
            name: text_at(file, 88),
            host: text_at(file, 152),
            hosts: (0..hosts).map(|host| text_at(file, PEERS_BYTES + host * TEXT_BYTES)).collect(),
            peers,
        })
    }
}

impl Record {
    /// Reads a file of which nothing is known. An error (InvalidArgument) says what is wrong with it.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let head = Head::decode(file)?;
        let word = |place: usize| word_at(file, place * 8);
        let failure = long_text(file, word(live::FAILURE), live::FAILURE_TEXT);
        let mut operations: Vec<_> = (0..RING_ENTRIES).filter_map(|entry| entry_at(file, entry)).collect();
        operations.sort_by_key(|operation| operation.place);
        let newest = word(live::COLLECTIVES_BEGUN).wrapping_add(word(live::TRANSFERS_BEGUN));
        // One more may be on its way in.
        operations.retain(|operation| operation.place <= newest.saturating_add(1));
        Ok(Self {
            head,
            collectives_begun: word(live::COLLECTIVES_BEGUN),
            collectives_done: word(live::COLLECTIVES_DONE),
            transfers_begun: word(live::TRANSFERS_BEGUN),
            transfers_done: word(live::TRANSFERS_DONE),
            launches_queued: word(live::LAUNCHES_QUEUED),
            launches_done: word(live::LAUNCHES_DONE),
            end: End::of_code(word(live::END)),
            end_ns: word(live::END_NS),
            failure: (!failure.is_empty()).then_some(failure),
            wait: wait_of(file, &word),
            traffic: traffic_of(&word),
            paths: Paths {
                came_up: word(live::PATHS_UP),
                failed: word(live::PATHS_FAILED),
                segments_again: word(live::SEGMENTS_AGAIN),
            },
            operations,
        })
    }
}

fn wait_of(file: &[u8], word: &dyn Fn(usize) -> u64) -> Option<Wait> {
    if word(live::WAIT_SINCE_NS) == 0 || !word(live::WAIT_VERSION).is_multiple_of(2) {
        return None;
    }
    let runs = (0..live::MOST_RUNS).map(|run| word(live::WAIT_RUNS + run));
    let runs =
        runs.take_while(|run| *run != u64::MAX).map(|run| ((run & 0xffff_ffff) as Rank, (run >> 32) as Rank));
    Some(Wait {
        since_ns: word(live::WAIT_SINCE_NS),
        looked_ns: word(live::WAIT_LOOKED_NS),
        operation: operation(0, word(live::WAIT_NUMBER), word(live::WAIT_WHAT), word(live::WAIT_COUNT)),
        ranks: word(live::WAIT_RANKS),
        runs: if word(live::WAIT_RANKS) == 0 { Vec::new() } else { runs.collect() },
        text: long_text(file, word(live::WAIT_TEXT), live::WAIT_TEXT + 1),
    })
}

fn traffic_of(word: &dyn Fn(usize) -> u64) -> Vec<Traffic> {
    let entries = (0..live::MOST_TRAFFIC).map(|slot| live::TRAFFIC + 3 * slot);
    entries
        .filter_map(|at| {
            let peer = word(at).checked_sub(1)? as Rank;
            Some(Traffic { peer, sent_bytes: word(at + 1), received_bytes: word(at + 2) })
        })
        .collect()
}

fn operation(place: u64, number: u64, what: u64, count: u64) -> Operation {
    Operation {
        place,
        transfer: number & TRANSFER != 0,
        number: number & NUMBER,
        what,
        count,
        on_stream: number & ON_STREAM != 0,
        begun_ns: None,
        done_ns: None,
    }
}

/// An entry that is not being written.
fn entry_at(file: &[u8], entry: usize) -> Option<Operation> {
    let word = |at: usize| word_at(file, RING_BYTES + (entry * ENTRY_WORDS + at) * 8);
    let place = word(0);
    if place == 0 || place != word(7) || place % RING_ENTRIES as u64 != entry as u64 {
        return None;
    }
    let number = word(1);
    let time = |at| Some(word(at)).filter(|ns| number & TIMED != 0 && *ns != 0);
    Some(Operation { begun_ns: time(4), done_ns: time(5), ..operation(place, number, word(2), word(3)) })
}

fn wrong(what: impl Into<String>) -> Error {
    Error::argument(what)
}

fn u32_at(file: &[u8], at: usize) -> u32 {
    file.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn word_at(file: &[u8], at: usize) -> u64 {
    file.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn put_text(place: &mut [u8], text: &str) {
    let text = &text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES - 1)];
    place[0] = text.len() as u8;
    place[1..=text.len()].copy_from_slice(text);
}

fn text_at(file: &[u8], at: usize) -> String {
    let length = file.get(at).map_or(0, |length| usize::from(*length).min(TEXT_BYTES - 1));
    file.get(at + 1..at + 1 + length).map_or_else(String::new, shown)
}

/// The text of `bytes` that begins at word `place`.
fn long_text(file: &[u8], bytes: u64, place: usize) -> String {
    let bytes = usize::try_from(bytes).map_or(live::MOST_TEXT, |bytes| bytes.min(live::MOST_TEXT));
    file.get(place * 8..place * 8 + bytes).map_or_else(String::new, shown)
}

/// Bytes of a file that anybody may have written, for a terminal: no control characters.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}
