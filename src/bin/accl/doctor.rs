//! `accl doctor`: does this machine give the library what it needs? Each check says what was found, and what to do.

use std::ffi::{c_long, c_void};
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::library::Library;
use crate::topo::{Told, describe};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    /// What to do; empty where all is well.
    remedy: String,
}

#[derive(Debug, Serialize)]
struct Findings {
    state: State,
    checks: Vec<Check>,
}

/// What the library would tell others.
#[derive(Debug, Deserialize)]
struct Process {
    host: String,
    told: Vec<Told>,
    not_told: Vec<NotTold>,
    port: Option<u16>,
    port_error: Option<String>,
    tune_cache: Option<String>,
    rdma: Rdma,
}

/// What there is for RDMA.
#[derive(Debug, Deserialize)]
struct Rdma {
    used: Vec<String>,
    not_used: Vec<String>,
    /// What each peer takes for each port and kind of messages.
    locked_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct NotTold {
    interface: String,
    reason: String,
}

fn check(name: &'static str, state: State, found: impl Into<String>, remedy: &str) -> Check {
    let remedy = if state == State::Ok { String::new() } else { remedy.to_string() };
    Check { name, state, found: found.into(), remedy }
}

/// Prints the findings; false if something must be put right.
pub(crate) fn run(json: bool, library: Option<&Path>) -> Outcome<bool> {
    let mut checks = limits();
    checks.extend(library_says(library));
    checks.extend([memory_file(), pidfd(), cross_memory(), cores(), kernel()]);
    checks.extend(drivers());
    let state = checks.iter().map(|check| check.state).max().unwrap_or(State::Ok);
    let findings = Findings { state, checks };
    if json {
        let text = serde_json::to_string_pretty(&findings);
        println!("{}", text.map_err(|error| Failure::usage(error.to_string()))?);
    } else {
        for Check { name, state, found, remedy } in &findings.checks {
            let mark = match state {
                State::Ok => "ok  ",
                State::Warn => "warn",
                State::Fail => "FAIL",
            };
            println!("{mark}  {name}: {found}");
            if !remedy.is_empty() {
                println!("      {remedy}");
            }
        }
    }
    Ok(state != State::Fail)
}

/// Soft and hard limit.
fn limit(which: libc::__rlimit_resource_t) -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one struct.
    unsafe { libc::getrlimit(which, &raw mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

fn amount((soft, hard): (u64, u64)) -> String {
    let say = |value: u64| {
        if value == libc::RLIM_INFINITY { "unlimited".to_string() } else { value.to_string() }
    };
    format!("{} (at most {})", say(soft), say(hard))
}

/// `least` is needed at all, `enough` is enough for most.
fn grade(value: u64, least: u64, enough: u64) -> State {
    if value < least {
        State::Fail
    } else if value < enough {
        State::Warn
    } else {
        State::Ok
    }
}

fn limits() -> Vec<Check> {
    let files = limit(libc::RLIMIT_NOFILE);
    let threads = limit(libc::RLIMIT_NPROC);
    let space = limit(libc::RLIMIT_AS);
    vec![
        check(
            "open files",
            grade(files.0, 64, 1024),
            amount(files),
            "raise the limit (ulimit -n 65536): the process that makes the unique id of n ranks needs n of them, and about 50 \
             more, and each rank one for each connection",
        ),
        check(
            "processes",
            grade(threads.0, 16, 256),
            amount(threads),
            "raise the limit (ulimit -u 4096): each process has up to three threads of the library",
        ),
        check(
            "address space",
            grade(space.0, 1 << 30, 8 << 30),
            amount(space),
            "lift the limit (ulimit -v unlimited): the ranks of a communicator share up to 256 MiB of addresses on each host",
        ),
    ]
}

/// Ports, and the memory that may be locked for them.
fn rdma(found: &Rdma) -> [Check; 2] {
    let Rdma { used, not_used, locked_bytes } = found;
    let has_devices = !used.is_empty() || not_used.iter().any(|reason| reason.starts_with("port "));
    let text = match (used.is_empty(), not_used.is_empty()) {
        (false, true) => used.join(", "),
        (false, false) => format!("{}; not used: {}", used.join(", "), not_used.join("; ")),
        (true, _) => format!("none is used, so that data between hosts goes by TCP: {}", not_used.join("; ")),
    };
    let state = if used.is_empty() && has_devices { State::Warn } else { State::Ok };
    let locked = limit(libc::RLIMIT_MEMLOCK);
    let enough = used.is_empty() || locked.0 >= 64 * locked_bytes;
    let remedy = format!(
        "raise the limit (ulimit -l unlimited; in containers --ulimit memlock=-1): RDMA locks {} KiB for each peer, port and kind of messages, and \
         what cannot be locked goes by TCP",
        locked_bytes / 1024
    );
    [
        check(
            "RDMA ports",
            state,
            text,
            "put right what it says of each port, or set NCCL_IB_DISABLE=1 if they are not for this",
        ),
        check("locked memory", if enough { State::Ok } else { State::Warn }, amount(locked), &remedy),
    ]
}

/// Interfaces, port and figures, as the library sees them.
fn library_says(library: Option<&Path>) -> Vec<Check> {
    let asked = Library::open(library).and_then(|library| {
        let text = describe(&library, std::ptr::null_mut())?;
        let process: Process = serde_json::from_slice(&text)
            .map_err(|error| Failure::usage(format!("acclDescribe wrote no JSON: {error}")))?;
        Ok((library.path, process))
    });
    let (path, process) = match asked {
        Ok(found) => found,
        Err(failure) => {
            let remedy = "install the library beside this program or name it with --lib, and put right what it says of \
                          settings";
            return vec![check("library", State::Fail, failure.text, remedy)];
        }
    };
    let told: Vec<_> =
        process.told.iter().map(|one| format!("{} ({})", one.interface, one.address)).collect();
    let others: Vec<_> =
        process.not_told.iter().map(|one| format!("{}: {}", one.interface, one.reason)).collect();
    let only_loopback = process.told.iter().all(|one| one.interface == "lo");
    let port = match (process.port, process.port_error) {
        (Some(port), _) => check("TCP port", State::Ok, format!("{port} can be listened at"), ""),
        (None, error) => check(
            "TCP port",
            State::Fail,
            error.unwrap_or_default(),
            "let a port be listened at, or set ACCL_PORT_RANGE=first-last to ports that are free",
        ),
    };
    let [ports, locked] = rdma(&process.rdma);
    vec![
        check("library", State::Ok, path, ""),
        check(
            "interfaces that others are told",
            if only_loopback { State::Warn } else { State::Ok },
            if told.is_empty() {
                "none".to_string()
            } else {
                format!("{}: {}", process.host, told.join(", "))
            },
            "bring a network interface up, or choose one with NCCL_SOCKET_IFNAME: other hosts cannot reach this one",
        ),
        check(
            "other interfaces",
            State::Ok,
            if others.is_empty() { "none".to_string() } else { others.join("; ") },
            "",
        ),
        port,
        ports,
        locked,
        check(
            "figures of this machine",
            if process.tune_cache.is_some() { State::Ok } else { State::Warn },
            process.tune_cache.unwrap_or_else(|| "not measured since it was started".to_string()),
            "run accl-bench tune once, so that choices are made by this machine's figures",
        ),
    ]
}

fn memory_file() -> Check {
    // SAFETY: takes a text with its end, and a number.
    let file = unsafe { libc::memfd_create(c"accl-doctor".as_ptr(), libc::MFD_CLOEXEC) };
    let error = std::io::Error::last_os_error();
    if file < 0 {
        let remedy =
            "let the container's seccomp profile permit memfd_create: processes of a host share memory by it";
        return check("shared memory", State::Fail, format!("memfd_create: {error}"), remedy);
    }
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(file) };
    check("shared memory", State::Ok, "memfd_create works; /dev/shm holds records of accl status only", "")
}

fn pidfd() -> Check {
    // SAFETY: takes two numbers.
    let file = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    let error = std::io::Error::last_os_error();
    if file < 0 {
        let remedy =
            "use Linux 5.3 or later, and let seccomp permit pidfd_open: a peer that dies is noticed by it";
        return check("watching processes", State::Warn, format!("pidfd_open: {error}"), remedy);
    }
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(file as i32) };
    check("watching processes", State::Ok, "pidfd_open works", "")
}

/// A word that [`probe`] reads from another process.
static WORD: u64 = 0x6163_636c_2d70_726f;

/// Has another process of this program read this one's memory, as a rank reads that of another.
fn cross_memory() -> Check {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scope =
        if scope.is_empty() { "no yama".to_string() } else { format!("ptrace_scope {}", scope.trim()) };
    let (pid, address) = (std::process::id().to_string(), (&raw const WORD as usize).to_string());
    let read = std::env::current_exe()
        .and_then(|program| Command::new(program).args(["doctor-probe", &pid, &address]).output());
    match read {
        Ok(output) if output.status.success() => check(
            "reading other processes' memory",
            State::Ok,
            format!("process_vm_readv works ({scope})"),
            "",
        ),
        _ => check(
            "reading other processes' memory",
            State::Warn,
            format!("process_vm_readv is not permitted ({scope})"),
            "sysctl kernel.yama.ptrace_scope=0, or the capability SYS_PTRACE for the container: data between processes is \
             copied twice without it",
        ),
    }
}

/// The other process: true if the word can be read.
pub(crate) fn probe(pid: i32, address: usize) -> bool {
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: size_of::<u64>() };
    // SAFETY: writes at most one word, into `word`.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    read == size_of::<u64>() as isize && word == WORD
}

fn cores() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: takes a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1 as c_long) as usize;
    let quota = std::fs::read_to_string("/sys/fs/cgroup/cpu.max").unwrap_or_default();
    let quota = if quota.is_empty() || quota.starts_with("max") {
        "no quota".to_string()
    } else {
        format!("cpu.max {}", quota.trim())
    };
    let found = format!("{cores} of {online} usable ({quota})");
    let state = if cores < 2 { State::Warn } else { State::Ok };
    check("cores", state, found, "give this process more cores: ranks that share one take turns")
}

fn kernel() -> Check {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let state = if version >= (5, 6) { State::Ok } else { State::Warn };
    check(
        "kernel",
        state,
        release.trim(),
        "use Linux 5.6 or later: memory of ncclMemAlloc is shared by pidfd_getfd",
    )
}

fn drivers() -> Vec<Check> {
    let look = |name: &'static str, files: [&str; 2]| {
        let directories = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/lib",
            "/lib/x86_64-linux-gnu",
        ];
        let paths = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let all = paths.split(':').filter(|path| !path.is_empty()).chain(directories);
        let found = all.flat_map(|at| files.map(|file| Path::new(at).join(file))).find(|path| path.exists());
        let found = found.map_or_else(|| "not present".to_string(), |path| path.display().to_string());
        // None is needed: data is in host memory.
        check(name, State::Ok, found, "")
    };
    vec![
        look("CUDA driver", ["libcuda.so.1", "libcuda.so"]),
        look("PPU driver", ["libhggc.so", "libhggc.so.1"]),
        look("RDMA verbs", ["libibverbs.so.1", "libibverbs.so"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_graded() {
        assert_eq!(
            [grade(63, 64, 1024), grade(64, 64, 1024), grade(1024, 64, 1024)],
            [State::Fail, State::Warn, State::Ok]
        );
        assert_eq!(amount((5, libc::RLIM_INFINITY)), "5 (at most unlimited)");
        assert_eq!(check("a", State::Ok, "b", "c").remedy, "");
    }

    #[test]
    fn ports_and_locked_memory_are_graded_together() {
        let of = |used: &[&str], not_used: &[&str], locked_bytes| {
            let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect();
            rdma(&Rdma { used: texts(used), not_used: texts(not_used), locked_bytes })
        };
        let [ports, locked] = of(&[], &["libibverbs.so.1 cannot be loaded"], u64::MAX / 64);
        assert_eq!(
            [ports.state, locked.state],
            [State::Ok; 2],
            "nothing is missing where there is no device"
        );
        let [ports, _] = of(&[], &["port x:1 is down; see its cable"], 1);
        assert_eq!(ports.state, State::Warn);
        assert!(ports.found.contains("goes by TCP: port x:1 is down; see its cable"), "{}", ports.found);
        let [ports, locked] = of(&["x:1/RoCE<10.0.0.1>"], &["port x:2 is down"], 1);
        assert_eq!((ports.state, locked.state), (State::Ok, State::Ok));
        assert_eq!(ports.found, "x:1/RoCE<10.0.0.1>; not used: port x:2 is down");
        if limit(libc::RLIMIT_MEMLOCK).0 != libc::RLIM_INFINITY {
            let [_, locked] = of(&["x:1"], &[], u64::MAX / 64);
            assert!(
                locked.state == State::Warn && locked.remedy.contains("ulimit -l unlimited"),
                "{locked:?}"
            );
        }
    }

    #[test]
    fn a_process_reads_its_own_word() {
        assert!(probe(std::process::id() as i32, &raw const WORD as usize));
        assert!(!probe(std::process::id() as i32, 8));
    }
}
