//! How ranks find each other.
//!
//! The unique id carries the local address of a process, its TCP port and addresses, and a secret. Its *root*, in that
//! process, gathers all ranks that know the secret, hands everyone the list of all (many ranks get it from each other),
//! waits until all have prepared what they need, and gives one verdict to everybody. Ranks of one host then get the
//! memory that they share from one of them; ranks of different hosts dial each other's processes.
//!
//! * [`wire`]: messages as bytes. * [`auth`]: who may talk to us. * `root`: the gathering, a state machine without
//!   I/O; `tree`: how its list comes to many, `share`: several of them for one gathering; `relay`, `hearing`: a rank's part in that. * `service`, `worker`: what a process does for others, and its one thread. * `presence`: its TCP port and
//!   addresses. * `dial`: finding a process by its addresses. * `join`: the ranks' side; `meet`: its way to a root. * `handover`: descriptors
//!   between processes. * `links`: connections that carry data. * `pre_shared`: the key with which all of it is encrypted, if there is one.

pub mod auth;
mod dial;
mod handover;
mod hearing;
mod id;
mod join;
mod links;
mod meet;
mod pre_shared;
mod presence;
mod relay;
mod root;
mod service;
mod share;
#[cfg(test)]
mod simulation;
mod tree;
pub mod wire;
mod worker;

pub use auth::{Secret, Token};
pub use handover::{Offer, fetch};
pub use id::UniqueId;
pub use join::{Membership, Request, join, rejoin};
pub use links::{
    LinkExpectation, LinkRequest, LinkSink, dial_link, dial_route, expect_links, link_secret, reached,
};
pub use pre_shared::{encrypts, is_encrypted, set_key};
pub use presence::Presence;
pub use service::check_service;
pub use wire::PeerRecord;

/// The version of messages and of shared memory layouts: builds that differ in it cannot talk to each other.
pub const PROTOCOL: u32 = 7;

/// How many connections came over TCP that proved nothing: port scanners, say. They are dropped.
pub fn strays() -> u64 {
    service::strays::count()
}
