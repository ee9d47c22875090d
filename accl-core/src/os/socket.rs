//! Sockets: local ones by abstract names, and for those of any kind deadlines, and descriptors that travel with a message.

use super::network;
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Listens on an abstract name: nothing in the file system, gone with the process.
pub fn listen(name: &str) -> Result<UnixListener> {
    let address = address_of(name)?;
    let listener = UnixListener::bind_addr(&address)
        .map_err(|error| Error::system(format!("cannot listen on the local socket @{name}"), error))?;
    listener
        .set_nonblocking(true)
        .map_err(|error| Error::system("cannot make a socket non-blocking", error))?;
    Ok(listener)
}

/// Connects to an abstract name. The inner error is the system's refusal, which callers explain in their terms.
pub fn connect(name: &str) -> Result<std::io::Result<UnixStream>> {
    Ok(UnixStream::connect_addr(&address_of(name)?))
}

fn address_of(name: &str) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(name.as_bytes())
        .map_err(|error| Error::system(format!("not a socket name: {name:?}"), error))
}

/// Sends some of `bytes` without waiting, and `descriptor` with the first of them: how many went.
pub fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> std::io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let Some(descriptor) = descriptor else { return Ok(rustix::net::send(socket, bytes, flags)?) };
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?)
}

/// Sends all of `bytes` before `deadline`, asking `give_up` every tenth of a second.
pub fn send_all(
    socket: BorrowedFd<'_>,
    mut bytes: &[u8],
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<()> {
    while !bytes.is_empty() {
        match send_some(socket, bytes, None) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_transient(&error) => {
                network::wait_any(&[(socket, true)], Duration::from_millis(100))?;
                give_up()?;
                if super::clock::now() >= deadline {
                    return Err(Error::new(crate::ErrorKind::Timeout, "the other side does not listen"));
                }
            }
            Err(error) => return Err(Error::remote(format!("connection lost: {error}"))),
        }
    }
    Ok(())
}

/// Receives what is there, at most `buffer.len()` bytes, with a descriptor if one came along. 0 bytes: closed.
pub fn receive_with(stream: BorrowedFd<'_>, buffer: &mut [u8]) -> std::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut descriptor = None;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            descriptor = descriptors.into_iter().last().or(descriptor);
        }
    }
    Ok((message.bytes, descriptor))
}

/// Reads exactly `buffer.len()` bytes before `deadline`, asking `give_up` every tenth of a second.
/// A descriptor that comes along is returned.
pub fn receive_exact(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Option<OwnedFd>> {
    let mut filled = 0;
    let mut descriptor = None;
    while filled < buffer.len() {
        if !wait_readable(&[stream], Duration::from_millis(100))? {
            give_up()?;
            if super::clock::now() >= deadline {
                return Err(Error::new(crate::ErrorKind::Timeout, "no answer in time"));
            }
            continue;
        }
        match receive_with(stream, &mut buffer[filled..]) {
            Ok((0, _)) => return Err(Error::remote("the other side closed the connection")),
            Ok((count, extra)) => {
                filled += count;
                descriptor = extra.or(descriptor);
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                return Err(Error::new(crate::ErrorKind::Remote, format!("connection lost: {error}")));
            }
        }
    }
    Ok(descriptor)
}

/// True where a call should just be made again.
pub fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock)
}

/// Reads what is there without waiting; `None` when there is nothing yet.
pub fn read_some(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> std::io::Result<Option<usize>> {
    match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
        Ok((count, _)) => Ok(Some(count)),
        Err(errno) => {
            let error = std::io::Error::from(errno);
            if is_transient(&error) { Ok(None) } else { Err(error) }
        }
    }
}

/// The same, for one piece of memory and the next.
pub fn read_some_into(
    socket: BorrowedFd<'_>,
    first: &mut [u8],
    second: &mut [u8],
) -> std::io::Result<Option<usize>> {
    if second.is_empty() {
        return read_some(socket, first);
    }
    let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
    let mut none = RecvAncillaryBuffer::default();
    match rustix::net::recvmsg(socket, &mut pieces, &mut none, RecvFlags::DONTWAIT) {
        Ok(message) => Ok(Some(message.bytes)),
        Err(errno) => {
            let error = std::io::Error::from(errno);
            if is_transient(&error) { Ok(None) } else { Err(error) }
        }
    }
}

/// Writes what the socket takes of one piece and the next without waiting; `None` when it takes nothing now.
pub fn write_some(socket: BorrowedFd<'_>, first: &[u8], second: &[u8]) -> std::io::Result<Option<usize>> {
    let pieces = [IoSlice::new(first), IoSlice::new(second)];
    let from = usize::from(first.is_empty());
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &pieces[from..], &mut SendAncillaryBuffer::default(), flags) {
        Ok(count) => Ok(Some(count)),
        Err(errno) => {
            let error = std::io::Error::from(errno);
            if is_transient(&error) { Ok(None) } else { Err(error) }
        }
    }
}

/// Waits until one of the descriptors can be read (or has an error to tell); false when time is up.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool> {
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    let limit = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::system("cannot wait for a socket", errno)),
    }
}
