//! TCP: links between ranks of different hosts.
//!
//! A link is one connection for each pair of ranks and kind of message, made when it is first needed: the lower rank dials,
//! the higher one is dialled. Messages are written straight from user memory and, where the plan allows, read straight
//! into it; in between there is nothing but the kernel's socket buffers, whose size bounds what is under way.
//!
//! Besides, the first ranks of all hosts are connected with each other, to tell of failures (`control`).
//!
//! Nothing here waits, except for the dialling. Whoever wants to sleep has `wake` ring its bell.

mod control;
mod head;
mod link;
mod network;
mod record;
pub mod wake;

pub use control::ControlHandle;
pub use head::{HEAD_BYTES, Head};
pub use link::{TcpReceiver, TcpSender};
pub use network::{GiveUp, Link, Network, World};
pub use record::Record;
