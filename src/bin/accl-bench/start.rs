//! Rank processes of our own: started from this program's file, watched, and ended.

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

use crate::failure::{Exit, Failure, Outcome};
use crate::hub::Event;
use crate::link::{Reader, Socket, Writer};
use crate::page::Page;

/// Tells a process which ranks it is: "first:threads:ranks:page descriptor:socket descriptor,…".
const VARIABLE: &str = "ACCL_BENCH_RANKS";

/// The processes that we started.
#[derive(Debug)]
pub(crate) struct Processes(Vec<Process>);

#[derive(Debug)]
struct Process {
    child: Child,
    ranks: Range<usize>,
    ended: bool,
}

impl Processes {
    /// Takes note that a process has ended; returns its id and ranks.
    pub(crate) fn note_exit(&mut self, process: usize) -> (u32, Range<usize>) {
        let process = &mut self.0[process];
        process.ended = true;
        (process.child.id(), process.ranks.clone())
    }

    pub(crate) fn all_ended(&self) -> bool {
        self.0.iter().all(|process| process.ended)
    }

    fn signal(&self, signal: i32) {
        for process in self.0.iter().filter(|process| !process.ended) {
            // SAFETY: The process has not been waited for, so the number is still its own.
            unsafe { libc::kill(process.child.id() as libc::pid_t, signal) };
        }
    }

    /// Asks all to end, also those that are stopped.
    pub(crate) fn ask_to_end(&mut self) {
        self.signal(libc::SIGTERM);
        self.signal(libc::SIGCONT);
    }

    /// Ends those that are left, and waits for all.
    pub(crate) fn end(mut self) {
        self.signal(libc::SIGKILL);
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
}

/// All that a hub needs of ranks started here.
#[allow(missing_debug_implementations, reason = "holds boxed readers")]
pub(crate) struct Started {
    pub(crate) processes: Processes,
    pub(crate) connections: Vec<(Reader, Writer)>,
}

/// Starts `processes` processes of `threads` ranks each.
pub(crate) fn start(processes: usize, threads: usize, events: &Sender<Event>) -> Outcome<Started> {
    let refuse = |error: std::io::Error| Failure::new(Exit::Died, format!("cannot start the ranks: {error}"));
    let ranks = processes * threads;
    let page = Page::create(ranks).map_err(refuse)?;
    let mut started = Started { processes: Processes(Vec::new()), connections: Vec::new() };
    for number in 0..processes {
        let first = number * threads;
        let mut theirs = Vec::new();
        for _ in 0..threads {
            let (here, there) = UnixStream::pair().map_err(refuse)?;
            started.connections.push(Socket::Unix(here).halves().map_err(refuse)?);
            theirs.push(there);
        }
        let child = spawn(first, ranks, &page, &theirs).map_err(refuse)?;
        let pid = child.id();
        started.processes.0.push(Process { child, ranks: first..first + threads, ended: false });
        let events = events.clone();
        std::thread::Builder::new()
            .name("bench-wait".into())
            .spawn(move || {
                let how = wait_for(pid);
                let _ = events.send(Event::Exited { process: number, how });
            })
            .map_err(refuse)?;
    }
    Ok(started)
}

fn spawn(first: usize, ranks: usize, page: &Page, sockets: &[UnixStream]) -> std::io::Result<Child> {
    let mut inherited: Vec<RawFd> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
    let names: Vec<String> = inherited.iter().map(ToString::to_string).collect();
    let value = format!("{first}:{}:{ranks}:{}:{}", sockets.len(), page.descriptor(), names.join(","));
    inherited.push(page.descriptor());
    let mut words = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    // The same name, for a name may say which test to run.
    command.arg0(words.next().unwrap_or_else(|| "accl-bench".into())).args(words).env(VARIABLE, value);
    // Whatever the library prints goes to stderr: stdout is for the table.
    command.stdin(Stdio::null()).stdout(std::io::stderr().try_clone_to_owned()?);
    let parent = std::process::id() as libc::pid_t;
    let prepare = move || {
        for &descriptor in &inherited {
            // SAFETY: Only takes numbers. In the child alone is the descriptor kept across exec.
            if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        // SAFETY: Only takes numbers. A rank never outlives us, and ^C at the terminal is ours to handle.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            libc::signal(libc::SIGTERM, libc::SIG_DFL);
            if libc::getppid() != parent {
                libc::_exit(Exit::Died as i32);
            }
        }
        Ok(())
    };
    // SAFETY: Between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

trait ToOwnedStdio {
    fn try_clone_to_owned(&self) -> std::io::Result<Stdio>;
}

impl ToOwnedStdio for std::io::Stderr {
    fn try_clone_to_owned(&self) -> std::io::Result<Stdio> {
        use std::os::fd::AsFd as _;
        Ok(Stdio::from(self.as_fd().try_clone_to_owned()?))
    }
}

/// Waits for the end without reaping, so that the number stays taken until [`Processes::end`].
fn wait_for(pid: u32) -> String {
    loop {
        // SAFETY: Zeroes are a valid siginfo, which the call fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: The process is our child.
        let code = unsafe { libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT) };
        if code != 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            return format!("cannot be waited for: {error}");
        }
        // SAFETY: After waitid the struct holds a child's status.
        let status = unsafe { info.si_status() };
        return match info.si_code {
            libc::CLD_EXITED => format!("ended early, with exit code {status}"),
            _ => format!("was killed by signal {status} ({})", signal_name(status)),
        };
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGPIPE => "SIGPIPE",
        _ => "see signal(7)",
    }
}

/// What a started process learns from its environment.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) first: usize,
    pub(crate) ranks: usize,
    pub(crate) page: Page,
    pub(crate) sockets: Vec<UnixStream>,
}

/// This process's part, if it is a rank process.
pub(crate) fn assignment() -> Outcome<Option<Assignment>> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
    let wrong =
        || Failure::usage(format!("{VARIABLE}={text}: that variable is between this program and itself"));
    let (numbers, descriptors) = text.rsplit_once(':').ok_or_else(wrong)?;
    let numbers: Vec<usize> =
        numbers.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let &[first, threads, ranks, page] = numbers.as_slice() else { return Err(wrong()) };
    let descriptors: Vec<RawFd> =
        descriptors.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let open = |descriptor: RawFd| {
        // SAFETY: Only takes numbers; also closes the way to programs that the library might start.
        descriptor > 2 && unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } == 0
    };
    let page_descriptor = page as RawFd;
    if descriptors.len() != threads || !descriptors.iter().chain([&page_descriptor]).all(|&one| open(one)) {
        return Err(wrong());
    }
    let page = Page::inherited(page_descriptor, ranks).map_err(|_| wrong())?;
    // SAFETY: The parent opened each for this process alone.
    let socket = |descriptor| UnixStream::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(Some(Assignment { first, ranks, page, sockets: descriptors.into_iter().map(socket).collect() }))
}
