//! Communicators: their life, their calls, and groups of calls.
//!
//! A [`Communicator`] is one rank's handle; it is cheap to clone and may be used from any thread. Operations of
//! one communicator take turns; different communicators are independent of each other.

mod announce;
mod choose;
mod collectives;
mod describe;
mod device;
mod estimate;
mod explain;
pub mod group;
mod init;
mod life;
mod memory_use;
mod messages;
mod network_plugin;
mod operators;
mod pointers;
mod regroup;
mod share;
mod split;
mod standing;
mod suspend;
mod windows;

pub use crate::algo::{Candidate, Selection};
pub use crate::bootstrap::set_key as set_encryption_key;
pub use crate::engine::{Operator, Scale as ScalarSource};
pub use announce::Arguments;
pub use choose::{CallOptions, Candidates, Wish};
pub use describe::describe_process;
pub use device::Stream;
pub use explain::{Explanation, Identity};
pub use memory_use::MemoryUse;
pub use messages::PostedMessage;
pub use split::ChildDone;
pub use windows::Window;

use crate::algo::Facts;
use crate::bootstrap::{self, PeerRecord, Secret, UniqueId};
use crate::config::Settings;
use crate::engine::{Accelerator, Seat, TimeLimits};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Registry, UserPointer};
use crate::os::process;
use crate::sync::prim::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::transport::tcp::ControlHandle;
use crate::types::Face;
use operators::Operators;
use parking_lot::{Condvar, Mutex};
use standing::{Reason, Standing};
use std::sync::{Arc, OnceLock};

/// How a communicator is to behave.
#[derive(Clone, Debug)]
pub struct CommConfig {
    /// False: creation, splits and the end go on in the background, and are asked for by
    /// [`Communicator::async_state`].
    pub blocking: bool,
    /// A name for texts.
    pub name: Option<String>,
    /// The network between hosts by its name, unless the settings choose one.
    pub network: Option<String>,
    /// By whose names the program made it, and what the log calls its functions.
    pub face: Face,
    /// Of host memory, whatever devices the process uses.
    pub in_host_memory: bool,
    /// How long its ranks have to join; none: as the settings say.
    pub init_limit: Option<std::time::Duration>,
    /// Calls on a device are refused whose buffers lie elsewhere; a matter of the settings alone.
    pub checks_pointers: bool,
}

impl Default for CommConfig {
    fn default() -> Self {
        Self {
            blocking: true,
            name: None,
            network: None,
            face: Face::Nccl,
            in_host_memory: false,
            init_limit: None,
            checks_pointers: false,
        }
    }
}

impl CommConfig {
    /// The settings of a communicator that is made now, with what it chooses where they leave it the choice.
    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::load()?;
        if let Some(name) = &self.network {
            settings.network.verbs.choose(name);
        }
        if bootstrap::encrypts(&settings.network)? {
            settings.network.verbs.forgo_for_encryption()?;
        }
        Ok(settings)
    }

    /// The same with what the settings say in place of it.
    fn overridden(self, settings: &Settings) -> Self {
        let blocking = settings.comm_blocking.unwrap_or(self.blocking);
        Self { blocking, checks_pointers: settings.driver.checks_pointers, ..self }
    }
}

/// One rank's handle to a communicator.
#[derive(Clone, Debug)]
pub struct Communicator {
    shared: Arc<Shared>,
}

/// What all clones have in common.
#[derive(Debug)]
struct Shared {
    ranks: usize,
    rank: usize,
    config: CommConfig,
    /// None for one of host memory.
    device: Option<Accelerator>,
    /// The number of the communicator that it was made of, or 0.
    parent: u64,
    /// The process that it was made in: forked children inherit the memory, and have no part in it.
    process: u32,
    /// Set when the ranks have joined.
    joined: OnceLock<Joined>,
    /// A failure that no operation has had: of the joining, or of a call of a non-blocking communicator.
    error: OnceLock<Error>,
    /// Creation, splits and ends in the background that are not over.
    background: AtomicUsize,
    background_ended: (Mutex<()>, Condvar),
    aborted: AtomicBool,
    standing: Standing,
    splits: AtomicU64,
    /// How often its ranks have met again, without it.
    regroupings: AtomicU64,
    /// The id by which new ranks are to join, until this rank grows.
    invitation: Mutex<Option<UniqueId>>,
    operators: Mutex<Operators>,
    registry: Mutex<Registry>,
    /// What came of looking for a network plugin, until the ranks have met.
    plugin: Mutex<Option<network_plugin::Outcome>>,
}

/// What there is once the ranks have joined.
#[derive(Debug)]
struct Joined {
    seat: Arc<Seat>,
    peers: Vec<PeerRecord>,
    secret: Secret,
    facts: Facts,
    /// Of the first rank of a host, where there are several.
    _control: Option<ControlHandle>,
    /// How data gets to each rank.
    ways: Vec<describe::Way>,
    /// What is sent from rank to rank.
    messages: messages::Messages,
    /// What they write to each other by themselves.
    windows: windows::Windows,
}

impl Communicator {
    fn new(ranks: usize, rank: usize, config: CommConfig, device: Option<Accelerator>) -> Self {
        Self::with_parent(ranks, rank, config, device, 0)
    }

    /// One that is made of this one.
    fn child(&self, ranks: usize, rank: usize, config: CommConfig) -> Self {
        Self::with_parent(ranks, rank, config, self.shared.device, self.public_number())
    }

    fn with_parent(
        ranks: usize,
        rank: usize,
        config: CommConfig,
        device: Option<Accelerator>,
        parent: u64,
    ) -> Self {
        let shared = Shared {
            ranks,
            rank,
            config,
            device,
            parent,
            process: process::id(),
            joined: OnceLock::new(),
            error: OnceLock::new(),
            background: AtomicUsize::new(0),
            background_ended: (Mutex::new(()), Condvar::new()),
            aborted: AtomicBool::new(false),
            standing: Standing::default(),
            splits: AtomicU64::new(0),
            regroupings: AtomicU64::new(0),
            invitation: Mutex::new(None),
            operators: Mutex::new(Operators::new()),
            registry: Mutex::new(Registry::default()),
            plugin: Mutex::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    /// How many ranks it has.
    pub fn ranks(&self) -> usize {
        self.shared.ranks
    }

    /// Which one this is.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// How it behaves.
    pub fn config(&self) -> CommConfig {
        self.shared.config.clone()
    }

    pub(crate) fn face(&self) -> Face {
        self.shared.config.face
    }

    /// An error (InvalidArgument) while something of an earlier call is under way in the background.
    pub fn check_ready(&self) -> Result<()> {
        let background = self.shared.background.load(Ordering::Acquire);
        // What this group will do with a communicator that is there keeps it from nothing else that the group does.
        let kept = || if self.shared.joined.get().is_some() { group::kept(self) } else { 0 };
        if background > 0 && background > kept() {
            return Err(Error::argument(
                "the communicator was used before an earlier non-blocking call was over; ask ncclCommGetAsyncError until it \
                 says something else than ncclInProgress",
            ));
        }
        Ok(())
    }

    /// An error (InvalidUsage) in a forked child of the process that made the communicator.
    pub fn check_process(&self) -> Result<()> {
        if self.shared.process == process::id() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "the communicator belongs to process {}, and this is a forked child of it; make a communicator of its own \
             here",
            self.shared.process
        )))
    }

    /// An error where a call cannot be made at all: not ready, failed before, or another process's.
    #[inline]
    pub fn check_usable(&self) -> Result<()> {
        let shared = &*self.shared;
        let usable = shared.process == process::id()
            && shared.background.load(Ordering::Acquire) == 0
            && shared.error.get().is_none()
            && shared.standing.is_open()
            && shared.joined.get().is_none_or(|joined| !joined.seat.has_failed());
        if usable { Ok(()) } else { self.why_unusable() }
    }

    #[cold]
    fn why_unusable(&self) -> Result<()> {
        self.check_process()?;
        self.check_ready()?;
        self.check_revoked()?;
        self.failure().map_or(Ok(()), Err)?;
        if self.shared.standing.is(Reason::Finalized) {
            return Err(Error::usage(
                "the communicator has been finalized; only destroy and abort may follow",
            ));
        }
        if self.shared.standing.is(Reason::Suspended) {
            return Err(Error::usage(
                "the communicator is suspended; call ncclCommResume on every rank before other calls",
            ));
        }
        Ok(())
    }

    /// An error (InvalidUsage) if it was revoked.
    fn check_revoked(&self) -> Result<()> {
        if !self.shared.standing.is(Reason::Revoked) {
            return Ok(());
        }
        Err(Error::usage(
            "the communicator was revoked (ncclCommRevoke, or ncclCommShrink with NCCL_SHRINK_ABORT); split or shrink it, or \
             destroy it",
        ))
    }

    /// Ok, an error of kind InProgress, or the first failure. That calls were ended by a revocation is none. A rank of this host
    /// that is lost is one, whether it is waited for or not.
    pub fn async_state(&self) -> Result<()> {
        // A communicator that nobody will use any more may lose its ranks.
        if let Some(joined) = self.shared.joined.get()
            && !self.shared.standing.is(Reason::Finalized)
        {
            joined.seat.look_for_lost_peers();
        }
        let revoked = self.shared.standing.is(Reason::Revoked);
        if let Some(error) =
            self.failure().filter(|error| !revoked || error.kind() != ErrorKind::InvalidUsage)
        {
            return Err(error);
        }
        if self.shared.background.load(Ordering::Acquire) > 0 {
            return Err(Error::new(ErrorKind::InProgress, "a non-blocking call is under way"));
        }
        Ok(())
    }

    /// Makes a call's failure the communicator's, as non-blocking communicators have it.
    pub fn store_error(&self, error: &Error) {
        let _ = self.shared.error.set(error.clone());
    }

    /// Registers memory; the handle is never 0.
    pub fn register(&self, start: UserPointer, bytes: usize) -> Result<usize> {
        Ok(self.shared.registry.lock().register(start, bytes))
    }

    /// Takes a registration back.
    pub fn deregister(&self, handle: usize) -> Result<()> {
        self.shared.registry.lock().deregister(handle)
    }

    fn failure(&self) -> Option<Error> {
        if let Some(error) = self.shared.error.get() {
            return Some(error.clone());
        }
        self.shared.joined.get().and_then(|joined| joined.seat.error())
    }

    /// Changes this rank's time limits; they last until they are changed again.
    pub fn set_time_limits(&self, changes: TimeLimits) -> Result<()> {
        if let Some(carrier) = self.carrier_communicator() {
            carrier.set_time_limits(changes)?;
        }
        self.joined().map(|joined| joined.seat.set_time_limits(changes))
    }

    fn joined(&self) -> Result<&Joined> {
        self.shared.joined.get().ok_or_else(|| Error::internal("a communicator that nobody has joined"))
    }

    /// A number that no other communicator of this process has while this one is there.
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.process != process::id() {
            // What a forked child took down would be its parent's.
            std::mem::forget(self.joined.take());
        } else if let Some(joined) = self.joined.get() {
            joined.seat.leave();
            joined.seat.close();
            joined.seat.release();
        }
    }
}
