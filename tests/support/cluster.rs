//! Ranks for tests: processes, threads, or both, all running one scenario.
//!
//! A test file has a table of scenarios and a test `worker` that calls [`work`]. [`Cluster::run`] starts the test
//! program itself again, once for each process, with the scenario's name in the environment; `worker` then runs
//! it on each of the process's threads. A scenario fails by panicking.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::api::{Api, Comm, UniqueId, api};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCENARIO: &str = "TEST_SCENARIO";
const SHAPE: &str = "TEST_SHAPE";
const IDS: &str = "TEST_IDS";
const ARGUMENT: &str = "TEST_ARGUMENT";
pub const LIBRARY: &str = "TEST_LIBRARY";

/// What a scenario is given.
#[derive(Clone, Copy)]
pub struct Rank {
    pub api: &'static Api,
    pub rank: usize,
    pub ranks: usize,
    /// Ids that all ranks have in common.
    pub ids: &'static [UniqueId],
    /// Whatever the test wants to tell.
    pub argument: &'static str,
}

impl Rank {
    /// A communicator of all ranks, by the first id.
    pub fn join(&self) -> Comm {
        self.api.init(self.ranks, self.ids[0], self.rank)
    }
}

pub type Scenario = fn(Rank);

/// A job in which nothing goes wrong.
pub fn plain(rank: Rank) {
    let comm = rank.join();
    assert_eq!(rank.api.sum(1, comm), rank.ranks as i32);
    rank.api.destroy(comm);
}

/// How ranks are laid out, and what they see.
#[derive(Clone)]
pub struct Cluster {
    processes: usize,
    threads: usize,
    ids: usize,
    argument: String,
    environment: Vec<(String, String)>,
    /// The same for one process.
    own_environment: Vec<(usize, String, String)>,
    hosts: Option<usize>,
    /// The commands that start processes, in turn; none starts them as they are.
    places: Vec<Vec<OsString>>,
    /// Where the first one can be met by those that are elsewhere.
    address: Option<String>,
    /// Where process n puts its standard output, as the file `n`; none throws it away.
    output: Option<PathBuf>,
    limit: Duration,
}

/// How one process ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stderr: String,
}

impl Cluster {
    /// `processes` with `threads` ranks each; rank = process + thread · processes.
    pub fn new(processes: usize, threads: usize) -> Self {
        let limit = Duration::from_secs(120);
        Self {
            processes,
            threads,
            ids: 1,
            argument: String::new(),
            environment: Vec::new(),
            own_environment: Vec::new(),
            hosts: None,
            places: Vec::new(),
            address: None,
            output: None,
            limit,
        }
    }

    pub fn ids(mut self, ids: usize) -> Self {
        self.ids = ids;
        self
    }

    pub fn argument(mut self, argument: impl ToString) -> Self {
        self.argument = argument.to_string();
        self
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_string(), value.to_string()));
        self
    }

    /// A variable of one process.
    pub fn env_of(mut self, process: usize, name: &str, value: impl ToString) -> Self {
        self.own_environment.push((process, name.to_string(), value.to_string()));
        self
    }

    /// Has the processes take themselves for those of so many hosts, in turn.
    pub fn hosts(mut self, hosts: usize) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// Starts the processes by these commands, in turn; the first one can be met at `address` (ip:port).
    pub fn places(mut self, commands: impl Iterator<Item = Command>, address: &str) -> Self {
        self.places = commands.map(|command| words(&command)).collect();
        self.address = Some(address.to_string());
        self
    }

    /// Starts all processes by this command, on this host.
    pub fn by(mut self, command: &Command) -> Self {
        self.places = vec![words(command)];
        self
    }

    /// Keeps what processes write on standard output: process n in the file `n` of this directory.
    pub fn output(mut self, directory: &Path) -> Self {
        self.output = Some(directory.to_path_buf());
        self
    }

    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs a scenario; every process must succeed. Returns what they wrote on standard error.
    #[track_caller]
    pub fn run(&self, scenario: &str) -> Vec<String> {
        let ended = self.run_to_end(scenario);
        for (process, end) in ended.iter().enumerate() {
            assert!(
                end.code == Some(0),
                "{scenario}: process {process} ended with {:?}:\n{}",
                end.code,
                end.stderr
            );
        }
        ended.into_iter().map(|end| end.stderr).collect()
    }

    /// Runs a scenario, and says how each process ended.
    #[track_caller]
    pub fn run_to_end(&self, scenario: &str) -> Vec<Ended> {
        // The ids' creator lives until all have ended.
        let ids: Vec<String> = (0..self.ids).map(|_| hex(&api().unique_id())).collect();
        let mut children: Vec<Child> =
            (0..self.processes).map(|process| self.start(scenario, process, &ids.join(","))).collect();
        let deadline = Instant::now() + self.limit;
        while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
            if Instant::now() > deadline {
                let mut texts = String::new();
                for child in &mut children {
                    let _ = child.kill();
                }
                for child in children {
                    texts.push_str(&String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr));
                }
                panic!("{scenario}: not over after {:?}\n{texts}", self.limit);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        children
            .into_iter()
            .map(|child| {
                let output = child.wait_with_output().unwrap();
                Ended {
                    code: output.status.code(),
                    stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
                }
            })
            .collect()
    }

    fn start(&self, scenario: &str, process: usize, ids: &str) -> Child {
        let exe = std::env::current_exe().unwrap();
        let mut words = self.places.get(process % self.places.len().max(1)).cloned().unwrap_or_default();
        words.push(exe.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.args(["worker", "--exact", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars() {
            if ["ACCL_", "PCCL_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env(SCENARIO, scenario).env(SHAPE, format!("{process},{},{}", self.processes, self.threads));
        command.env(IDS, ids).env(ARGUMENT, &self.argument);
        command.env(LIBRARY, super::libraries().join("libnccl.so"));
        // What somebody has measured on this machine is not what tests are about.
        command.env("XDG_CACHE_HOME", super::root().join("target/tmp/nothing"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let own = self.own_environment.iter().filter(|(of, ..)| *of == process);
        command.envs(own.map(|(_, name, value)| (name, value)));
        if let Some(address) = &self.address {
            command.env("NCCL_COMM_ID", address);
        }
        if let Some(hosts) = self.hosts {
            command.env("NCCL_HOSTID", format!("host {}", process % hosts));
        }
        let output = self.output.as_ref().map(|to| File::create(to.join(process.to_string())).unwrap());
        command.stdin(Stdio::null()).stdout(output.map_or_else(Stdio::null, Stdio::from));
        command.stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// A command and its arguments.
fn words(command: &Command) -> Vec<OsString> {
    let arguments = command.get_args().map(OsString::from);
    std::iter::once(command.get_program().to_owned()).chain(arguments).collect()
}

/// The body of a test file's `worker`: runs the scenario that the environment names, if it names one.
pub fn work(scenarios: &[(&str, Scenario)]) {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let scenario =
        scenarios.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1;
    let shape: Vec<usize> =
        std::env::var(SHAPE).unwrap().split(',').map(|number| number.parse().unwrap()).collect();
    let (process, processes, threads) = (shape[0], shape[1], shape[2]);
    let ids: Vec<UniqueId> = match std::env::var("NCCL_COMM_ID") {
        // What the test's own process made says nothing to processes elsewhere.
        Ok(_) => vec![api().unique_id()],
        Err(_) => std::env::var(IDS).unwrap().split(',').map(unhex).collect(),
    };
    let argument = std::env::var(ARGUMENT).unwrap_or_default();
    let (ids, argument): (&'static [UniqueId], &'static str) = (ids.leak(), argument.leak());
    let rank = |thread| Rank {
        api: api(),
        rank: process + thread * processes,
        ranks: processes * threads,
        ids,
        argument,
    };
    if threads == 1 {
        scenario(rank(0));
        return;
    }
    let started: Vec<_> =
        (0..threads).map(rank).map(|rank| std::thread::spawn(move || scenario(rank))).collect();
    for thread in started {
        thread.join().unwrap();
    }
}

fn hex(id: &UniqueId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> UniqueId {
    let mut id = UniqueId([0; 128]);
    for (index, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    }
    id
}
