//! RDMA: links between ranks of different hosts, by verbs.
//!
//! A link begins as a TCP connection (`tcp::Link`), which stays: it carries what both ends must agree on (`record`), tells when
//! the peer is gone, and takes the data where nothing else does. Data goes by *paths*, each a reliable-connected queue pair between
//! a port here and a port there. Messages are cut into *segments*, numbered for each direction of the link; segment n has its place in
//! slot n mod [`SLOTS`] of a ring at the sender, and in the same slot of a ring at the receiver:
//!
//! ```text
//! slot:    0: head of the message (tcp::head, 48 bytes), in its first segment only      then: its next bytes, as many as fit
//! word:    a write carries the last 31 bits of its segment's number, or, with the top bit set, of how many segments are consumed
//! ```
//!
//! A segment is one write with a word, by any path, so segments may overtake each other. Who has consumed a quarter of the ring says
//! so: an empty write with a word, the *credit*. Nobody writes to a slot that is not free, and each queue pair has room for all that may come at
//! once, so no receiver is ever not ready.
//!
//! **When a path fails** (`path`), each end ends its queue pair, takes in what has arrived, gives the pair back, and then says what it has:
//! how many segments it has consumed, and which it has besides. From then on nothing can come late. Whoever hears that sends
//! the other segments again, by another path, or by TCP if there is none. So nothing is lost, and nothing comes twice. Afterwards the
//! lower rank offers the path anew. `model_tests.rs` searches all states of that protocol, in small.
//!
//! A path is *up*, and used, once a packet of either end has passed by it: of the size that all may have, to a place behind the ring.
//!
//! Both halves of a link are of one rank, which does one thing at a time; the lock around their common state is waited for only while the thread `accl-network` tends the link (`care`), a moment now and then.

mod breaking;
mod care;
mod channel;
mod halves;
mod link;
mod path;
mod ports;
mod record;
mod session;
mod window;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod model_tests;

pub use halves::{RdmaReceiver, RdmaSender};
pub use link::RdmaLink;
pub use ports::{LocalPort, local_ports, survey};
pub use record::{RECORD_BYTES, Record};

/// Slots of a ring.
pub const SLOTS: usize = 32;
/// Bytes of a slot. With the head of a message in front, a multiple of every element is left.
pub const SLOT_BYTES: usize = 64 << 10;
/// Bytes behind the slots: as many as a packet has at most, for the one that a path is tried with.
const TRIAL_BYTES: usize = 4096;
/// Bytes of a ring.
const RING_BYTES: usize = SLOTS * SLOT_BYTES + TRIAL_BYTES;
/// Credits that may be under way at once, with room for those of a path that has failed.
const CREDITS: u32 = 16;
/// Paths of a link at most.
const MOST_PATHS: usize = 16;
