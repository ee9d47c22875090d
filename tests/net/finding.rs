//! Ranks of several hosts find each other, with nothing set and with everything set, and say well why they do not.

use super::job::{Job, Rank, Scenario, assert_success};
use super::namespaces::Net;
use super::support::api::{INT32, INVALID_ARGUMENT, SUM, SYSTEM_ERROR, TIMEOUT, UniqueId};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("meet", meet),
    ("meet_in_time", meet_in_time),
    ("meet_by_agreement", meet_by_agreement),
    ("alone_by_agreement", alone_by_agreement),
    ("by_itself", by_itself),
    ("no_id", no_id),
    ("wrong_agreement", wrong_agreement),
    ("port_in_range", port_in_range),
    ("ports_used_up", ports_used_up),
    ("leave", leave),
    ("junk", junk),
];

/// Joins, and adds up numbers.
pub(super) fn meet_by(rank: &Rank, id: UniqueId) {
    let comm = rank.join(id);
    let sum: i32 = (1..=rank.ranks as i32).sum();
    for count in [1, 1000, 100_000] {
        let (send, mut result) = (vec![rank.rank as i32 + 1; count], vec![-1; count]);
        rank.api.ok(rank.api.all_reduce(&send, &mut result, INT32, SUM, comm));
        assert_eq!(result, vec![sum; count]);
    }
    rank.api.destroy(comm);
}

fn meet(rank: Rank) {
    let id = rank.id();
    meet_by(&rank, id);
}

/// Writes code and text on standard error, for the test to look at.
fn meet_in_time(rank: Rank) {
    let id = rank.id();
    let code = rank.try_join(id).err().unwrap_or(0);
    eprintln!("code {code}: {}", rank.api.error_text());
}

#[test]
fn hosts_meet_with_nothing_set() {
    let Some(net) = Net::two() else { return };
    let ended = Job::new(&net, "meet", &[0, 1, 1, 0]).run();
    assert_success(&ended);
    assert!(ended.iter().all(|end| !end.stderr.contains("WARN")), "{ended:?}");
    // Whoever made the id may live on either.
    assert_success(&Job::new(&net, "meet", &[1, 0]).run());
}

#[test]
fn three_hosts_meet_on_a_switch() {
    let Some(net) = Net::switched(3) else { return };
    assert_success(&Job::new(&net, "meet", &[1, 0, 2, 0, 2, 1, 2]).run());
}

#[test]
fn hosts_meet_across_a_router() {
    let Some(net) = Net::routed() else { return };
    assert_success(&Job::new(&net, "meet", &[0, 1]).run());
}

#[test]
fn interfaces_that_lead_nowhere_do_no_harm() {
    let Some(net) = Net::new(2) else { return };
    for host in 0..2 {
        // Before the real one in every order: by number, by name; and with the same addresses on both sides.
        net.bridge(host, "docker0", "172.17.0.1/16");
        net.bridge(host, "br-0", "10.77.0.1/16");
        net.decoy(host, "aaa0", &[&format!("10.8{host}.0.1/24"), &format!("fd8{host}::1/64")]);
        net.decoy(host, "ib0", &["10.90.0.1/24"]);
        net.decoy(host, "eth1", &[&format!("10.91.0.{}/24", host + 1)]);
    }
    net.cable((0, "zzz0", &["10.9.0.1/24"]), (1, "zzz0", &["10.9.0.2/24"]));
    assert_success(&Job::new(&net, "meet", &[0, 1, 1]).run());
    assert_success(&Job::new(&net, "meet", &[1, 0]).run());
}

#[test]
fn hosts_meet_over_ipv6_alone() {
    let Some(net) = Net::new(2) else { return };
    net.cable((0, "eth0", &["fd09::1/64"]), (1, "eth0", &["fd09::2/64"]));
    assert_success(&Job::new(&net, "meet", &[0, 1]).run());
}

#[test]
fn hosts_meet_over_link_local_addresses_alone() {
    let Some(net) = Net::new(2) else { return };
    for host in 0..2 {
        net.decoy(host, "aaa0", &[]);
    }
    net.cable((0, "eth0", &[]), (1, "other", &[]));
    assert_success(&Job::new(&net, "meet", &[0, 1]).run());
    // Agreed upon, with the interface by which both reach it.
    let Some(net) = Net::new(2) else { return };
    net.cable((0, "eth0", &["fe80::77/64"]), (1, "eth0", &[]));
    let job = Job::new(&net, "meet_by_agreement", &[0, 1]);
    assert_success(&job.env("NCCL_COMM_ID", "[fe80::77%eth0]:29500").run());
}

#[test]
fn hosts_meet_over_ipv4_where_there_is_no_ipv6() {
    let Some(net) = Net::new(2) else { return };
    net.write(0, "net/ipv6/conf/all/disable_ipv6", "1");
    net.write(0, "net/ipv6/conf/default/disable_ipv6", "1");
    net.cable((0, "eth0", &["10.9.0.1/24"]), (1, "eth0", &["10.9.0.2/24"]));
    assert_success(&Job::new(&net, "meet", &[0, 1]).run());
    assert_success(&Job::new(&net, "meet", &[1, 0]).run());

    let ended = Job::new(&net, "no_id", &[0]).env("NCCL_SOCKET_FAMILY", "AF_INET6").run();
    assert_success(&ended);
    assert!(ended[0].stderr.contains("NCCL_SOCKET_FAMILY=AF_INET6"), "{}", ended[0].stderr);
}

fn by_itself(rank: Rank) {
    let id = rank.id();
    rank.join(id);
}

#[test]
fn a_host_without_any_network_works_by_itself() {
    let Some(net) = Net::new(1) else { return };
    net.ip(0, "link set lo down");
    assert_success(&Job::new(&net, "by_itself", &[0, 0, 0]).run());
}

#[test]
fn hosts_are_told_apart_by_name_if_they_are_given_one() {
    let Some(net) = Net::new(1) else { return };
    assert_success(&Job::new(&net, "by_itself", &[0, 0]).env("NCCL_HOSTID", "a").run());
    let Some(net) = Net::two() else { return };
    // A common name does not make one host of two.
    assert_success(&Job::new(&net, "meet", &[0, 1]).env("NCCL_HOSTID", "a").run());
}

/// No id can be made: writes why on standard error.
fn no_id(rank: Rank) {
    assert_eq!(rank.make_id(), SYSTEM_ERROR);
    eprintln!("{}", rank.api.error_text());
}

#[test]
fn interfaces_are_chosen_by_name() {
    let Some(net) = Net::two() else { return };
    for host in 0..2 {
        net.decoy(host, "eth1", &["10.91.0.1/24"]);
    }
    for rule in ["eth", "=eth0", "=lo,eth0", "^lo,docker", "^=eth1", "wlan,eth0"] {
        assert_success(&Job::new(&net, "meet", &[0, 1]).env("NCCL_SOCKET_IFNAME", rule).run());
    }
    for rule in ["=eth", "wlan", "^eth,lo"] {
        let ended = Job::new(&net, "no_id", &[0]).env("NCCL_SOCKET_IFNAME", rule).run();
        assert_success(&ended);
        let text = &ended[0].stderr;
        assert!(text.contains(&format!("NCCL_SOCKET_IFNAME={rule}")) && text.contains("eth0"), "{text}");
    }
    // The one that leads nowhere is what was asked for.
    let job = Job::new(&net, "meet_in_time", &[0, 1]);
    let ended = job.env("NCCL_SOCKET_IFNAME", "=eth1").env("ACCL_INIT_TIMEOUT", "2").run();
    assert!(ended[1].stderr.contains("host host1 cannot reach process"), "{}", ended[1].stderr);
}

#[test]
fn a_family_of_addresses_is_chosen() {
    let Some(net) = Net::two() else { return };
    for family in ["AF_INET", "AF_INET6"] {
        assert_success(&Job::new(&net, "meet", &[0, 1]).env("NCCL_SOCKET_FAMILY", family).run());
    }
    let job = Job::new(&net, "meet_in_time", &[0, 1]).env("ACCL_INIT_TIMEOUT", "2");
    let job = job.env_on(0, "NCCL_SOCKET_FAMILY", "AF_INET").env_on(1, "NCCL_SOCKET_FAMILY", "AF_INET6");
    let text = &job.run()[1].stderr;
    assert!(
        text.contains("told no address that could be tried: it told 10.9.0.1, and this host has "),
        "{text}"
    );
    assert!(text.contains("fd09::2"), "{text}");
}

fn meet_by_agreement(rank: Rank) {
    for _ in 0..2 {
        let id = rank.api.unique_id();
        assert_eq!(id.0, rank.api.unique_id().0);
        if rank.rank == 0 {
            // The others come first, and find nobody.
            std::thread::sleep(Duration::from_millis(400));
        }
        meet_by(&rank, id);
    }
}

fn alone_by_agreement(rank: Rank) {
    let code = rank.try_join(rank.api.unique_id()).err().unwrap_or(0);
    eprintln!("code {code}: {}", rank.api.error_text());
}

fn wrong_agreement(rank: Rank) {
    assert_eq!(rank.make_id(), INVALID_ARGUMENT);
    assert!(rank.api.error_text().contains("NCCL_COMM_ID"), "{}", rank.api.error_text());
}

#[test]
fn hosts_meet_where_they_agreed_to() {
    let Some(net) = Net::two() else { return };
    for place in ["10.9.0.1:29500", "[fd09::1]:29501"] {
        let job = Job::new(&net, "meet_by_agreement", &[0, 1, 1, 0]).env("NCCL_COMM_ID", place);
        assert_success(&job.run());
    }
    for wrong in ["10.9.0.1", "fd09::1:29500", "host:port"] {
        assert_success(&Job::new(&net, "wrong_agreement", &[0]).env("NCCL_COMM_ID", wrong).run());
    }
    // Nobody is there.
    let job = Job::new(&net, "alone_by_agreement", &[0, 1]).env("NCCL_COMM_ID", "10.9.0.1:29502");
    let job = job.env("ACCL_INIT_TIMEOUT", "1");
    let alone = job.start(1).end();
    assert!(alone.stderr.contains("code 8") && alone.stderr.contains("10.9.0.1:29502"), "{}", alone.stderr);
}

/// The TCP ports on which this network namespace is listened at.
fn listening() -> Vec<u16> {
    let mut ports = Vec::new();
    for file in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        for fields in lines.filter(|fields| fields[3] == "0A") {
            ports.push(u16::from_str_radix(fields[1].rsplit_once(':').unwrap().1, 16).unwrap());
        }
    }
    ports
}

fn port_in_range(rank: Rank) {
    assert_eq!(listening(), [0u16; 0]);
    let id = rank.id();
    if rank.rank == 0 {
        let ports = listening();
        assert!(matches!(ports[..], [47000..=47003]), "{ports:?}");
    }
    meet_by(&rank, id);
}

fn ports_used_up(rank: Rank) {
    let mut taken = Vec::new();
    for port in 47000..=47003 {
        taken.extend(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)));
        taken.extend(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    }
    assert!(taken.len() >= 4);
    no_id(rank.clone());
    // Ranks of one host need no port.
    drop(taken.split_off(1));
    let id = rank.id();
    taken.extend(TcpListener::bind((Ipv6Addr::UNSPECIFIED, 47001)));
    rank.join(id);
}

#[test]
fn ports_come_out_of_the_range_that_is_set() {
    let Some(net) = Net::two() else { return };
    let job = Job::new(&net, "port_in_range", &[0, 1]).env("ACCL_PORT_RANGE", "47000-47003");
    assert_success(&job.run());
    let job = Job::new(&net, "ports_used_up", &[0]).env("ACCL_PORT_RANGE", "47000-47003");
    let ended = job.run();
    assert_success(&ended);
    assert!(
        ended[0].stderr.contains("every TCP port of ACCL_PORT_RANGE=47000-47003 is in use on host host0")
    );
}

#[test]
fn a_firewall_is_named_within_the_time_limit() {
    let Some(net) = Net::routed() else { return };
    net.swallow(2, "ipproto tcp dport 47200");
    let job = Job::new(&net, "meet_in_time", &[0, 1]);
    let job = job.env_on(0, "ACCL_PORT_RANGE", "47200-47200").env("ACCL_INIT_TIMEOUT", "3");
    let ended = job.run();
    assert_success(&ended);
    let text = &ended[1].stderr;
    for part in [
        &format!("code {TIMEOUT}: ncclCommInitRank: host host1 cannot reach process"),
        "10.0.0.2:47200 over eth0 (10.1.0.2): no answer",
        "firewall",
        "ACCL_PORT_RANGE",
        "NCCL_SOCKET_IFNAME",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = &ended[0].stderr;
    assert!(
        text.contains(&format!("code {TIMEOUT}")) && text.contains("rank 1 of 2 did not come in time"),
        "{text}"
    );
}

/// The one that made the id ends before anybody came.
fn leave(rank: Rank) {
    let _ = rank.id();
}

#[test]
fn a_creator_that_has_ended_is_missed_at_each_of_its_addresses() {
    let Some(net) = Net::two() else { return };
    let job = Job::new(&net, "meet_in_time", &[0, 1]).env("ACCL_INIT_TIMEOUT", "2");
    assert_success(&[job.start_as("leave", 0, 0).end()]);
    let ended = job.start(1).end();
    let text = &ended.stderr;
    assert!(text.contains("nobody listens there") && text.contains("over eth0 (10.9.0.2)"), "{text}");
    assert_success(&[ended]);
}

/// Not a rank: says what nobody understands to the port of the one that waits.
fn junk(rank: Rank) {
    let _ = rank.published_id();
    let connect = || TcpStream::connect("10.9.0.1:47300").unwrap();
    let mut words: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0; 64],
        vec![0xff; 4096],
        // A frame that claims to be long, one of a stranger's greatest length that never ends, an old protocol.
        (1u32 << 31).to_le_bytes().to_vec(),
        [512u32.to_le_bytes().as_slice(), &[1; 100]].concat(),
    ];
    let mut hello = vec![41, 0, 0, 0, 1];
    hello.extend(b"ACLB");
    hello.extend([0; 36]);
    words.push(hello);
    for words in &words {
        let mut stream = connect();
        let _ = stream.write_all(words);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
        let _ = stream.read(&mut [0; 256]);
    }
    // Half-open ones: as many as may wait, and more.
    let silent: Vec<_> = (0..300).map(|_| connect()).collect();
    std::fs::write(std::env::var("NET_JUNK_DONE").unwrap(), "").unwrap();
    std::thread::sleep(Duration::from_secs(30));
    drop(silent);
}

#[test]
fn stray_bytes_do_no_harm() {
    let Some(net) = Net::two() else { return };
    let done = std::env::temp_dir().join(format!("accl-net-junk-{}", std::process::id()));
    let job = Job::new(&net, "meet", &[0, 1]).env_on(0, "ACCL_PORT_RANGE", "47300-47300");
    let job = job.env("NET_JUNK_DONE", done.to_str().unwrap());
    let waiting = job.start(0);
    let visitor = job.start_as("junk", 1, 1);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !done.exists() {
        assert!(std::time::Instant::now() < deadline, "{:?}", visitor.end());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(done).unwrap();
    let joining = job.start(1);
    let ended = [waiting.end(), joining.end()];
    assert_success(&ended);
    assert_eq!(ended[0].stderr.matches("ACCL WARN").count(), 1, "{}", ended[0].stderr);
    assert!(ended[0].stderr.contains("a connection from 10.9.0.2:"), "{}", ended[0].stderr);
}
