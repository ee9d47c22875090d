//! How ranks find each other.
//!
//! The unique id carries the local address of a process and a secret. Its *root*, in that process, gathers all
//! ranks that know the secret, hands everyone the list of all, waits until all have prepared what they need, and
//! gives one verdict to everybody. Ranks of one host then get the memory that they share from one of them.
//!
//! * [`wire`]: messages as bytes. * [`auth`]: who may talk to us. * `root`: the gathering, a state machine without
//!   I/O. * `service`: the one thread and socket of a process. * `join`: the ranks' side. * `handover`: descriptors
//!   between processes.

pub mod auth;
mod handover;
mod id;
mod join;
mod root;
mod service;
pub mod wire;

pub use auth::{Secret, Token};
pub use handover::{Offer, fetch};
pub use id::UniqueId;
pub use join::{Membership, Request, join};
pub use wire::PeerRecord;

/// The version of messages and of shared memory layouts: builds that differ in it cannot talk to each other.
pub const PROTOCOL: u32 = 1;

/// The service of this process, started if need be: its local address.
pub fn service_name() -> crate::Result<String> {
    service::Service::of_process().map(|service| service.name().to_string())
}
