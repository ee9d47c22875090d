//! Processes: who we are, whether another one lives, and reading another one's memory.
//!
//! # Safety
//! Reading a foreign process copies into memory that the caller vouches for through [`read_memory`]'s contract. The
//! page behind [`id`] is an atomic of ours and nothing else.
#![allow(unsafe_code)]

use super::mapping::Mapping;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// This process's id, in its own PID namespace. Without a system call, and right in a forked child: the number is
/// kept in a page that the kernel clears there.
pub fn id() -> u32 {
    static PAGE: OnceLock<Option<Mapping>> = OnceLock::new();
    let page = PAGE.get_or_init(|| Mapping::anonymous(4096).ok().filter(Mapping::zero_in_children));
    let Some(page) = page else { return std::process::id() };
    // SAFETY: the page is mapped for as long as the process lives, is aligned, and nothing else uses it.
    let kept = unsafe { &*page.start().cast::<AtomicU32>() };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            kept.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A number that tells PID namespaces apart: the inode of `/proc/self/ns/pid`, or 0 where it cannot be read.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino)
}

/// True if `error` says nothing of the file: the system lacked a descriptor or memory, and may have them later.
pub fn lacks_resources(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO))
}

/// A watch on another process that does not confuse it with a later one of the same number, nor with the program that it may
/// become by `exec`.
#[derive(Debug)]
pub struct Watch {
    pid: u32,
    process: OwnedFd,
    /// None where the system does not show it: then a successor passes for the program.
    program: Option<Arc<Program>>,
}

impl Watch {
    /// Starts watching the program that calls itself `program`, with process number `pid`; `None` where the kernel cannot, an error
    /// (Remote) if the process is gone already.
    pub fn open(pid: u32, program: u64) -> Result<Option<Self>> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self { pid, process, program: Program::open(pid, program)? })),
            Err(Errno::NOSYS | Errno::PERM) => Ok(None),
            Err(Errno::SRCH) => Err(Error::remote(format!("process {pid} ended"))),
            Err(errno) => Err(Error::system(format!("cannot watch process {pid}"), errno)),
        }
    }

    /// A copy of the process's descriptor `number`, where the kernel allows that: to those who may read its memory.
    pub fn descriptor(&self, number: u64) -> Option<OwnedFd> {
        let number = i32::try_from(number).ok()?;
        rustix::process::pidfd_getfd(&self.process, number, PidfdGetfdFlags::empty()).ok()
    }

    /// For waiting: it can be read once the process has ended.
    pub fn descriptor_of_process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// True once the process has ended (even if its parent has not waited for it yet).
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.process, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1..))
    }

    /// What has become of the program, if it is not there any more. Takes microseconds: not for the path of an operation.
    pub fn fate(&self) -> Option<Fate> {
        let gone = self.program.as_ref().is_some_and(|program| program.is_gone());
        // A process that ends loses its memory first. One that has other memory is another program, if it is still the same process.
        let replaced = gone && look_at(self.pid).is_some_and(|sight| sight.has_memory);
        if self.has_ended() {
            return Some(Fate::Ended);
        }
        replaced.then_some(Fate::Replaced)
    }
}

/// What has become of a program that is not there any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Its process has ended.
    Ended,
    /// Its process has become another program (`exec`).
    Replaced,
}

impl std::fmt::Display for Fate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Ended => "ended",
            Self::Replaced => "became another program (exec)",
        })
    }
}

/// A program of another process, as `/proc/PID/maps` shows it: the kernel ties an open one to the memory of that time, and has nothing to
/// say of it any more once that memory is gone.
#[derive(Debug)]
struct Program(File);

/// Programs by their process's number and what they call themselves.
type Known = HashMap<(u32, u64), Weak<Program>>;

impl Program {
    /// The one that all watches of this process share, so that a program costs one descriptor, however many communicators there are.
    fn open(pid: u32, program: u64) -> Result<Option<Arc<Self>>> {
        static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
        // In a forked child it may be locked for ever: then nothing is shared.
        let mut known = KNOWN.try_lock_for(Duration::from_millis(100));
        let mut known = known.as_mut().map(|known| known.get_or_insert_default());
        if let Some(known) = &mut known {
            if let Some(program) = known.get(&(pid, program)).and_then(Weak::upgrade) {
                return Ok(Some(program));
            }
            known.retain(|_, program| program.strong_count() > 0);
        }
        match File::open(format!("/proc/{pid}/maps")) {
            Ok(file) => {
                let opened = Arc::new(Self(file));
                // It may show nothing from the beginning: of a process whose first thread has ended, say.
                let shown = !opened.is_gone();
                if let Some(known) = known.filter(|_| shown) {
                    known.insert((pid, program), Arc::downgrade(&opened));
                }
                Ok(shown.then_some(opened))
            }
            Err(error) if lacks_resources(&error) => {
                Err(Error::system(format!("cannot watch process {pid}"), error))
            }
            Err(_) => Ok(None),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.0.read_at(&mut [0], 0), Ok(0))
    }
}

/// What `/proc` says of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sight {
    /// The letter of its state: `T` or `t` is stopped, `Z` has ended and nobody has waited for it.
    pub state: char,
    /// When it began, in clock ticks since the boot: with its number, that tells it from a later one of the same number.
    pub start: u64,
    /// False once it is about to end.
    pub has_memory: bool,
}

impl Sight {
    /// True if it is stopped (by SIGSTOP, say).
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Looks at process `pid` of this PID namespace; none if there is no such process, or no `/proc`.
pub fn look_at(pid: u32) -> Option<Sight> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The state follows the command's closing parenthesis, which may itself hold spaces and parentheses.
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some(Sight { state, start, has_memory: fields.next()? != "0" })
}

/// True if the process is known to be stopped.
pub fn is_stopped(pid: u32) -> bool {
    look_at(pid).is_some_and(|sight| sight.is_stopped())
}

/// The user as whom this process acts: who owns the files that it makes.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Copies `bytes` from `address` of process `pid`; returns how many arrived, or the system's error number.
///
/// # Safety
/// `destination` must be valid for writes of `bytes`.
pub unsafe fn read_memory(
    pid: u32,
    address: u64,
    destination: *mut u8,
    bytes: usize,
) -> std::result::Result<usize, i32> {
    let local = libc::iovec { iov_base: destination.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
    // SAFETY: `local` is writable by this function's contract; `remote` is checked by the kernel.
    let count =
        unsafe { libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The same for network namespaces.
pub fn network_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/net").map_or(0, |status| status.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_systems() {
        assert_eq!([id(), id()], [std::process::id(); 2]);
    }

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = look_at(id()).unwrap();
        assert_eq!((own.is_stopped(), own.state), (false, look_at(id()).unwrap().state));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(look_at(child.id()).unwrap().start >= own.start);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(look_at(child.id()).filter(|sight| sight.state != 'Z'), None);
    }

    #[test]
    fn who_is_gone_cannot_be_watched_and_that_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let watch = Watch::open(child.id(), 1).unwrap().unwrap();
        child.wait().unwrap();
        assert!(watch.has_ended());
        assert_eq!(watch.fate(), Some(Fate::Ended));
        let gone = Watch::open(child.id(), 1).unwrap_err();
        assert_eq!(gone.kind(), crate::ErrorKind::Remote);
        let own = Watch::open(id(), 1).unwrap().unwrap();
        assert_eq!((own.has_ended(), own.fate()), (false, None));
    }

    #[test]
    fn a_process_that_becomes_another_program_is_told_from_one_that_ends() {
        use std::io::{Read, Write};
        // The shell becomes what it reads from, when it is told to.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo here; read line; exec cat"]);
        let piped = std::process::Stdio::piped;
        let mut child = command.stdin(piped()).stdout(piped()).spawn().unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        output.read_exact(&mut [0; 5]).unwrap();
        let watches = [0; 2].map(|_| Watch::open(child.id(), 7).unwrap().unwrap());
        assert!(Arc::ptr_eq(watches[0].program.as_ref().unwrap(), watches[1].program.as_ref().unwrap()));
        assert_eq!(watches[0].fate(), None);
        input.write_all(b"go on\nthere").unwrap();
        output.read_exact(&mut [0; 5]).unwrap();
        assert_eq!((watches[0].fate(), watches[0].has_ended()), (Some(Fate::Replaced), false));
        // As the one that it has become, it is there.
        assert_eq!(Watch::open(child.id(), 8).unwrap().unwrap().fate(), None);
        drop(input);
        child.wait().unwrap();
        assert_eq!(watches[0].fate(), Some(Fate::Ended));
    }
}
