//! Descriptors between processes of one host: one offers, those who know the secret fetch.

use super::auth::Secret;
use super::join::{Trusted, unexpected};
use super::service::Service;
use super::wire::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, process, socket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the process that offers may take to do so.
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long this process may lack descriptors to fetch by.
const LACK_PATIENCE: Duration = Duration::from_secs(1);

/// A descriptor that is being offered; dropping this ends the offer.
#[derive(Debug)]
pub struct Offer {
    service: Arc<Service>,
    secret: Secret,
}

impl Offer {
    /// Offers `file` to those who know `secret`.
    pub fn new(secret: Secret, file: OwnedFd) -> Result<Self> {
        let service = Service::of_process()?;
        service.offer_memory(secret, file)?;
        Ok(Self { service, secret })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.service.withdraw_memory(self.secret);
    }
}

/// Fetches what the service of this name offers, or will offer soon, to those who know `secret`.
pub fn fetch(service: &str, secret: Secret, give_up: &dyn Fn() -> Result<()>) -> Result<OwnedFd> {
    let begin = clock::now();
    let deadline = begin + PATIENCE;
    loop {
        let stream = match socket::connect(service)? {
            Ok(stream) => Some(stream),
            Err(error) if process::lacks_resources(&error) && clock::now() > begin + LACK_PATIENCE => {
                return Err(Error::system("cannot make a socket to fetch shared memory by", error));
            }
            Err(_) => None,
        };
        if let Some(stream) = stream
            && let Some(file) = try_fetch(stream, secret, deadline, give_up)?
        {
            return Ok(file);
        }
        give_up()?;
        if clock::now() >= deadline {
            return Err(Error::remote(format!(
                "the service {service} did not hand out the shared memory of its ranks"
            )));
        }
        clock::sleep(Duration::from_micros(300));
    }
}

fn try_fetch(
    stream: UnixStream,
    secret: Secret,
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Option<OwnedFd>> {
    let Ok(mut connection) = Trusted::greet(stream.into(), secret, "not offered yet", give_up) else {
        return Ok(None);
    };
    let answer = connection.send(&Message::Fetch, deadline).and_then(|()| connection.receive(deadline));
    // A process that ended meanwhile is for `give_up` to name.
    let answer = match answer {
        Err(error) if error.kind() == ErrorKind::Remote => return Ok(None),
        answer => answer?,
    };
    match answer {
        Message::Grant => connection.take_descriptor().map(Some).ok_or_else(|| {
            Error::system("no descriptor came with the shared memory", rustix::io::Errno::MFILE)
        }),
        other => Err(unexpected(other)),
    }
}
