//! What becomes of a job on several hosts when something goes wrong on one of them: every survivor gets an error that
//! names the culprit and its host, with a call under way and without, and everything can be destroyed afterwards.

// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::job::{Ended, Job, Process, Rank, Scenario, assert_success, end_all};
use super::namespaces::Net;
use super::support::api::{Comm, FLOAT, INT32, INVALID_USAGE, MAX, REMOTE_ERROR, SUCCESS, SUM, TIMEOUT};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("survive", survive),
    ("abort_while_dialling", abort_while_dialling),
    ("come_late", come_late),
    ("mismatch", mismatch),
    ("large_after_small", large_after_small),
    ("leave_early", leave_early),
    ("rounds", rounds),
];

/// How long survivors wait for what must come; what takes longer hangs.
const HANG: Duration = Duration::from_secs(30);

/// The first failure of a communicator on which nobody makes calls.
fn wait_idle(rank: &Rank, comm: Comm) -> c_int {
    let deadline = Instant::now() + HANG;
    loop {
        let code = rank.api.async_error(comm);
        if code != SUCCESS {
            return code;
        }
        assert!(Instant::now() < deadline, "nothing was heard of the failure");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sums until that fails.
fn sum_until_failure(rank: &Rank, count: usize, comm: Comm) -> c_int {
    let deadline = Instant::now() + HANG;
    let (send, mut recv) = (vec![rank.rank as i32; count], vec![0; count]);
    let expected: i32 = (0..rank.ranks as i32).sum();
    loop {
        let code = rank.api.all_reduce(&send, &mut recv, INT32, SUM, comm);
        if code != SUCCESS {
            return code;
        }
        assert!(recv.iter().all(|sum| *sum == expected), "a wrong sum");
        assert!(Instant::now() < deadline, "nobody failed");
    }
}

/// Joins, and goes on until something fails: the argument says how, and who aborts. Writes code and text.
fn survive(rank: Rank) {
    let (api, argument) = (rank.api, rank.argument());
    let comm = rank.join(rank.id());
    if argument != "idle" {
        assert_eq!(api.sum(1, comm), rank.ranks as i32);
    }
    rank.ready();
    let abort = argument == format!("abort {}", rank.rank);
    if abort {
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
        return;
    }
    let code = match argument.as_str() {
        "idle" => {
            let code = wait_idle(&rank, comm);
            // Says the text, too.
            assert_eq!(sum_until_failure(&rank, 1, comm), code);
            code
        }
        "small" => sum_until_failure(&rank, 1, comm),
        _ => sum_until_failure(&rank, 200_000, comm),
    };
    eprintln!("code {code}: {}", api.error_text());
    assert_eq!(api.async_error(comm), code);
    api.destroy(comm);
}

/// Every rank but the `lost` ones says this code, and one of these words.
#[track_caller]
fn assert_said(ended: &[Ended], lost: &[usize], code: c_int, words: &[String]) {
    for (rank, end) in ended.iter().enumerate().filter(|(rank, _)| !lost.contains(rank)) {
        assert!(end.code == Some(0), "rank {rank} ended with {:?}:\n{}", end.code, end.stderr);
        let line = end.stderr.lines().find(|line| line.starts_with("code ")).unwrap_or_default();
        assert!(line.starts_with(&format!("code {code}: ")), "rank {rank}: {}", end.stderr);
        assert!(line.contains("on host host"), "no host: {line}");
        assert!(words.iter().any(|words| line.contains(words)), "rank {rank}: {line}\nneed {words:?}");
    }
}

fn named(rank: usize, host: usize, process: &Process) -> String {
    format!("rank {rank} (process {} on host host{host})", process.pid())
}

#[test]
fn who_is_killed_is_named_on_every_host() {
    let hosts = [0, 0, 1, 1, 2];
    let Some(net) = Net::switched(3) else { return };
    // A leader of the first host, one who leads nobody, and one alone on its host; the ring is broken or not.
    for (victim, how) in [(0, "large"), (1, "idle"), (2, "idle"), (3, "small"), (4, "idle"), (4, "large")] {
        println!("rank {victim}, {how}");
        let job = Job::new(&net, "survive", &hosts).argument(how);
        let processes = job.start_all();
        let words = named(victim, hosts[victim], &processes[victim]);
        // So says a rank that was reading its memory.
        let read = format!("rank {victim}: process {} ended", processes[victim].pid());
        processes[victim].signal(libc::SIGKILL);
        assert_said(&end_all(processes), &[victim], REMOTE_ERROR, &[words, read]);
    }
}

#[test]
fn a_host_that_ends_as_a_whole_is_named() {
    let hosts = [0, 1, 1, 2];
    let Some(net) = Net::switched(3) else { return };
    for how in ["idle", "large"] {
        let job = Job::new(&net, "survive", &hosts).argument(how);
        let processes = job.start_all();
        let mut words = [1, 2].map(|rank| named(rank, 1, &processes[rank])).to_vec();
        words.extend([1, 2].map(|rank| format!("rank {rank}: process {} ended", processes[rank].pid())));
        [1, 2].iter().for_each(|rank| processes[*rank].signal(libc::SIGKILL));
        assert_said(&end_all(processes), &[1, 2], REMOTE_ERROR, &words);
    }
}

#[test]
fn who_is_killed_at_random_is_named() {
    let hosts = [0, 0, 1, 1];
    let Some(net) = Net::two() else { return };
    let mut seed = u64::from(std::process::id());
    if let Ok(text) = std::env::var("NET_SEED") {
        seed = text.parse().unwrap();
    }
    println!("NET_SEED={seed}");
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..5 {
        let (victim, how) = (random(4) as usize, ["idle", "small", "large"][random(3) as usize]);
        let delay = Duration::from_micros(random(200_000));
        println!("rank {victim}, {how}, after {delay:?}");
        let job = Job::new(&net, "survive", &hosts).argument(how);
        let processes = job.start_all();
        let words = named(victim, hosts[victim], &processes[victim]);
        let read = format!("rank {victim}: process {} ended", processes[victim].pid());
        std::thread::sleep(delay);
        processes[victim].signal(libc::SIGKILL);
        assert_said(&end_all(processes), &[victim], REMOTE_ERROR, &[words, read]);
    }
}

#[test]
fn who_is_stopped_is_named_after_the_time_limit() {
    let hosts = [0, 0, 1, 1];
    let Some(net) = Net::two() else { return };
    for victim in [2, 3] {
        let job = Job::new(&net, "survive", &hosts).argument("small");
        // To be stopped is not to be lost, whatever the limit for hosts is.
        let job = job.env("ACCL_TIMEOUT", "3").env("ACCL_PEER_TIMEOUT", "1").env("ACCL_WARN_AFTER", "0");
        let mut processes = job.start_all();
        let words = named(victim, hosts[victim], &processes[victim]);
        let local = format!("rank {victim} (process {})", processes[victim].pid());
        processes[victim].signal(libc::SIGSTOP);
        // Ranks that wait for it, and those that wait for these.
        let stopped = processes.remove(victim);
        let ended = end_all(processes);
        assert!(stopped.is_stopped(), "rank {victim} was continued by somebody\n{ended:?}");
        drop(stopped);
        assert_said(&ended, &[], TIMEOUT, &[words, local]);
    }
}

#[test]
fn a_host_that_vanishes_without_a_packet_is_missed() {
    for how in ["idle", "large"] {
        let Some(net) = Net::routed() else { return };
        let job = Job::new(&net, "survive", &[0, 0, 1, 1]).argument(how).env("ACCL_PEER_TIMEOUT", "2");
        let processes = job.start_all();
        let hosts: Vec<_> = (0..2).map(|host| format!("on host host{host}")).collect();
        if how == "idle" {
            net.swallow(2, "from all");
        } else {
            net.ip(2, "link set eth1 down");
        }
        let ended = end_all(processes);
        for (rank, end) in ended.iter().enumerate() {
            assert!(end.code == Some(0), "rank {rank}: {}", end.stderr);
            let line = end.stderr.lines().find(|line| line.starts_with("code ")).unwrap_or_default();
            assert!(line.starts_with(&format!("code {REMOTE_ERROR}: ")), "rank {rank}: {line}");
            assert!(line.contains("no answer from rank"), "rank {rank}: {line}");
            assert!(line.contains(&hosts[1 - rank / 2]) && !line.contains(&hosts[rank / 2]), "{line}");
        }
    }
}

#[test]
fn an_abort_ends_calls_on_all_hosts() {
    let hosts = [0, 0, 1, 1];
    let Some(net) = Net::two() else { return };
    for victim in [0, 3] {
        let job = Job::new(&net, "survive", &hosts).argument(&format!("abort {victim}"));
        let processes = job.start_all();
        let words = format!("rank {victim} (process {}", processes[victim].pid());
        assert_said(&end_all(processes), &[victim], REMOTE_ERROR, &[words]);
    }
}

/// An abort from another thread, while the first call connects with a host that is not there any more.
fn abort_while_dialling(rank: Rank) {
    let api = rank.api;
    let comm = rank.join(rank.id());
    rank.ready();
    rank.wait_go();
    if rank.rank == 0 {
        let address = comm as usize;
        let calls = std::thread::spawn(move || {
            let (send, mut recv) = (vec![1; 100_000], vec![0; 100_000]);
            (api.all_reduce(&send, &mut recv, INT32, SUM, address as Comm), api.error_text())
        });
        std::thread::sleep(Duration::from_millis(300));
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
        let (code, text) = calls.join().unwrap();
        assert_eq!(code, INVALID_USAGE, "{text}");
        rank.finished();
    } else {
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
        // That its process has ended would be noticed before the other's abort.
        rank.wait_finished();
    }
}

#[test]
fn an_abort_ends_the_dialling() {
    let Some(net) = Net::routed() else { return };
    let job = Job::new(&net, "abort_while_dialling", &[0, 1]).env("ACCL_PEER_TIMEOUT", "0");
    let processes = job.start_all();
    net.swallow(2, "from all");
    job.go();
    assert_success(&end_all(processes));
}

/// The first call of one rank comes when the other, which the argument names, has gone: so, the argument says, too.
fn come_late(rank: Rank) {
    let api = rank.api;
    let comm = rank.join(rank.id());
    let argument = rank.argument();
    let (victim, how) = argument.split_once(' ').unwrap();
    let victim: usize = victim.parse().unwrap();
    if rank.rank == victim {
        if how == "abort" {
            api.ok(unsafe { (api.ncclCommAbort)(comm) });
        } else {
            api.destroy(comm);
        }
        rank.ready();
        if how == "exit" {
            std::process::exit(0);
        }
        rank.wait_ready(&[1 - victim]);
        return;
    }
    rank.wait_ready(&[victim]);
    let (send, mut recv) = (vec![1; 1000], vec![0; 1000]);
    assert_eq!(api.all_reduce(&send, &mut recv, INT32, SUM, comm), REMOTE_ERROR);
    eprintln!("code {REMOTE_ERROR}: {}", api.error_text());
    api.destroy(comm);
    rank.ready();
}

#[test]
fn who_calls_too_late_hears_that_the_other_has_gone() {
    let Some(net) = Net::two() else { return };
    for victim in 0..2 {
        for how in ["abort", "destroy", "exit"] {
            println!("rank {victim}, {how}");
            let job = Job::new(&net, "come_late", &[0, 1]).argument(&format!("{victim} {how}"));
            let processes: Vec<_> = (0..2).map(|rank| job.start(rank)).collect();
            let (whom, process) = (named(victim, victim, &processes[victim]), how == "abort");
            let words = if process { "aborted the communicator" } else { "destroyed its communicator" };
            let ended = end_all(processes);
            assert_said(&ended, &[victim], REMOTE_ERROR, &[whom]);
            let said = &ended[1 - victim].stderr;
            // Whose process has ended, too, may be missed for either.
            assert!(said.contains(words) || how == "exit" && said.contains(" ended"), "{said}");
        }
    }
}

/// Calls of one kind that do not fit together, between hosts: `ranks` 2 and 3 do something else than 0 and 1.
fn mismatch(rank: Rank) {
    let api = rank.api;
    let comm = rank.join(rank.id());
    assert_eq!(api.sum(1, comm), rank.ranks as i32);
    let other = rank.rank >= 2;
    let count = 20_000;
    let (send, mut recv) = (vec![1i32; 4 * count], vec![0i32; 4 * count]);
    let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
    let stream = null_mut();
    let mut code = unsafe {
        match rank.argument().as_str() {
            "count" => {
                let count = if other { count + 1 } else { count };
                (api.ncclAllReduce)(from, to, count, INT32, SUM, comm, stream)
            }
            "type" => {
                let dtype = if other { FLOAT } else { INT32 };
                (api.ncclAllReduce)(from, to, count, dtype, SUM, comm, stream)
            }
            "operator" => {
                let op = if other { MAX } else { SUM };
                (api.ncclAllReduce)(from, to, count, INT32, op, comm, stream)
            }
            "kind" if other => (api.ncclAllGather)(from, to, count, INT32, comm, stream),
            "kind" => (api.ncclAllReduce)(from, to, count, INT32, SUM, comm, stream),
            "root" => {
                let root = if other { 2 } else { 0 };
                (api.ncclBroadcast)(from, to, count, INT32, root, comm, stream)
            }
            "missing" if other => SUCCESS,
            "missing" => (api.ncclBroadcast)(from, to, count, INT32, 0, comm, stream),
            // Between ranks 1 and 2.
            _ => match rank.rank {
                1 => api.send(&send[..count], 2, comm),
                2 => api.recv(&mut recv[..count - 1], 1, comm),
                _ => SUCCESS,
            },
        }
    };
    // Who only sends, or has no part in it, hears with the next call.
    if code == SUCCESS {
        code = sum_until_failure(&rank, 20_000, comm);
    }
    eprintln!("code {code}: {}", api.error_text());
    api.destroy(comm);
}

#[test]
fn hosts_that_disagree_hear_both_calls() {
    let Some(net) = Net::two() else { return };
    for kind in ["count", "type", "operator", "kind", "root", "missing"] {
        println!("{kind}");
        let ended = Job::new(&net, "mismatch", &[0, 0, 1, 1]).argument(kind).env("ACCL_TIMEOUT", "20").run();
        assert_said(&ended, &[], INVALID_USAGE, &["ranks disagree on collective".to_string()]);
        let both = match kind {
            "count" => ["20000", "20001"],
            "type" => ["Int32", "Float32"],
            "operator" => ["Sum", "Max"],
            "kind" => ["AllReduce", "AllGather"],
            "root" => ["Broadcast", ""],
            // Who broadcast may have gone on meanwhile.
            _ => ["AllReduce", "collective #2"],
        };
        for end in &ended {
            assert!(
                both.iter().all(|words| end.stderr.to_lowercase().contains(&words.to_lowercase())),
                "{}",
                end.stderr
            );
        }
    }
    let ended = Job::new(&net, "mismatch", &[0, 0, 1, 1]).argument("sizes").env("ACCL_TIMEOUT", "20").run();
    assert_said(&ended, &[], INVALID_USAGE, &["rank 1 sends 80000 bytes to rank 2".to_string()]);
    assert!(ended.iter().all(|end| end.stderr.contains("79996 bytes")), "{ended:?}");
}

/// Small messages, then a large sum: its result, or its error on standard error.
fn large_after_small(rank: Rank) {
    let comm = rank.join(rank.id());
    for count in [16, 100_000] {
        let (send, mut recv) = (vec![rank.rank as i32 + 1; count], vec![0; count]);
        let code = rank.api.all_reduce(&send, &mut recv, INT32, SUM, comm);
        eprintln!(
            "{count} elements: code {code}: {}",
            if code == 0 { String::new() } else { rank.api.error_text() }
        );
        if code != 0 {
            break;
        }
        assert_eq!(recv, vec![3; count]);
    }
    rank.api.destroy(comm);
}

/// Two hosts behind a router that lets nothing larger than 1300 bytes through, and does not say so (C59).
fn hole(prefixes: [&str; 2], bits: u8) -> Option<Net> {
    let net = Net::new(3)?;
    net.write(2, "net/ipv4/ip_forward", "1");
    net.write(2, "net/ipv6/conf/all/forwarding", "1");
    for (host, prefix) in prefixes.into_iter().enumerate() {
        let address = |number: usize| format!("{prefix}{number}/{bits}");
        net.cable((host, "eth0", &[&address(2)]), (2, &format!("eth{host}"), &[&address(1)]));
        let family = if bits == 24 { "-4" } else { "-6" };
        net.ip(host, &format!("{family} route add default via {prefix}1"));
        if bits == 24 {
            net.ip(2, &format!("route replace {prefix}0/24 dev eth{host} mtu lock 1300"));
        }
    }
    if bits == 64 {
        net.ip(2, "link set eth1 mtu 1300");
    }
    net.ip(2, "rule add pref 1 ipproto icmp blackhole");
    net.ip(2, "-6 rule add pref 1 ipproto ipv6-icmp blackhole");
    Some(net)
}

#[test]
fn large_packets_that_vanish_are_cut_or_named() {
    let Some(net) = hole(["10.0.0.", "10.1.0."], 24) else { return };
    let job = || Job::new(&net, "large_after_small", &[0, 1]).env("ACCL_TIMEOUT", "60");
    // Routers may cut what does not fit.
    for end in job().env("ACCL_PEER_TIMEOUT", "20").run() {
        assert!(end.stderr.contains("100000 elements: code 0"), "{}", end.stderr);
    }
    // With IPv6 they may not, and the kernel does not try smaller ones unless it is told to.
    let Some(net) = hole(["fd00::", "fd01::"], 64) else { return };
    let job = || Job::new(&net, "large_after_small", &[0, 1]).env("ACCL_TIMEOUT", "60");
    let ended = job().env("ACCL_PEER_TIMEOUT", "3").run();
    for end in &ended {
        for part in ["16 elements: code 0", "100000 elements: code 6: ncclAllReduce: no answer from rank"] {
            assert!(end.stderr.contains(part), "{part}: {}", end.stderr);
        }
    }
    // Whoever is first to give up tells the other, who may just have given up by itself and know less.
    let explains = |end: &Ended| {
        let parts =
            ["bytes were acknowledged", "packets of up to 1428 bytes are not", "lower the MTU of eth0"];
        parts.iter().all(|part| end.stderr.contains(part))
    };
    assert!(ended.iter().any(explains), "{ended:?}");
    for host in 0..2 {
        net.write(host, "net/ipv4/tcp_mtu_probing", "1");
    }
    for end in job().env("ACCL_PEER_TIMEOUT", "20").run() {
        assert!(end.stderr.contains("100000 elements: code 0"), "{}", end.stderr);
    }
}

/// Rank 0 sends and is gone, process and all, while rank 1 still waits for rank 2.
fn leave_early(rank: Rank) {
    let api = rank.api;
    let comm = rank.join(rank.id());
    let data: Vec<i32> = (0..8000).collect();
    match rank.rank {
        1 => {
            for peer in [2, 0] {
                let mut got = vec![0; data.len()];
                api.ok(api.recv(&mut got, peer, comm));
                assert_eq!(got, data);
            }
            assert_eq!(api.async_error(comm), SUCCESS);
        }
        sender => {
            if sender == 2 {
                rank.wait_ready(&[0]);
                std::thread::sleep(Duration::from_millis(400));
            }
            api.ok(api.send(&data, 1, comm));
        }
    }
    api.destroy(comm);
    rank.ready();
    std::process::exit(0);
}

#[test]
fn what_was_sent_stays_when_the_sender_leaves() {
    let Some(net) = Net::switched(3) else { return };
    assert_success(&Job::new(&net, "leave_early", &[0, 1, 2]).run());
}

/// Descriptors and threads of this process.
fn leftovers() -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    (count("fd"), count("task"))
}

/// Communicators come and go, every other one by an abort.
fn rounds(rank: Rank) {
    let api = rank.api;
    let comm = rank.join(rank.id());
    let mut before = (0, 0);
    for round in 0..20 {
        let mut child: Comm = null_mut();
        api.ok(unsafe { (api.ncclCommSplit)(comm, 0, rank.rank as c_int, &raw mut child, null_mut()) });
        assert_eq!(api.sum(1, child), rank.ranks as i32);
        if round % 2 == 0 {
            api.destroy(child);
        } else if rank.rank == round % rank.ranks {
            api.ok(unsafe { (api.ncclCommAbort)(child) });
        } else {
            assert_eq!(sum_until_failure(&rank, 1000, child), REMOTE_ERROR);
            api.destroy(child);
        }
        // All have ended theirs.
        assert_eq!(api.sum(1, comm), rank.ranks as i32);
        if round == 3 {
            before = settled();
        }
    }
    let after = settled();
    assert!(after.0 <= before.0 && after.1 <= before.1, "{before:?} became {after:?}");
    api.destroy(comm);
}

/// What there is when nothing more goes on.
fn settled() -> (usize, usize) {
    std::thread::sleep(Duration::from_millis(500));
    leftovers()
}

#[test]
fn nothing_is_left_of_communicators_that_have_ended() {
    let Some(net) = Net::two() else { return };
    let job = Job::new(&net, "rounds", &[0, 0, 1]).env("ACCL_TIMEOUT", "20");
    assert_success(&job.run());
}
