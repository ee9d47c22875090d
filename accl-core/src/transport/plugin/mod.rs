//! Links between ranks of different hosts by a network plugin (`driver::network_plugin`), which knows no versions of them.
//!
//! A link begins as a TCP connection (`tcp::Link`), which stays: by it both ends come to terms (`record`), and it tells when the peer is gone. Each
//! end has a device *listen* and says its handle, *connects* with the peer's, and *accepts* what comes; a communication of the plugin is one direction.
//! When an end has both, and what it needs is registered, it says that it is *up*; when something fails before, that it is *down*, and why. If both are up, the
//! plugin carries everything from there on; if not, the TCP connection does, as it would without a plugin: so both ends always come to the same.
//!
//! Messages are cut into *segments* of up to [`SLOT_BYTES`], numbered for each direction. Segment n has its place in slot n mod `SLOTS` of a ring
//! at the sender, and in the same slot of a ring at the receiver:
//!
//! ```text
//! slot:   0: head of the message (tcp::head, 48 bytes), in its first segment only      then: its next bytes, as many as fit
//! tag:    n mod `TAGS`
//! ```
//!
//! Receives are posted for all slots that are free, before anybody asks for what comes, one by one. A segment that is certain to come,
//! as its message has begun, is received in one request with those that follow it, if the plugin can do so. A sender needs no other credit: the plugin refuses what the
//! peer has not posted.
//!
//! **Early messages** are short ones that are sent before it is settled who carries them: they go as records over TCP, and are kept by the receiver, so that a short send needs no
//! receiver. Where the settings require the plugin, nothing is early.
//!
//! **The end.** Requests must have ended before their communication is closed, and receives are posted that nobody sends to. So who leaves says how many
//! receives it has posted and segments it has sent in all. The peer sends segments without a meaning until the former have ended, and says the same once it has posted receives for the
//! latter (`Core::finish`, and `poller` for a rank that is busy elsewhere). If something
//! has failed, or the peer does not answer in time, communications are closed as they are.

mod halves;
mod link;
mod poller;
mod record;
mod rings;
#[cfg(test)]
mod tests;

pub use halves::{PluginReceiver, PluginSender};
pub use link::{Chosen, PluginLink};
pub use record::{RECORD_BYTES, Record};

/// Segments of each direction that may be under way.
const SLOTS: usize = 16;
/// Bytes of a slot, and of a segment.
pub const SLOT_BYTES: usize = 128 << 10;
/// Tags are numbers below that.
const TAGS: u64 = 64;
/// Receives of one request at most: half of the ring, so that there is always something else under way.
const MOST_GROUP: usize = SLOTS / 2;
/// Messages up to this size may be early: the limit up to which a send returns before its receiver comes.
const EARLY_BYTES: usize = 64 << 10;
/// So many of them.
const EARLY_MESSAGES: usize = 64;
