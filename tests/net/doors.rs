//! What is open to others, who comes in, and what is left when ports are few.

use super::finding::meet_by;
use super::job::{Job, Process, Rank, Scenario, assert_success};
use super::namespaces::Net;
use super::support::api::{INT32, INVALID_ARGUMENT, REMOTE_ERROR, SUCCESS, SUM, TIMEOUT};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("no_network", no_network),
    ("open_doors", open_doors),
    ("many_communicators", many_communicators),
    ("meet_impostor", meet_impostor),
    ("impostor", impostor),
    ("sum_for_a_while", sum_for_a_while),
];

/// Joining fails where memory is not to be shared and there is no network: writes why.
fn no_network(rank: Rank) {
    let id = rank.id();
    let code = rank.try_join(id).err().unwrap_or(SUCCESS);
    eprintln!("code {code}: {}", rank.api.error_text());
}

/// C56, the half that fails; the other one is among the tests of `finding`.
#[test]
fn without_memory_and_without_network_it_says_so() {
    let Some(net) = Net::new(1) else { return };
    net.ip(0, "link set lo down");
    let job =
        Job::new(&net, "no_network", &[0, 0]).env("ACCL_SHM_DISABLE", "1").env("ACCL_INIT_TIMEOUT", "5");
    for end in job.run() {
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        assert!(end.stderr.contains("has no usable network interface"), "{}", end.stderr);
        assert!(end.stderr.contains("SHM_DISABLE"), "{}", end.stderr);
    }
}

/// Where this network namespace is listened at.
fn listened_at() -> Vec<IpAddr> {
    let mut all = Vec::new();
    for file in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        for fields in lines.filter(|fields| fields[3] == "0A") {
            let digits = fields[1].split(':').next().unwrap();
            // Each word is in the order of this machine's bytes.
            let words: Vec<u8> = (0..digits.len() / 8)
                .flat_map(|word| u32::from_str_radix(&digits[word * 8..][..8], 16).unwrap().to_ne_bytes())
                .collect();
            all.push(match <[u8; 16]>::try_from(&words[..]) {
                Ok(bytes) => Ipv6Addr::from(bytes).into(),
                Err(_) => Ipv4Addr::from(<[u8; 4]>::try_from(&words[..]).unwrap()).into(),
            });
        }
    }
    all
}

/// Only the addresses that the test names are listened at, and the rest works.
fn open_doors(rank: Rank) {
    let allowed: Vec<IpAddr> = rank.argument().split(',').map(|ip| ip.parse().unwrap()).collect();
    let id = rank.id();
    if rank.rank == 0 {
        let open = listened_at();
        assert!(!open.is_empty());
        // Those of the interface that are told without a word.
        let own = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        assert!(open.iter().all(|ip| own(ip) || allowed.contains(ip)), "{open:?}");
    }
    // Nothing but the recorder's directory, which is this user's alone.
    for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        // SAFETY: asks for a number.
        let own = format!("accl-{}", unsafe { libc::geteuid() });
        let mode = std::os::unix::fs::PermissionsExt::mode(&entry.metadata().unwrap().permissions());
        assert_eq!((entry.file_name().to_str(), mode & 0o777), (Some(&own[..]), 0o700));
    }
    meet_by(&rank, id);
}

/// C63.
#[test]
fn nothing_is_open_on_interfaces_that_were_not_chosen() {
    let Some(net) = Net::two() else { return };
    net.cable((0, "eth1", &["10.8.0.1/24"]), (1, "eth1", &["10.8.0.2/24"]));
    let job = |rule: &str, allowed: &str, hosts: &[usize], ports: &str| {
        let job = Job::new(&net, "open_doors", hosts).env("NCCL_SOCKET_IFNAME", rule).argument(allowed);
        let job = job.env("ACCL_PORT_RANGE", ports);
        assert_success(&job.run());
    };
    job("lo", "127.0.0.1", &[0, 0], "47300-47301");
    job("=eth1", "10.8.0.1,10.8.0.2", &[0, 1], "47300-47301");
    job("=eth1", "10.8.0.1,10.8.0.2", &[0, 1], "");
    job("^eth0", "10.8.0.1,10.8.0.2,127.0.0.1", &[0, 1], "");
}

/// C58: few ports for many communicators, again and again.
fn many_communicators(rank: Rank) {
    let first = rank.join(rank.id());
    let mut comms = vec![first];
    let api = rank.api;
    for _ in 1..16 {
        let mut comm = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        api.ok(unsafe {
            (api.ncclCommSplit)(first, 0, rank.rank as i32, &raw mut comm, std::ptr::null_mut())
        });
        comms.push(comm);
    }
    let expected: i32 = (1..=rank.ranks as i32).sum();
    for comm in &comms {
        let (send, mut recv) = (vec![rank.rank as i32 + 1; 100_000], vec![0; 100_000]);
        api.ok(api.all_reduce(&send, &mut recv, INT32, SUM, *comm));
        assert_eq!(recv, vec![expected; 100_000]);
    }
    for comm in comms {
        api.destroy(comm);
    }
}

#[test]
fn few_ephemeral_ports_are_enough() {
    let Some(net) = Net::two() else { return };
    for host in 0..2 {
        net.write(host, "net/ipv4/ip_local_port_range", "50000 50039");
    }
    for _ in 0..20 {
        assert_success(&Job::new(&net, "many_communicators", &[0; 8]).run());
    }
    // Between hosts each pair of ranks needs a connection in each communicator, and those that have ended linger for a minute.
    for _ in 0..3 {
        assert_success(&Job::new(&net, "many_communicators", &[0, 0, 1, 1]).run());
    }
}

/// Rank 0 makes two ids, and gives the second one to who has no part in its job; the others come when that has tried.
fn meet_impostor(rank: Rank) {
    let id = if rank.rank == 0 {
        let (id, other) = (rank.api.unique_id(), rank.api.unique_id());
        rank.publish(&other);
        rank.wait_go();
        rank.publish(&id);
        rank.ready();
        id
    } else {
        rank.wait_ready(&[0]);
        rank.published_id()
    };
    meet_by(&rank, id);
}

/// Says that it is rank 1, with the id of another job and then with one that is damaged.
fn impostor(rank: Rank) {
    let id = rank.published_id();
    rank.ready();
    let mut damaged = id;
    damaged.0[12] ^= 1;
    // Nobody else comes, or the process that made it ends before that is known.
    for (id, expected) in [(damaged, [INVALID_ARGUMENT; 2]), (id, [TIMEOUT, REMOTE_ERROR])] {
        let mut comm = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        let code = unsafe { (rank.api.ncclCommInitRank)(&raw mut comm, 2, id, 1) };
        assert!(expected.contains(&code), "{code}: {}", rank.api.error_text());
    }
}

/// C62. Who knows no id at all is among the tests of `finding`, and who repeats what was said among those of the links.
#[test]
fn an_impostor_with_another_id_disturbs_nobody() {
    let Some(net) = Net::two() else { return };
    let job = Job::new(&net, "meet_impostor", &[0, 1]).env("ACCL_INIT_TIMEOUT", "4");
    let first = job.start(0);
    let impostor = job.start_as("impostor", 1, 2);
    let second = job.start(1);
    assert_success(&[first.end(), second.end(), impostor.end()]);
}

/// Adds up numbers: so many times, or until a rank is missing.
fn sum_for_a_while(rank: Rank) {
    let comm = rank.join(rank.id());
    rank.ready();
    rank.wait_go();
    let rounds = if rank.argument() == "victims" { usize::MAX } else { 150 };
    let expected: i32 = (1..=rank.ranks as i32).sum();
    for round in 0..rounds {
        let count = [1, 1000, 100_000][round % 3];
        let (send, mut recv) = (vec![rank.rank as i32 + 1; count], vec![0; count]);
        let code = rank.api.all_reduce(&send, &mut recv, INT32, SUM, comm);
        if rank.argument() == "victims" && code != SUCCESS {
            assert_eq!(code, REMOTE_ERROR, "{}", rank.api.error_text());
            return;
        }
        rank.api.ok(code);
        assert_eq!(recv, vec![expected; count]);
    }
    rank.api.destroy(comm);
}

/// C64.
#[test]
fn jobs_side_by_side_do_not_notice_each_other() {
    let Some(net) = Net::two() else { return };
    for round in 0..8 {
        // On one host, and across two.
        let hosts = if round % 2 == 0 { [0, 0, 0, 0] } else { [0, 1, 0, 1] };
        let jobs: Vec<_> = (0..4)
            .map(|job| {
                Job::new(&net, "sum_for_a_while", &hosts).argument(if job == 2 { "victims" } else { "" })
            })
            .collect();
        let mut processes: Vec<Vec<Process>> = jobs.iter().map(Job::start_all).collect();
        jobs.iter().for_each(Job::go);
        let killed = processes[2].remove(round % 4);
        killed.signal(libc::SIGKILL);
        assert_eq!(killed.end().code, None);
        for processes in processes {
            assert_success(&processes.into_iter().map(Process::end).collect::<Vec<_>>());
        }
    }
}
