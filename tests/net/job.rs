//! Ranks on hosts: each a process that runs one scenario of this test program. Rank 0 makes the id and hands it to the
//! others by a file.

use super::namespaces::Net;
use super::support::api::{Api, Comm, UniqueId, api};
use super::support::cluster::LIBRARY;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SCENARIO: &str = "NET_SCENARIO";
const RANK: &str = "NET_RANK";
const FILE: &str = "NET_ID_FILE";
const ARGUMENT: &str = "NET_ARGUMENT";
/// How long a test may take at most; what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(90);

/// What a scenario is given.
#[derive(Clone)]
pub(crate) struct Rank {
    pub(crate) api: &'static Api,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    file: PathBuf,
}

pub(crate) type Scenario = fn(Rank);

impl Rank {
    /// The id that all ranks share. Rank 0 panics if it cannot be made.
    pub(crate) fn id(&self) -> UniqueId {
        if self.rank == 0 {
            let id = self.api.unique_id();
            self.publish(&id);
            return id;
        }
        self.published_id()
    }

    /// The id that rank 0 hands out, once it has.
    pub(crate) fn published_id(&self) -> UniqueId {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Ok(bytes) = std::fs::read(&self.file) {
                return UniqueId(bytes.try_into().unwrap());
            }
            assert!(Instant::now() < deadline, "rank 0 made no id");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the test wants this scenario to be like.
    pub(crate) fn argument(&self) -> String {
        std::env::var(ARGUMENT).unwrap_or_default()
    }

    /// Tells the test that this rank has come so far.
    pub(crate) fn ready(&self) {
        std::fs::write(ready_file(&self.file, self.rank), []).unwrap();
    }

    /// Waits until the test says so.
    pub(crate) fn wait_go(&self) {
        wait_ready(&self.file, &[self.ranks]);
    }

    /// Tells the others that what they wait for is over.
    pub(crate) fn finished(&self) {
        std::fs::write(ready_file(&self.file, self.ranks + 1), []).unwrap();
    }

    /// Waits until one of them has told so.
    pub(crate) fn wait_finished(&self) {
        wait_ready(&self.file, &[self.ranks + 1]);
    }

    /// Waits until other ranks have told that they are ready.
    pub(crate) fn wait_ready(&self, ranks: &[usize]) {
        wait_ready(&self.file, ranks);
    }

    /// Makes an id; the result code.
    pub(crate) fn make_id(&self) -> c_int {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a call of the C interface with a place for its result.
        unsafe { (self.api.ncclGetUniqueId)(&raw mut id) }
    }

    /// Hands an id to all ranks.
    pub(crate) fn publish(&self, id: &UniqueId) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, id.0).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    /// Joins all ranks; the result code, if that is an error.
    pub(crate) fn try_join(&self, id: UniqueId) -> Result<Comm, c_int> {
        let mut comm: Comm = std::ptr::null_mut();
        // SAFETY: a call of the C interface with a place for its result.
        let code = unsafe {
            (self.api.ncclCommInitRank)(&raw mut comm, self.ranks as c_int, id, self.rank as c_int)
        };
        if code == 0 { Ok(comm) } else { Err(code) }
    }

    /// Joins all ranks, which must succeed.
    pub(crate) fn join(&self, id: UniqueId) -> Comm {
        self.try_join(id).unwrap_or_else(|code| panic!("code {code}: {}", self.api.error_text()))
    }
}

/// How a rank ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// Ranks that are to be started.
pub(crate) struct Job<'a> {
    net: &'a Net,
    scenario: &'a str,
    hosts: Vec<usize>,
    environment: Vec<(Option<usize>, String, String)>,
    /// What each rank has for itself, as options of `unshare`.
    apart: String,
    /// What hosts call themselves, if not as usual.
    names: Option<[String; 2]>,
    file: PathBuf,
}

/// A process on a host; killed when this is dropped.
pub(crate) struct Process(Option<Child>);

impl<'a> Job<'a> {
    /// Rank i runs on host `hosts[i]`.
    pub(crate) fn new(net: &'a Net, scenario: &'a str, hosts: &[usize]) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("accl-net-{}-{number}", std::process::id()));
        Self {
            net,
            scenario,
            hosts: hosts.to_vec(),
            environment: Vec::new(),
            apart: String::new(),
            names: None,
            file,
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((None, name.to_string(), value.to_string()));
        self
    }

    /// What the scenario is to be like.
    pub(crate) fn argument(self, argument: &str) -> Self {
        self.env(ARGUMENT, argument)
    }

    /// Gives each rank namespaces of its own, by options of `unshare`.
    pub(crate) fn apart(mut self, options: &str) -> Self {
        self.apart = options.to_string();
        self
    }

    /// Gives the two hosts these names.
    pub(crate) fn named(mut self, one: &str, other: &str) -> Self {
        self.names = Some([one.to_string(), other.to_string()]);
        self
    }

    /// Starts all ranks, and waits until they are ready.
    pub(crate) fn start_all(&self) -> Vec<Process> {
        let processes: Vec<_> = (0..self.hosts.len()).map(|rank| self.start(rank)).collect();
        wait_ready(&self.file, &(0..self.hosts.len()).collect::<Vec<_>>());
        processes
    }

    /// Waits until these ranks are ready.
    pub(crate) fn await_ready(&self, ranks: &[usize]) {
        wait_ready(&self.file, ranks);
    }

    /// Lets ranks go on that wait for it.
    pub(crate) fn go(&self) {
        std::fs::write(ready_file(&self.file, self.hosts.len()), []).unwrap();
    }

    /// On one host alone.
    pub(crate) fn env_on(mut self, host: usize, name: &str, value: &str) -> Self {
        self.environment.push((Some(host), name.to_string(), value.to_string()));
        self
    }

    /// Starts all ranks, and waits for their ends.
    pub(crate) fn run(&self) -> Vec<Ended> {
        let processes: Vec<_> = (0..self.hosts.len()).map(|rank| self.start(rank)).collect();
        processes.into_iter().map(Process::end).collect()
    }

    /// Starts one rank.
    pub(crate) fn start(&self, rank: usize) -> Process {
        self.start_as(self.scenario, self.hosts[rank], rank)
    }

    /// Starts a process that runs another scenario, on any host.
    pub(crate) fn start_as(&self, scenario: &str, host: usize, rank: usize) -> Process {
        let mut command: Command = self.net.command(host);
        if let Some(names) = &self.names {
            let script = format!("echo {} > /proc/sys/kernel/hostname; exec \"$0\" \"$@\"", names[host]);
            command.args(["sh", "-c", &script]);
        }
        if !self.apart.is_empty() {
            command.arg("unshare").args(self.apart.split_whitespace());
        }
        command.arg(std::env::current_exe().unwrap());
        command.args(["worker", "--exact", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars() {
            if ["ACCL_", "PCCL_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env(SCENARIO, scenario).env(RANK, format!("{rank},{}", self.hosts.len()));
        command.env(FILE, &self.file).env(LIBRARY, super::support::libraries().join("libnccl.so"));
        let here = self.environment.iter().filter(|(on, ..)| on.is_none_or(|on| on == host));
        command.envs(here.map(|(_, name, value)| (name, value)));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        Process(Some(child.unwrap()))
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        for rank in 0..=self.hosts.len() + 1 {
            let _ = std::fs::remove_file(ready_file(&self.file, rank));
        }
    }
}

fn ready_file(file: &Path, rank: usize) -> PathBuf {
    file.with_extension(format!("ready{rank}"))
}

fn wait_ready(file: &Path, ranks: &[usize]) {
    let deadline = Instant::now() + LIMIT;
    while !ranks.iter().all(|rank| ready_file(file, *rank).exists()) {
        assert!(Instant::now() < deadline, "a rank did not become ready");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Process {
    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// True if it is stopped by a signal.
    pub(crate) fn is_stopped(&self) -> bool {
        let line = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: c_int) {
        // SAFETY: a child of ours, that nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, signal) }, 0);
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let mut child = self.0.take().unwrap();
        let deadline = Instant::now() + LIMIT;
        let mut late = false;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                late = true;
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!late, "not over after {LIMIT:?}\n{stderr}");
        Ended { code: output.status.code(), stderr }
    }
}

/// Waits for all of them.
pub(crate) fn end_all(processes: Vec<Process>) -> Vec<Ended> {
    processes.into_iter().map(Process::end).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Panics with what they wrote if one of them failed.
#[track_caller]
pub(crate) fn assert_success(ended: &[Ended]) {
    for (rank, end) in ended.iter().enumerate() {
        assert!(end.code == Some(0), "rank {rank} ended with {:?}:\n{}", end.code, end.stderr);
    }
}

/// The body of the test program's `worker`.
pub(crate) fn work(tables: &[&[(&str, Scenario)]]) {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let mut known = tables.iter().flat_map(|table| table.iter());
    let scenario = known.find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1;
    let shape = std::env::var(RANK).unwrap();
    let (rank, ranks) = shape.split_once(',').unwrap();
    let file = PathBuf::from(std::env::var(FILE).unwrap());
    scenario(Rank { api: api(), rank: rank.parse().unwrap(), ranks: ranks.parse().unwrap(), file });
}
