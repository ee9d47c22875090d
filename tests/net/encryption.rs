//! Connections between hosts that are encrypted: what passes, who is let in, and what is said where keys differ.

use super::job::{Ended, Job, Rank, Scenario, assert_success, end_all};
use super::namespaces::Net;
use super::support::api::{INVALID_USAGE, MAX, SUCCESS};
use std::ffi::{CString, c_void};
use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::ptr::null_mut;

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("say_pattern", say_pattern),
    ("say_pattern_by_call", say_pattern_by_call),
    ("capture", capture),
    ("keys_differ", keys_differ),
];

/// What ranks send, again and again: nothing else has it.
const PATTERN: [u8; 8] = *b"\xa7ACCLP\x5a\x11";
const INT64: i32 = 4;
/// Who captures, beside two ranks. The next numbers are those of other news.
const LISTENER: usize = 4;

/// A file with a key, for its owner alone.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, key: &str) -> Self {
        let path = std::env::temp_dir().join(format!("accl-test-key-{}-{name}", std::process::id()));
        std::fs::write(&path, format!("{key}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Sums of the pattern, short and long, whose result is the pattern.
fn say_pattern(rank: Rank) {
    let comm = rank.join(rank.id());
    rank.ready();
    for count in [1, 100, 5_000, 300_000] {
        let send = vec![i64::from_le_bytes(PATTERN); count];
        let mut recv = vec![0i64; count];
        let (from, to) = (send.as_ptr().cast_mut().cast::<c_void>(), recv.as_mut_ptr().cast::<c_void>());
        // SAFETY: buffers of so many elements.
        rank.api.ok(unsafe { (rank.api.ncclAllReduce)(from, to, count, INT64, MAX, comm, null_mut()) });
        assert!(recv == send);
    }
    rank.api.destroy(comm);
    rank.finished();
}

/// As in the header.
#[repr(C)]
struct EncryptionConfig {
    size: usize,
    magic: u32,
    version: u32,
    mode: i32,
    psk: *const std::ffi::c_char,
}

/// The same, with a key that the program gives: none if the argument is "none".
fn say_pattern_by_call(rank: Rank) {
    let key = CString::new(rank.argument()).unwrap();
    let config = EncryptionConfig {
        size: size_of::<EncryptionConfig>(),
        magic: 0xcafe_beef,
        version: 23203,
        mode: 1,
        psk: key.as_ptr(),
    };
    // SAFETY: a configuration that outlives the call.
    rank.api.ok(unsafe { (rank.api.ncclSetEncryption)((&raw const config).cast_mut().cast()) });
    say_pattern(rank.clone());
    // SAFETY: the same.
    let late = unsafe { (rank.api.ncclSetEncryption)((&raw const config).cast_mut().cast()) };
    assert_eq!(late, INVALID_USAGE);
    assert!(rank.api.error_text().contains("before the first communicator"), "{}", rank.api.error_text());
}

/// Looks at all packets of this host until a rank has finished, and says how many bytes there were, and how often the pattern was in them.
fn capture(rank: Rank) {
    let all = u16::try_from(libc::ETH_P_ALL).unwrap().to_be();
    // SAFETY: makes a descriptor, which nobody else has.
    let socket = unsafe {
        let number = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, all.into());
        assert!(number >= 0, "{}", std::io::Error::last_os_error());
        TcpStream::from_raw_fd(number)
    };
    socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    rank.ready();
    let over = std::thread::spawn({
        let rank = rank.clone();
        move || rank.wait_finished()
    });
    let (mut bytes, mut found, mut packet) = (0, 0, vec![0; 1 << 17]);
    loop {
        match std::io::Read::read(&mut &socket, &mut packet) {
            Ok(count) => {
                bytes += count;
                found += packet[..count].windows(8).filter(|window| *window == PATTERN).count();
            }
            Err(_) if over.is_finished() => break,
            Err(_) => {}
        }
    }
    eprintln!("captured {bytes} bytes, {found} patterns");
}

/// Runs a scenario on both hosts while a third process listens on the first host's cable: how often it saw the pattern.
#[track_caller]
fn patterns_on_the_cable(job: &Job<'_>, scenario: &str) -> usize {
    let listener = job.start_as("capture", 0, LISTENER);
    job.await_ready(&[LISTENER]);
    let ranks: Vec<_> = (0..2).map(|rank| job.start_as(scenario, rank, rank)).collect();
    assert_success(&end_all(ranks));
    let Ended { stderr, .. } = listener.end();
    let numbers = stderr.split_once("captured ").expect("what was captured").1;
    let (bytes, rest) = numbers.split_once(" bytes, ").unwrap();
    // Not all of them, if this process gets too little time.
    assert!(bytes.parse::<usize>().unwrap() > 100_000, "{stderr}");
    rest.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn what_passes_shows_nothing_of_the_data() {
    let Some(net) = Net::two() else { return };
    let key = KeyFile::new("capture", "a key that these ranks have in common");
    let job = || Job::new(&net, "say_pattern", &[0, 1]);
    assert!(patterns_on_the_cable(&job(), "say_pattern") > 1_000, "without encryption it can be read");
    let encrypted = job().env("ACCL_ENCRYPTION_KEY_FILE", key.path());
    assert_eq!(patterns_on_the_cable(&encrypted, "say_pattern"), 0);
    let by_call = job().argument("a key that the program gives");
    assert_eq!(patterns_on_the_cable(&by_call, "say_pattern_by_call"), 0);
}

#[test]
fn the_log_says_that_connections_are_encrypted() {
    let Some(net) = Net::two() else { return };
    let key = KeyFile::new("log", "a key that these ranks have in common");
    let words = "NET/Socket : Encrypted with AES-256-GCM by the pre-shared key; RDMA is not used";
    let job = |key: &str| {
        let job = Job::new(&net, "say_pattern", &[0, 1]).env("ACCL_ENCRYPTION_KEY_FILE", key);
        job.env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,NET")
            .env("NCCL_DEBUG_FILE", "/dev/stderr")
    };
    for end in job("").run() {
        assert!(end.code == Some(0) && !end.stderr.contains(words), "{}", end.stderr);
    }
    for end in job(key.path()).run() {
        assert!(end.code == Some(0) && end.stderr.contains(words), "{}", end.stderr);
        assert!(!end.stderr.contains("in common"), "the key itself is nowhere: {}", end.stderr);
    }
}

/// Joining fails since keys differ: writes why.
fn keys_differ(rank: Rank) {
    let id = rank.id();
    let code = rank.try_join(id).err().unwrap_or(SUCCESS);
    eprintln!("code {code}: {}", rank.api.error_text());
}

/// Both ranks fail with InvalidUsage; their texts.
#[track_caller]
fn differing(net: &Net, of_first: Option<&KeyFile>, of_second: Option<&KeyFile>) -> Vec<String> {
    let mut job = Job::new(net, "keys_differ", &[0, 1]);
    for (host, key) in [of_first, of_second].into_iter().enumerate() {
        if let Some(key) = key {
            job = job.env_on(host, "ACCL_ENCRYPTION_KEY_FILE", key.path());
        }
    }
    let texts = job.run().into_iter().map(|end| {
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        assert!(end.stderr.contains(&format!("code {INVALID_USAGE}: ")), "{}", end.stderr);
        assert!(end.stderr.contains("give all processes of the job the same key"), "{}", end.stderr);
        end.stderr
    });
    texts.collect()
}

#[test]
fn another_key_or_none_is_told_to_both_and_names_the_other() {
    let Some(net) = Net::two() else { return };
    let (one, other) = (KeyFile::new("one", "a key of one rank"), KeyFile::new("other", "a key of another"));
    for (first, second, at_first, at_second) in [
        (
            Some(&one),
            Some(&other),
            "a process that came from 10.9.0.2:",
            "the creator of the unique id, encrypts its connections with another key than process",
        ),
        (
            Some(&one),
            None,
            "has no encryption key",
            "the creator of the unique id, encrypts its connections, and process",
        ),
        (
            None,
            Some(&one),
            "encrypts its connections, and process",
            "the creator of the unique id, has no encryption key",
        ),
    ] {
        let texts = differing(&net, first, second);
        assert!(texts[0].contains(at_first) && texts[0].contains("from 10.9.0.2:"), "{}", texts[0]);
        assert!(texts[1].contains(at_second), "{}", texts[1]);
    }
}

#[test]
fn a_process_of_the_same_host_with_another_key_is_told_too() {
    let Some(net) = Net::new(1) else { return };
    let one = KeyFile::new("home", "a key of one rank");
    // Rank 0 alone has it.
    let job = Job::new(&net, "keys_differ", &[0, 0]);
    let first = job.start(0);
    let job = job.env("ACCL_ENCRYPTION_KEY_FILE", one.path());
    let second = job.start(1);
    for end in end_all(vec![first, second]) {
        assert!(end.stderr.contains("another process of this host"), "{}", end.stderr);
        assert!(end.stderr.contains("has no encryption key"), "{}", end.stderr);
    }
}

#[test]
fn where_rdma_is_required_it_says_that_it_cannot_be_encrypted() {
    let Some(net) = Net::new(1) else { return };
    let key = KeyFile::new("rdma", "a key that these ranks have in common");
    let job = Job::new(&net, "keys_differ", &[0]).env("ACCL_ENCRYPTION_KEY_FILE", key.path());
    for end in job.env("ACCL_REQUIRE_PATH", "rdma").run() {
        assert!(end.stderr.contains(&format!("code {INVALID_USAGE}: ")), "{}", end.stderr);
        assert!(end.stderr.contains("RDMA is required (ACCL_REQUIRE_PATH=rdma"), "{}", end.stderr);
        assert!(end.stderr.contains("over TCP alone"), "{}", end.stderr);
    }
}
