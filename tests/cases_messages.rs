//! Messages with tags (`acclIsend`, `acclIrecv`): any number under way at once, in any order.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{
    Api, Comm, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, Request, SUCCESS, TIMEOUT,
};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::mix;

const SCENARIOS: [(&str, Scenario); 12] = [
    ("any_order", any_order),
    ("any_source", any_source),
    ("unattended", unattended),
    ("many_threads", many_threads),
    ("late", late),
    ("still", still),
    ("beside_traffic", beside_traffic),
    ("leaves", leaves),
    ("dead", dead),
    ("lost", lost),
    ("refused", refused),
    ("ended", ended),
];

const ANY: c_int = -1;

#[test]
fn worker() {
    work(&SCENARIOS);
}

fn send(api: &Api, data: &[u8], peer: usize, tag: c_int, comm: Comm) -> Request {
    let mut request = null_mut();
    let code = unsafe {
        (api.acclIsend)(data.as_ptr().cast(), data.len(), peer as c_int, tag, comm, 0, &raw mut request)
    };
    api.ok(code);
    request
}

fn receive(api: &Api, data: &mut [u8], peer: c_int, tag: c_int, comm: Comm, limit_ms: i64) -> Request {
    let mut request = null_mut();
    let code = unsafe {
        (api.acclIrecv)(data.as_mut_ptr().cast(), data.len(), peer, tag, comm, limit_ms, &raw mut request)
    };
    api.ok(code);
    request
}

fn wait(api: &Api, request: Request) {
    api.ok(unsafe { (api.acclRequestWait)(request, 0) });
    api.ok(unsafe { (api.acclRequestFree)(request) });
}

fn source(api: &Api, request: Request) -> usize {
    let mut source = -1;
    api.ok(unsafe { (api.acclRequestSource)(request, &raw mut source) });
    source as usize
}

/// In an order of its own.
fn shuffled<T>(mut items: Vec<T>, seed: u64) -> Vec<T> {
    for at in (1..items.len()).rev() {
        items.swap(at, mix(seed + at as u64) as usize % (at + 1));
    }
    items
}

/// Everything at once between all ranks: sizes on both sides of every limit, tags that come twice, orders that differ.
#[test]
fn messages_find_their_receives_whatever_the_order() {
    for seed in 0..4 {
        for (processes, threads) in [(2, 1), (4, 1), (1, 3), (2, 2)] {
            Cluster::new(processes, threads).argument(seed).run("any_order");
        }
        Cluster::new(3, 1).hosts(3).argument(seed).run("any_order");
        Cluster::new(4, 1).hosts(2).argument(seed).run("any_order");
    }
}

fn any_order(rank: Rank) {
    let (api, ranks, me) = (rank.api, rank.ranks, rank.rank);
    let seed: u64 = rank.argument.parse().unwrap();
    let comm = rank.join();
    // Message `number` from one rank to another: its tag comes from few, its size from many.
    let shape = |from: usize, to: usize, number: usize| {
        let random = mix(seed << 32 | (from << 20 | to << 10 | number) as u64);
        let bytes = match random % 7 {
            0 => 0,
            1 => 1 + random as usize / 7 % 64,
            2..=4 => random as usize / 7 % 20_000,
            5 => 60_000 + random as usize / 7 % 10_000,
            _ => random as usize / 7 % 1_500_000,
        };
        ((random >> 40) as c_int % 4, bytes)
    };
    let content = |from: usize, to: usize, number: usize, bytes: usize| -> Vec<u8> {
        (0..bytes).map(|at| (at ^ at >> 8 ^ (from * 31 + to * 7 + number * 3)) as u8).collect()
    };
    let each = 24;
    let peers = (0..ranks).filter(|peer| *peer != me);
    let sent: Vec<(usize, c_int, Vec<u8>)> = peers
        .clone()
        .flat_map(|peer| (0..each).map(move |number| (peer, number)))
        .map(|(peer, number)| {
            let (tag, bytes) = shape(me, peer, number);
            (peer, tag, content(me, peer, number, bytes))
        })
        .collect();
    // Those of one sender and tag must be asked for in their order, all others need not.
    let mut groups: Vec<Vec<(usize, c_int, Vec<u8>)>> = Vec::new();
    for peer in peers {
        for tag in 0..4 {
            let of =
                (0..each).map(|number| (number, shape(peer, me, number))).filter(|(_, (of, _))| *of == tag);
            groups
                .push(of.map(|(number, (_, bytes))| (peer, tag, content(peer, me, number, bytes))).collect());
        }
    }
    let expected: Vec<_> = shuffled(groups, mix(seed ^ me as u64)).into_iter().flatten().collect();
    let mut received: Vec<Vec<u8>> = expected.iter().map(|(_, _, data)| vec![0xee; data.len()]).collect();
    let mut requests = Vec::new();
    let mut receives = expected.iter().zip(&mut received);
    let mut sends = sent.iter();
    let mut random = mix(seed + 99 * me as u64);
    loop {
        random = mix(random);
        let one = if random.is_multiple_of(2) {
            let next = receives.next();
            next.map(|((peer, tag, _), data)| receive(api, data, *peer as c_int, *tag, comm, 0))
        } else {
            sends.next().map(|(peer, tag, data)| send(api, data, *peer, *tag, comm))
        };
        requests.extend(one);
        if random.is_multiple_of(5) && !requests.is_empty() {
            // Also one that may not be over.
            let request = requests[random as usize / 5 % requests.len()];
            let code = unsafe { (api.acclRequestTest)(request) };
            assert!(code == SUCCESS || code == IN_PROGRESS, "{code}: {}", api.error_text());
        }
        if receives.len() == 0 && sends.len() == 0 {
            break;
        }
    }
    drop(receives);
    shuffled(requests, random).into_iter().for_each(|request| wait(api, request));
    for ((peer, tag, data), got) in expected.iter().zip(&received) {
        assert!(data == got, "from {peer}, tag {tag}, {} bytes", data.len());
    }
    assert_eq!(api.sum(1, comm), ranks as i32, "collective calls go on beside them");
    api.destroy(comm);
}

/// A receive from any rank gets each message once, and says whose it is; one that names its sender is not robbed of an earlier claim.
#[test]
fn a_receive_from_any_rank_says_who_has_sent() {
    Cluster::new(4, 1).run("any_source");
    Cluster::new(1, 3).run("any_source");
    Cluster::new(3, 1).hosts(3).run("any_source");
}

fn any_source(rank: Rank) {
    let (api, ranks, me) = (rank.api, rank.ranks, rank.rank);
    let comm = rank.join();
    let rounds = 50;
    if me == 0 {
        let mut named = vec![0u8; 4];
        let first = receive(api, &mut named, 1, 9, comm, 0);
        let mut counts = vec![0; ranks];
        for _ in 0..rounds * (ranks - 1) {
            let mut data = [0u8; 4];
            let request = receive(api, &mut data, ANY, 5, comm, 0);
            api.ok(unsafe { (api.acclRequestWait)(request, 0) });
            let from = source(api, request);
            api.ok(unsafe { (api.acclRequestFree)(request) });
            assert_eq!(data, [from as u8, counts[from] as u8, 5, 0]);
            counts[from] += 1;
        }
        assert!(counts[1..].iter().all(|count| *count == rounds), "{counts:?}");
        wait(api, first);
        assert_eq!(named, [1, 99, 9, 0]);
    } else {
        for round in 0..rounds {
            wait(api, send(api, &[me as u8, round as u8, 5, 0], 0, 5, comm));
        }
        if me == 1 {
            wait(api, send(api, &[1, 99, 9, 0], 0, 9, comm));
        }
    }
    assert_eq!(api.sum(1, comm), ranks as i32);
    api.destroy(comm);
}

/// What nobody waits for arrives as well, in both directions.
#[test]
fn messages_move_while_nobody_waits() {
    Cluster::new(2, 1).run("unattended");
    Cluster::new(1, 2).run("unattended");
    Cluster::new(2, 1).hosts(2).run("unattended");
}

fn unattended(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let bytes = 8 << 20;
    let (out, mut come) = (vec![me as u8 + 1; bytes], vec![0u8; bytes]);
    if me == 0 {
        let requests = [send(api, &out, 1, 1, comm), receive(api, &mut come, 1, 2, comm, 0)];
        // No call for longer than the peer waits.
        std::thread::sleep(Duration::from_millis(1500));
        let start = Instant::now();
        requests.into_iter().for_each(|request| api.ok(unsafe { (api.acclRequestTest)(request) }));
        assert!(start.elapsed() < Duration::from_secs(1));
        requests.into_iter().for_each(|request| api.ok(unsafe { (api.acclRequestFree)(request) }));
    } else {
        for request in [receive(api, &mut come, 0, 1, comm, 0), send(api, &out, 0, 2, comm)] {
            api.ok(unsafe { (api.acclRequestWait)(request, 1000) });
            api.ok(unsafe { (api.acclRequestFree)(request) });
        }
    }
    assert!(come.iter().all(|byte| *byte == 2 - me as u8));
    api.destroy(comm);
}

/// Several threads of a rank, each with tags of its own; each waits only for its own.
#[test]
fn threads_of_a_rank_do_not_wait_for_each_other() {
    Cluster::new(2, 1).run("many_threads");
    Cluster::new(2, 1).hosts(2).run("many_threads");
}

fn many_threads(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let address = comm as usize;
    std::thread::scope(|scope| {
        for tag in 0..4 {
            scope.spawn(move || {
                let comm = address as Comm;
                for round in 0..100usize {
                    let bytes = mix(round as u64 * 4 + tag as u64) as usize % 100_000;
                    let fill = |rank: usize| (rank * 100 + tag as usize * 10 + round) as u8;
                    let out = vec![fill(me); bytes];
                    let mut come = vec![0u8; bytes];
                    let received = receive(api, &mut come, 1 - me as c_int, tag, comm, 0);
                    let sent = send(api, &out, 1 - me, tag, comm);
                    wait(api, received);
                    wait(api, sent);
                    assert!(come.iter().all(|byte| *byte == fill(1 - me)), "tag {tag}, round {round}");
                }
            });
        }
    });
    api.destroy(comm);
}

/// A message that does not come in time fails with the rank's name, and nothing stands still.
#[test]
fn a_late_message_is_named() {
    Cluster::new(2, 1).run("late");
    Cluster::new(2, 1).hosts(2).run("late");
}

fn late(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let mut data = [0u8; 16];
    let start = Instant::now();
    if me == 0 {
        let request = receive(api, &mut data, 1, 3, comm, 400);
        assert_eq!(unsafe { (api.acclRequestWait)(request, 50) }, IN_PROGRESS);
        assert_eq!(unsafe { (api.acclRequestWait)(request, 0) }, TIMEOUT);
        assert!(start.elapsed() >= Duration::from_millis(400) && start.elapsed() < Duration::from_secs(5));
        let text = api.error_text();
        assert!(text.contains("receive of 16 bytes from rank 1 with tag 3"), "{text}");
        assert_eq!(api.async_error(comm), TIMEOUT);
    } else {
        // It waits for a message that the other one never sends, and hears of its failure.
        let request = receive(api, &mut data, 0, 8, comm, 20_000);
        assert_eq!(unsafe { (api.acclRequestWait)(request, 0) }, TIMEOUT);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(api.error_text().contains("from rank 1 with tag 3"), "{}", api.error_text());
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// Without a limit of its own a message has that of the communicator; whoever waits for nothing but in the background is in no circle.
#[test]
fn who_has_not_sent_is_named() {
    Cluster::new(2, 1).env("ACCL_TIMEOUT", 1).run("still");
}

fn still(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let mut data = [0u8; 16];
    if me == 0 {
        let request = receive(api, &mut data, 1, 3, comm, 0);
        assert_eq!(unsafe { (api.acclRequestWait)(request, 0) }, TIMEOUT);
        let text = api.error_text();
        assert!(text.contains("stood still for") && text.contains(") has not sent it"), "{text}");
    } else {
        // Begun a little later, so that rank 0 is the one whose time is over first, and not waited for.
        std::thread::sleep(Duration::from_millis(500));
        let request = receive(api, &mut data, 0, 8, comm, 0);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(unsafe { (api.acclRequestTest)(request) }, TIMEOUT);
        assert!(api.error_text().contains("with tag 3 stood still"), "{}", api.error_text());
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// The death of whoever a message is to come from is an error at once, not a time limit.
#[test]
fn a_dead_sender_is_named() {
    for hosts in [1, 2] {
        let ended = Cluster::new(2, 1).hosts(hosts).run_to_end("dead");
        assert_eq!(ended[0].code, Some(0), "{}", ended[0].stderr);
        assert_eq!(ended[1].code, None, "{}", ended[1].stderr);
    }
}

fn dead(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 2);
    if me == 1 {
        std::thread::sleep(Duration::from_millis(300));
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let mut data = [0u8; 16];
    let request = receive(api, &mut data, ANY, 3, comm, 0);
    let start = Instant::now();
    assert_eq!(unsafe { (api.acclRequestWait)(request, 0) }, REMOTE_ERROR);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(api.error_text().contains("rank 1"), "{}", api.error_text());
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// Of a sender that ends while its message is under way: all of it comes, or whoever receives is told.
#[test]
fn a_message_that_loses_its_sender_fails() {
    for (hosts, bytes) in [(1, 1 << 12), (1, 1 << 20), (1, 16 << 20), (2, 1 << 12), (2, 32 << 20)] {
        let ended = Cluster::new(2, 1).hosts(hosts).argument(bytes).run_to_end("lost");
        assert_eq!(ended[0].code, Some(0), "{bytes} bytes: {}", ended[0].stderr);
        assert_eq!(ended[1].code, None, "{}", ended[1].stderr);
    }
}

fn lost(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 2);
    let mut data = vec![me as u8; rank.argument.parse().unwrap()];
    if me == 1 {
        send(api, &data, 0, 5, comm);
        std::thread::sleep(Duration::from_millis(100));
        unsafe { libc::raise(libc::SIGKILL) };
    }
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    // The first one may be there.
    let mut codes = Vec::new();
    while codes.len() < 2 && !codes.contains(&REMOTE_ERROR) {
        let (buffer, mut request) = (data.as_mut_ptr().cast(), null_mut());
        let begun = unsafe { (api.acclIrecv)(buffer, data.len(), ANY, 5, comm, 0, &raw mut request) };
        codes.push(if begun == SUCCESS { unsafe { (api.acclRequestWait)(request, 0) } } else { begun });
        assert!(codes[0] != SUCCESS || data.iter().all(|byte| *byte == 1));
    }
    assert_eq!(codes.last(), Some(&REMOTE_ERROR), "{codes:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(api.error_text().contains("rank 1"), "{}", api.error_text());
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// Messages that come and go all the time hide neither a death nor a time limit.
#[test]
fn traffic_hides_no_failure() {
    for hosts in [1, 3] {
        Cluster::new(3, 1).hosts(hosts).argument("late").run("beside_traffic");
        let ended = Cluster::new(3, 1).hosts(hosts).argument("dead").run_to_end("beside_traffic");
        assert_eq!([ended[0].code, ended[1].code], [Some(0); 2], "{}{}", ended[0].stderr, ended[1].stderr);
    }
}

fn beside_traffic(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let dies = rank.argument == "dead";
    assert_eq!(api.sum(1, comm), 3);
    if me == 2 {
        std::thread::sleep(Duration::from_millis(300));
        if dies {
            unsafe { libc::raise(libc::SIGKILL) };
        }
        // Until the others have failed.
        let mut data = [0u8; 1];
        let request = receive(api, &mut data, 1, 77, comm, 0);
        assert_eq!(unsafe { (api.acclRequestWait)(request, 0) }, TIMEOUT);
    } else {
        let mut never = [0u8; 16];
        let stuck = (me == 0).then(|| receive(api, &mut never, 2, 3, comm, if dies { 0 } else { 700 }));
        let start = Instant::now();
        let peer = 1 - me;
        let code = loop {
            assert!(start.elapsed() < Duration::from_secs(10), "nobody has noticed");
            let (mut come, mut codes) = ([0u8; 8], Vec::new());
            let mut requests = [null_mut(), null_mut()];
            let (data, buffer) = ([1u8; 8], come.as_mut_ptr().cast());
            codes.push(unsafe {
                (api.acclIsend)(data.as_ptr().cast(), 8, peer as c_int, 1, comm, 0, &raw mut requests[0])
            });
            codes
                .push(unsafe { (api.acclIrecv)(buffer, 8, peer as c_int, 1, comm, 0, &raw mut requests[1]) });
            codes.extend(
                requests
                    .iter()
                    .filter(|request| !request.is_null())
                    .map(|request| unsafe { (api.acclRequestWait)(*request, 0) }),
            );
            requests.into_iter().for_each(|request| api.ok(unsafe { (api.acclRequestFree)(request) }));
            if let Some(code) = codes.into_iter().find(|code| *code != SUCCESS) {
                break code;
            }
        };
        assert_eq!(code, if dies { REMOTE_ERROR } else { TIMEOUT }, "{}", api.error_text());
        assert!(api.error_text().contains("rank 2"), "{}", api.error_text());
        if let Some(stuck) = stuck {
            // What one call was told of, another request may hear of a moment later.
            assert_eq!(unsafe { (api.acclRequestWait)(stuck, 0) }, code);
        }
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// A rank that has sent all and goes is not missed by a receive from any rank, for which others are there.
#[test]
fn who_goes_in_good_order_is_not_missed() {
    Cluster::new(3, 1).run("leaves");
    Cluster::new(3, 1).hosts(3).run("leaves");
}

fn leaves(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    if me == 0 {
        for expected in [2, 1] {
            let mut data = [0u8; 4];
            let request = receive(api, &mut data, ANY, 5, comm, 0);
            api.ok(unsafe { (api.acclRequestWait)(request, 0) });
            assert_eq!((source(api, request), data), (expected, [expected as u8; 4]));
            api.ok(unsafe { (api.acclRequestFree)(request) });
        }
    } else {
        std::thread::sleep(Duration::from_millis(if me == 1 { 2500 } else { 0 }));
        wait(api, send(api, &[me as u8; 4], 0, 5, comm));
    }
    api.destroy(comm);
}

/// Wrong arguments have their codes, and do no harm; sizes that differ fail at both ends.
#[test]
fn wrong_messages_are_refused() {
    Cluster::new(2, 1).run("refused");
}

fn refused(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let mut data = [0u8; 16];
    let mut request = null_mut();
    let buffer = data.as_mut_ptr().cast();
    let peer = 1 - me as c_int;
    let code = |buffer, peer, tag, limit_ms, to: *mut Request| unsafe {
        (api.acclIrecv)(buffer, 16, peer, tag, comm, limit_ms, to)
    };
    assert_eq!(code(buffer, peer, -1, 0, &raw mut request), INVALID_ARGUMENT);
    assert!(api.error_text().contains("the tag -1 is negative"));
    assert_eq!(code(buffer, 2, 1, 0, &raw mut request), INVALID_ARGUMENT);
    assert_eq!(code(buffer, -2, 1, 0, &raw mut request), INVALID_ARGUMENT);
    assert_eq!(code(buffer, me as c_int, 1, 0, &raw mut request), INVALID_USAGE);
    assert_eq!(code(null_mut(), peer, 1, 0, &raw mut request), INVALID_ARGUMENT);
    assert_eq!(code(buffer, peer, 1, -1, &raw mut request), INVALID_ARGUMENT);
    assert_eq!(code(buffer, peer, 1, 0, null_mut()), INVALID_ARGUMENT);
    assert_eq!(unsafe { (api.acclIsend)(buffer, 16, ANY, 1, comm, 0, &raw mut request) }, INVALID_ARGUMENT);
    assert_eq!(unsafe { (api.acclRequestTest)(null_mut()) }, INVALID_ARGUMENT);
    assert_eq!(unsafe { (api.acclRequestFree)(null_mut()) }, SUCCESS);
    // What works, works still.
    let (received, sent) =
        (receive(api, &mut data, peer, 1, comm, 0), send(api, &[me as u8; 16], 1 - me, 1, comm));
    wait(api, received);
    assert_eq!(data, [1 - me as u8; 16]);
    wait(api, sent);
    assert_eq!(unsafe { (api.acclRequestTest)(sent) }, INVALID_ARGUMENT, "it was freed");
    assert_eq!(api.send(&[1u8], 1 - me, comm), INVALID_USAGE);
    assert!(api.error_text().contains("with and without tags"), "{}", api.error_text());
    // Sizes that differ.
    let request =
        if me == 0 { send(api, &[0; 8], 1, 4, comm) } else { receive(api, &mut data, 0, 4, comm, 0) };
    let code = unsafe { (api.acclRequestWait)(request, 0) };
    if me == 1 {
        assert_eq!(code, INVALID_USAGE);
        let text = api.error_text();
        assert!(text.contains("rank 0 sends 8 bytes with tag 4, and the receive is for 16"), "{text}");
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// What is under way when a communicator ends fails, and its memory is the caller's.
#[test]
fn what_is_under_way_ends_with_its_communicator() {
    for how in ["destroy", "abort"] {
        Cluster::new(2, 1).argument(how).run("ended");
        Cluster::new(2, 1).hosts(2).argument(how).run("ended");
    }
}

fn ended(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let mut data = vec![7u8; 1 << 20];
    let large = vec![8u8; 1 << 20];
    let requests = [receive(api, &mut data, ANY, 3, comm, 0), send(api, &large, 1 - me, 4, comm)];
    let waiter = {
        let request = requests[0] as usize;
        std::thread::spawn(move || unsafe { (api.acclRequestWait)(request as Request, 0) })
    };
    std::thread::sleep(Duration::from_millis(100));
    let end = if rank.argument == "abort" { api.ncclCommAbort } else { api.ncclCommDestroy };
    api.ok(unsafe { end(comm) });
    let code = waiter.join().unwrap();
    // Whichever rank ends first is the other one's reason.
    assert!(code == INVALID_USAGE || code == REMOTE_ERROR, "{code}: {}", api.error_text());
    assert_ne!(unsafe { (api.acclRequestTest)(requests[1]) }, IN_PROGRESS);
    assert!(data.iter().all(|byte| *byte == 7));
    requests.into_iter().for_each(|request| api.ok(unsafe { (api.acclRequestFree)(request) }));
}
