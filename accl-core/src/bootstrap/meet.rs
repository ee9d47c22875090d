//! The way to a root: by a local socket if its process can be seen from here, else over TCP; or to the place that was
//! agreed upon.

use super::auth::Secret;
use super::dial::Dial;
use super::id::{Creator, Invitation, Meeting};
use super::join::{Request, Trusted};
use super::service::{Door, Service};
use crate::config::RootAddress;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, network, process, socket};
use crate::topo::{Place, targets};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection to the root of an id, and what that is called.
pub(super) fn reach_root<'a>(
    invitation: &Invitation,
    request: &Request<'_>,
    deadline: Instant,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<(Trusted<'a>, String)> {
    match &invitation.meeting {
        Meeting::Created(creator) => {
            let root = format!("process {}, the creator of the unique id,", creator.pid);
            Ok((reach_creator(invitation, creator, request, deadline, give_up)?, root))
        }
        Meeting::Agreed(address) => {
            if request.rank == 0 {
                open_agreed(invitation.secret, address)?;
            }
            let root = format!("rank 0, at {} (NCCL_COMM_ID),", address.text);
            Ok((reach_agreed(invitation, address, request, deadline, give_up)?, root))
        }
        Meeting::Known(creator) => {
            if request.rank == 0 {
                let door = if creator.port == 0 { Door::Local } else { Door::Open };
                Service::of_process()?.expect_ranks(invitation.secret, door)?;
            }
            let root = format!("process {}, that of the new rank 0,", creator.pid);
            Ok((reach_known(invitation, creator, request, deadline, give_up)?, root))
        }
    }
}

const USED: &str = "the creator of the unique id does not know it any more: it was already used; make a new one with \
                    ncclGetUniqueId for each communicator";

/// The process that made the id: by its local socket if that can be seen from here, else over TCP.
fn reach_creator<'a>(
    invitation: &Invitation,
    creator: &Creator,
    request: &Request<'_>,
    deadline: Instant,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Trusted<'a>> {
    let place = Place::here()?;
    if creator.neighbourhood == place.neighbourhood() {
        let name = Place { pid: creator.pid, process: creator.process, ..place }.service_name();
        let stream = socket::connect(&name)?.map_err(|error| {
            if process::lacks_resources(&error) {
                return Error::system("cannot make a socket to join by", error);
            }
            Error::remote(format!(
                "the creator of the unique id (process {}) is gone, or has made its communicator with it already: \
                 {error}; keep that process alive until all ranks have joined, and make a new id for each communicator",
                creator.pid
            ))
        })?;
        return Trusted::greet(stream.into(), invitation.secret, USED, give_up);
    }
    let whom = format!("process {} of another host, the creator of the unique id,", creator.pid);
    if creator.port == 0 || creator.addresses.is_empty() {
        return Err(Error::usage(format!(
            "host {} cannot reach {whom}: that told no TCP port or no address when it made the id; its host needs a network \
             interface that is up and that NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY allow there",
            network::host_name()
        )));
    }
    let dial = Dial {
        hung_up: (ErrorKind::InvalidUsage, USED),
        ..to_creator(invitation, (creator, whom), request, deadline, give_up)?
    };
    dial.run().map(|found| found.connection)
}

/// A dial of a process by the addresses that it told.
fn to_creator<'a>(
    invitation: &Invitation,
    (creator, whom): (&Creator, String),
    request: &Request<'_>,
    deadline: Instant,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Dial<'a>> {
    let interfaces = network::interfaces()?;
    Ok(Dial {
        whom,
        addresses: targets(&creator.addresses, creator.port, &interfaces, request.network.family),
        by: None,
        secret: invitation.secret,
        deadline,
        hung_up: (ErrorKind::Remote, "it does not make this communicator"),
        may_come_late: false,
        retries: request.network.retries,
        told: creator.addresses.clone(),
        give_up,
    })
}

/// The process of the new rank 0, which may not have come so far.
fn reach_known<'a>(
    invitation: &Invitation,
    creator: &Creator,
    request: &Request<'_>,
    deadline: Instant,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Trusted<'a>> {
    const STEP: Duration = Duration::from_millis(10);
    let whom = format!("process {}, that of the new rank 0,", creator.pid);
    let place = Place::here()?;
    if creator.neighbourhood != place.neighbourhood() {
        let dial = Dial {
            may_come_late: true,
            ..to_creator(invitation, (creator, whom), request, deadline, give_up)?
        };
        return dial.run().map(|found| found.connection);
    }
    let name = Place { pid: creator.pid, process: creator.process, ..place }.service_name();
    loop {
        let reached = match socket::connect(&name)? {
            Ok(stream) => Trusted::greet(stream.into(), invitation.secret, "it has not called yet", give_up),
            Err(error) => Err(Error::system("its local socket", error)),
        };
        let error = match reached {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        give_up()?;
        if clock::now() >= deadline {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!("{whom} did not come in time: {}", error.text()),
            ));
        }
        clock::sleep(STEP);
    }
}

/// The place that was agreed upon, where rank 0 may yet have to come to.
fn reach_agreed<'a>(
    invitation: &Invitation,
    address: &RootAddress,
    request: &Request<'_>,
    deadline: Instant,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Trusted<'a>> {
    let mut addresses = loop {
        match network::resolve(&address.host, address.port) {
            Ok(addresses) if !addresses.is_empty() => break addresses,
            outcome => {
                give_up()?;
                if clock::now() >= deadline {
                    let why =
                        outcome.err().map_or_else(|| "no addresses".to_string(), |error| error.to_string());
                    let what = format!(
                        "no address is known of {}, the host of NCCL_COMM_ID={} (correct the name, or write rank 0's IP address)",
                        address.host, address.text
                    );
                    return Err(Error::system(what, why));
                }
                clock::sleep(Duration::from_millis(100));
            }
        }
    };
    if request.rank == 0 {
        let home = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        addresses.extend(home.map(|ip| SocketAddr::new(ip, address.port)));
    }
    let dial = Dial {
        by: None,
        whom: format!("rank 0 at {} (NCCL_COMM_ID)", address.text),
        addresses,
        secret: invitation.secret,
        deadline,
        hung_up: (ErrorKind::Remote, "something else listens there, or another NCCL_COMM_ID"),
        may_come_late: true,
        retries: request.network.retries,
        told: Vec::new(),
        give_up,
    };
    dial.run().map(|found| found.connection)
}

/// Opens the place that was agreed upon: on its address, or on all of this host where it is not one of ours (a name
/// that stands for a way here).
fn open_agreed(secret: Secret, address: &RootAddress) -> Result<()> {
    let service = Service::of_process()?;
    let fail = |error: std::io::Error| {
        Error::system(
            format!(
                "rank 0 cannot listen at NCCL_COMM_ID={} on host {}; choose an address of rank 0's host and a free port",
                address.text,
                network::host_name()
            ),
            error,
        )
    };
    let listener = match service.agreed_door(secret) {
        Some(listener) => listener,
        None => {
            let known = network::resolve(&address.host, address.port).map_err(fail)?;
            let bound = known.into_iter().map(network::listen_at).find_map(std::result::Result::ok);
            let any = || network::listen_any(Some(&(address.port..=address.port)), None, 0);
            Arc::new(bound.map_or_else(|| any().map(|(listener, _)| listener), Ok).map_err(fail)?)
        }
    };
    service.expect_ranks(secret, Door::At(listener))
}
