//! A rank's way to the list of all ranks where that comes down a tree ([`super::tree`]): from another process, which it
//! connects to, or from another rank of its own; and what it hands on.

use super::auth::{Secret, Token};
use super::dial::Dial;
use super::hearing::Hearing;
use super::join::{Trusted, unexpected};
use super::links::addresses_of;
use super::service::Service;
use super::tree::Roster;
use super::wire::{Message, PeerRecord};
use crate::config::Network;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, socket};
use crate::topo::Place;
use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to try to get the list from another process before the root is asked, which is always within reach.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often `give_up` is asked.
const STEP: Duration = Duration::from_millis(100);

/// The shelf of this process for one gathering, open while one of its ranks holds this.
#[derive(Debug)]
pub(super) struct Hold {
    service: Arc<Service>,
    token: Token,
    generation: u64,
    /// Readable from the moment the list is there.
    came: Arc<OwnedFd>,
}

impl Hold {
    /// Opens it, before this rank joins: a process that is told to ask here must be known.
    pub(super) fn open(secret: Secret) -> Result<Self> {
        let service = Service::of_process()?;
        let secret = secret_of(secret);
        let came =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                Error::system("cannot make a descriptor to wait for the list of ranks", errno)
            })?;
        let (generation, came) = service.open_shelf(secret, came)?;
        Ok(Self { service, token: secret.token(), generation, came })
    }

    /// Hands the list on.
    pub(super) fn put(&self, roster: &Roster) {
        self.service.put_roster(&self.token, self.generation, roster);
    }

    fn roster(&self) -> Option<Roster> {
        self.service.roster(&self.token, self.generation)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.service.close_shelf(&self.token, self.generation);
    }
}

/// Those who ask for the list prove this.
fn secret_of(id: Secret) -> Secret {
    id.derive(b"roster")
}

/// Gets the list from the process of `parent`; none is a rank of this process. Hears a verdict of the root meanwhile, and
/// asks the root for the list if it cannot be had otherwise.
pub(super) fn seek(
    hearing: &mut Hearing<'_>,
    parent: Option<&PeerRecord>,
    (hold, id): (&Hold, Secret),
    settings: &Network,
) -> Result<Roster> {
    let soon = hearing.deadline.min(clock::now() + PATIENCE);
    let give_up = hearing.give_up;
    let found = {
        let wanted = || {
            give_up()?;
            if hearing.has_word() { Err(Error::remote("the root has given its verdict")) } else { Ok(()) }
        };
        match parent {
            Some(parent) => fetch(parent, secret_of(id), settings, soon, &wanted),
            None => wait(hearing, hold, soon, &wanted),
        }
    };
    let problem = match found {
        Ok(roster) => return Ok(roster),
        Err(error) => error,
    };
    give_up()?;
    hearing.ask_for_list(&problem);
    roster_of(hearing.hear()?)
}

/// Waits until another rank of this process has the list.
fn wait(
    hearing: &Hearing<'_>,
    hold: &Hold,
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Roster> {
    loop {
        if let Some(roster) = hold.roster() {
            return Ok(roster);
        }
        give_up()?;
        if clock::now() >= deadline {
            return Err(Error::new(ErrorKind::Timeout, "the list of ranks did not come to this process"));
        }
        let mut sockets = hearing.sockets();
        sockets.push(hold.came.as_fd());
        socket::wait_readable(&sockets, STEP)?;
    }
}

fn fetch(
    parent: &PeerRecord,
    secret: Secret,
    settings: &Network,
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Roster> {
    const GONE: &str = "it does not know of this gathering (any more)";
    let mut connection = if parent.place.neighbourhood() == Place::here()?.neighbourhood() {
        let stream = socket::connect(&parent.service())?
            .map_err(|error| Error::remote(format!("{} is gone: {error}", parent.describe())))?;
        Trusted::greet(stream.into(), secret, GONE, give_up)?
    } else {
        let dial = Dial {
            by: None,
            whom: parent.describe(),
            addresses: addresses_of(parent, None, settings)?,
            secret,
            deadline,
            hung_up: (ErrorKind::Remote, GONE),
            may_come_late: false,
            retries: settings.retries,
            told: parent.addresses.clone(),
            give_up,
        };
        dial.run()?.connection
    };
    connection.send(&Message::Fetch, deadline)?;
    roster_of(connection.receive(deadline)?)
}

fn roster_of(message: Message) -> Result<Roster> {
    match message {
        Message::Roster(roster) => Ok(roster),
        other => Err(unexpected(other)),
    }
}
