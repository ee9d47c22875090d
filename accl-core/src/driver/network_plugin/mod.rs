//! Network plugins: what the library needs of one, whatever its version. Who loads them ([`set_finder`]) stands above this crate.
//!
//! Nothing here waits: what is not there yet is `None`, and the same call is made again. Objects give themselves back when they are
//! dropped: a communication ends with its object, which must come after all of its requests have ended and what is registered with it is given back;
//! a session with all of its objects. Memory is named by addresses, as in [`super::Driver`]: who registers some keeps it until the communication
//! has ended.

#[cfg(test)]
pub(crate) mod fake;

use crate::error::Result;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// Bytes by which a listening device is found.
pub const HANDLE_BYTES: usize = 128;
/// Requests of one communication that may be under way.
pub const MOST_REQUESTS: usize = 32;

/// Where a peer listens, as its plugin says it. A plugin may keep in it how far a connection is, so it is the same one at each call.
pub type Handle = [u8; HANDLE_BYTES];

/// A plugin that is loaded.
pub trait NetworkPlugin: Send + Sync + Debug {
    /// What it calls itself.
    fn name(&self) -> &str;

    /// The version of its interface.
    fn version(&self) -> u32;

    /// Begins to use it for the communicator of this number.
    fn begin(&self, communicator: u64) -> Result<Arc<dyn Session>>;
}

/// A plugin in use by one rank of a communicator.
pub trait Session: Send + Sync + Debug {
    /// Its devices; none of them is no error.
    fn devices(&self) -> &[Properties];

    /// Has a device listen.
    fn listen(&self, device: usize) -> Result<(Box<Handle>, Box<dyn Listener>)>;

    /// Connects a device with what listens there, once that has come about.
    fn connect(&self, device: usize, handle: &mut Handle) -> Result<Option<Box<dyn Outlet>>>;
}

/// What a device is like, as far as that matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// What the plugin calls it.
    pub name: String,
    /// It sends from, and receives into, host memory.
    pub reaches_host: bool,
    /// Data is moved by code on an accelerator: not here.
    pub needs_device_code: bool,
    /// What has arrived can be seen only after a flush.
    pub forces_flush: bool,
    /// How many receives one request may have.
    pub most_receives: usize,
    /// How many bytes one message may have.
    pub most_bytes: usize,
    /// Mbit/s.
    pub speed_mbps: u32,
}

/// A listening device.
pub trait Listener: Send + Debug {
    /// The connection of the peer, once it is there.
    fn accept(&mut self) -> Result<Option<Box<dyn Inlet>>>;
}

/// Memory that a communication may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration(pub usize);

/// Something that a communication does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request(pub usize);

/// What both kinds of communications do.
pub trait Communication: Send + Debug {
    /// Registers host memory.
    fn register(&mut self, start: usize, bytes: usize) -> Result<Registration>;

    /// Gives that back.
    fn deregister(&mut self, registration: Registration) -> Result<()>;

    /// True once a request has ended, which is said once; `sizes` are how many bytes each of its receives has got.
    fn test(&mut self, request: Request, sizes: &mut [i32]) -> Result<bool>;
}

/// The sending end.
pub trait Outlet: Communication {
    /// Sends; none if that cannot begin now.
    fn send(&mut self, piece: Piece, registration: Registration) -> Result<Option<Request>>;
}

/// The receiving end.
pub trait Inlet: Communication {
    /// Receives into each of these, of different tags; none if that cannot begin now.
    fn receive(&mut self, pieces: &[Piece], registration: Registration) -> Result<Option<Request>>;

    /// Makes visible what has arrived there; none if there is nothing to wait for.
    fn flush(&mut self, pieces: &[Piece], registration: Registration) -> Result<Option<Request>>;
}

/// Memory for one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    /// Where it begins.
    pub start: usize,
    /// How much there is; what has arrived, for a flush.
    pub bytes: usize,
    /// What the message is called by both ends.
    pub tag: i32,
}

/// The plugins of this process, in the order in which they are to be tried, and why others are not loaded.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Plugins.
    pub plugins: Vec<Arc<dyn NetworkPlugin>>,
    /// Reasons.
    pub not_loaded: Vec<String>,
}

static FINDER: OnceLock<fn() -> Found> = OnceLock::new();

/// Says who loads plugins. The first one stays.
pub fn set_finder(finder: fn() -> Found) {
    FINDER.get_or_init(|| finder);
}

/// The plugins that the settings name; none where nobody loads them.
pub fn find() -> Found {
    FINDER.get().map_or_else(Found::default, |finder| finder())
}
