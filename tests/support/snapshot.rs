//! What a process holds: to see that a communicator leaves nothing behind.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Counts that must come back exactly, and memory that must come back nearly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub descriptors: usize,
    pub threads: usize,
    /// Mappings of nameless files.
    pub shared_mappings: usize,
    pub tcp_listeners: usize,
}

impl Snapshot {
    pub fn take() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            // The directory that is being read is a descriptor, too.
            descriptors: entries("/proc/self/fd") - 1,
            threads: entries("/proc/self/task"),
            shared_mappings: maps.lines().filter(|line| line.contains("memfd:accl")).count(),
            tcp_listeners: own_tcp_listeners(),
        }
    }
}

/// Proportional set size: memory that the process uses, shared memory shared out. What files hold of programs is left out: their pages
/// come by many at once, where code runs for the first time, and weigh more as soon as another process that has them ends.
pub fn memory_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let kib = |name: &str| -> usize {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (kib("Pss_Anon:") + kib("Pss_Shmem:")) << 10
}

/// Proportional set size of those mappings whose file has `name` in its path.
pub fn mapped_bytes(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut counts, mut kib) = (false, 0);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            // "7f00-7f10 rw-s 00001000 00:01 1234 /path": a mapping begins.
            counts = line.contains(name);
        } else if counts && first == "Pss:" {
            kib += line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap();
        }
    }
    kib << 10
}

/// CPU time of the process so far, in seconds.
pub fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // SAFETY: a plain question to the C library.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / ticks
}

fn own_tcp_listeners() -> usize {
    let mut inodes = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if let Ok(target) = std::fs::read_link(entry.path()) {
            inodes.extend(
                target
                    .to_string_lossy()
                    .strip_prefix("socket:[")
                    .map(|rest| rest.trim_end_matches(']').to_string()),
            );
        }
    }
    let listening = |path: &str| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let fields =
            text.lines().skip(1).map(|line| line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        fields.filter(|fields| fields[3] == "0A").map(|fields| fields[9].clone()).collect()
    };
    let all: Vec<String> =
        listening("/proc/self/net/tcp").into_iter().chain(listening("/proc/self/net/tcp6")).collect();
    inodes.iter().filter(|inode| all.contains(inode)).count()
}
