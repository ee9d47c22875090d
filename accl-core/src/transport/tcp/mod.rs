//! TCP: links between ranks of different hosts.
//!
//! A link is one connection or several for each pair of ranks and kind of message, made when they are first needed: the lower rank
//! dials, the higher one is dialled. Short messages go on the first connection; long ones are cut into blocks, each of which goes on
//! whichever has room (`block`), so that a slow way gets less than a fast one. Messages are written straight from user memory and, where the plan allows, read straight
//! into it; in between there is nothing but the kernel's socket buffers, whose size bounds what is under way.
//!
//! Besides, the first ranks of all hosts are connected with each other, to tell of failures (`control`), and of who waits for whom (`words`).
//!
//! Nothing here waits: dialling has threads of its own (`dialler`). Whoever wants to sleep has `wake` ring its bell.

mod block;
mod control;
mod dialler;
mod head;
mod inlet;
mod link;
mod network;
mod receiver;
mod record;
mod sender;
#[cfg(test)]
mod stripe_tests;
pub mod wake;
mod words;

pub use block::{Arrivals, BLOCK_BYTES, BLOCK_HEAD_BYTES, Beginning, BlockHead};
pub use control::ControlHandle;
pub use head::{HEAD_BYTES, Head};
pub use link::{Link, MOST_STRIPES};
pub use network::{Devices, GiveUp, Network, World};
pub use receiver::TcpReceiver;
pub use record::{Record, Telling};
pub use sender::TcpSender;
pub(in crate::transport) use wake::{Listened, Tend, Tended, Watched};
