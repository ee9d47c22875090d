//! The engine runs plans: a state machine that is given links, a device and time, and the loop around it.
//!
//! * [`call`]: what is to be done. * `endpoint`: one rank's links and memory. * `collective`, `transfer`: the state
//!   machines, which make what progress they can and say what they wait for. * `drive`: the loop that polls them,
//!   waits, and notices what never comes. * [`stream`]: what is queued on host streams; `queues`, `pipeline`: the same loop
//!   on a thread of its own. `post`, `tagged`: messages with tags; `one_sided`: memory that peers write to. `dock`, `dock_memory`, `arrivals`,
//!   `staged`, `staging`, `windows`, `pieces`: calls in the memory of a device.

mod arrivals;
mod blame;
pub mod call;
mod collective;
mod dock;
mod dock_memory;
#[cfg(test)]
mod dock_tests;
mod drive;
mod endpoint;
mod exchange;
mod explain;
mod lanes;
mod limits;
mod one_sided;
mod pieces;
mod pipeline;
mod post;
mod queues;
mod seat;
mod staged;
mod staged_transfers;
mod staging;
mod steps;
pub mod stream;
mod tagged;
mod transfer;
mod watch;
mod windows;

pub use call::{Call, Operator, Scale, SelfCopy, Transfer};
pub(crate) use dock::Dock;
pub use dock::{Accelerator, launch, launch_call};
pub use drive::{Job, run, run_call};
pub use endpoint::Endpoint;
pub(crate) use lanes::EAGER_BYTES;
pub use lanes::Fabric;
pub use limits::TimeLimits;
pub use one_sided::{Action, MOST_WINDOWS, OneSidedCall, Put, run_one_sided};
pub use post::Post;
pub use seat::{Limits, Peer, Seat};
pub use stream::{HostStream, Part, submit, submit_call};
pub use tagged::{Label, Message, Request};
pub use windows::{Offer as WindowOffer, OwnWindow};

/// What a state machine says when it is polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Poll {
    /// There is nothing left to do.
    Done,
    /// Something moved; poll again.
    Advanced,
    /// Nothing can move until a peer does something.
    Blocked,
}

/// What a lone call is carried out as.
pub(crate) trait Operation {
    /// Makes what progress it can.
    fn poll(&mut self, endpoint: &mut Endpoint) -> crate::error::Result<Poll>;
    /// One of the ranks that it waits for, if that is known at once.
    fn waits_for_first(&self) -> Option<crate::types::Rank>;
    /// The form in which it can wait long.
    fn into_op(self, ranks: usize) -> collective::CollectiveOp;
}
