//! Links over fake verbs that fail: at random points, with whatever was under way.

use super::path::Stage;
use super::{LocalPort, RdmaLink, RdmaReceiver, RdmaSender, ports};
use crate::config::Network;
use crate::device::Host;
use crate::driver::verbs::fake::{Fake, Fault};
use crate::transport::conformance::{bytes, next_head, room};
use crate::transport::{MessageHead, Outgoing, Receiver, Route, Sender};
use std::sync::Arc;

fn settings(pairs: u8) -> Network {
    let mut settings = Network::default();
    settings.verbs.pairs = pairs;
    settings
}

/// Sends messages both ways while `disturb` is called each time that nobody can go on, and now and then besides.
fn exchange(ends: &[Arc<RdmaLink>; 2], messages: usize, seed: usize, disturb: &mut dyn FnMut(usize)) {
    let halves = |end: &Arc<RdmaLink>| (RdmaSender::new(end.clone()), RdmaReceiver::new(end.clone()));
    let mut halves = ends.each_ref().map(halves);
    let data: Vec<_> = (0..messages).map(|at| bytes((at * 7919 + seed * 977) % 300_000, at + seed)).collect();
    let message = |at: usize| {
        let head = MessageHead { bytes: data[at].len(), tag: at as u64, scale: None, call: None };
        Outgoing::new(room(&mut data[at].clone().leak()[..]), head)
    };
    let mut outgoing = [message(0), message(0)];
    let mut sent = [0, 0];
    let mut received = [0, 0];
    let mut got = [Vec::new(), Vec::new()];
    let mut rounds = 0;
    while received != [messages, messages] {
        rounds += 1;
        assert!(rounds < 3_000_000, "stuck: sent {sent:?}, received {received:?}, {ends:#?}");
        disturb(rounds);
        for (end, (sender, receiver)) in halves.iter_mut().enumerate() {
            if sent[end] < messages {
                sender.offer(&Host, &mut outgoing[end]).unwrap();
                if outgoing[end].is_handed_over() {
                    sent[end] += 1;
                    if sent[end] < messages {
                        outgoing[end] = message(sent[end]);
                    }
                }
            }
            let Some(head) = receiver.head().unwrap() else { continue };
            let expected = &data[received[end]];
            assert_eq!((head.tag, head.bytes), (received[end] as u64, expected.len()));
            let there = receiver.contiguous().unwrap();
            let at = got[end].len();
            got[end].resize(at + there, 0);
            receiver.copy_to(&Host, room(&mut got[end][at..]), there).unwrap();
            receiver.advance(there);
            if got[end].len() == expected.len() {
                assert!(got[end] == *expected, "message {} of seed {seed}", received[end]);
                received[end] += 1;
                got[end].clear();
            }
        }
    }
}

/// Waits for what comes about by itself: on the thread `accl-network`, while nobody here does anything.
fn until(comes: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if comes() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("it does not come about");
}

fn is_up(end: &Arc<RdmaLink>) -> bool {
    end.core().paths[0].state.stage() == Stage::Up
}

/// Sends a message, as far as its sender is concerned.
fn send(sender: &mut RdmaSender, data: &mut [u8]) {
    let head = MessageHead { bytes: data.len(), ..MessageHead::default() };
    let mut message = Outgoing::new(room(data), head);
    while !message.is_handed_over() {
        sender.offer(&Host, &mut message).unwrap();
    }
}

/// What has come, for a receiver that only looks whether it has.
fn receive(receiver: &mut RdmaReceiver) -> Vec<u8> {
    let mut found = None;
    for _ in 0..20_000 {
        found = receiver.head().unwrap();
        if found.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let bytes = found.expect("a message").bytes;
    let mut got = vec![0; bytes];
    let mut at = 0;
    while at < bytes {
        let there = receiver.contiguous().unwrap();
        receiver.copy_to(&Host, room(&mut got[at..]), there).unwrap();
        receiver.advance(there);
        at += there;
    }
    got
}

#[test]
fn what_has_gone_by_a_path_that_fails_goes_again_while_its_sender_does_nothing() {
    for fault in [Fault::Lost { port: 0 }, Fault::Unacknowledged { port: 0 }] {
        let fake = Fake::new(1, 11);
        let ends = RdmaLink::pair(&fake, &settings(1));
        assert_eq!(RdmaLink::settle(&ends), 1);
        let (mut sender, mut receiver) =
            (RdmaSender::new(ends[0].clone()), RdmaReceiver::new(ends[1].clone()));
        fake.inject(fault);
        let mut data = bytes(3_000, 5);
        send(&mut sender, &mut data);
        // From here on the sender computes, say.
        assert!(receive(&mut receiver) == data);
    }
}

#[test]
fn who_sleeps_for_another_rank_tends_its_links() {
    let fake = Fake::new(1, 13);
    let ends = RdmaLink::pair(&fake, &settings(1));
    assert_eq!(RdmaLink::settle(&ends), 1);
    let mut sender = RdmaSender::new(ends[0].clone());
    fake.inject(Fault::Lost { port: 0 });
    let mut data = bytes(3_000, 5);
    send(&mut sender, &mut data);
    let waits = |end: &Arc<RdmaLink>| end.core().receives.first().is_none();
    let mut rounds = 0;
    // The peer waits for this message alone; the sender waits for a third rank, and looks at this link only before it sleeps.
    while waits(&ends[1]) {
        ends[0].ring_when(1, 0).unwrap();
        ends[1].core().progress();
        rounds += 1;
        assert!(rounds < 1_000_000, "it waits for ever");
    }
}

#[test]
fn a_message_is_over_when_it_has_gone_and_not_before() {
    let fake = Fake::new(1, 17);
    let ends = RdmaLink::pair(&fake, &settings(1));
    assert_eq!(RdmaLink::settle(&ends), 1);
    // Nothing comes back, so that the queue pair is full some time.
    fake.set_silent(true);
    let mut sender = RdmaSender::new(ends[0].clone());
    let mut data = bytes(32 * 65_536 - 48, 1);
    let head = MessageHead { bytes: data.len(), ..MessageHead::default() };
    let mut message = Outgoing::new(room(&mut data), head);
    let staged = sender.offer(&Host, &mut message).unwrap();
    assert!(staged && message.is_handed_over(), "a ring and a queue pair hold it");
    // A path that ends takes its segments back: until they have gone, nothing more is over.
    ends[0].core().trouble(0, "a test");
    let mut short = bytes(5, 1);
    let mut second = Outgoing::new(room(&mut short), MessageHead { bytes: 5, ..MessageHead::default() });
    for _ in 0..100 {
        sender.offer(&Host, &mut second).unwrap();
    }
    assert!(!second.is_handed_over(), "the ring is full");
    fake.set_silent(false);
    let mut receiver = RdmaReceiver::new(ends[1].clone());
    assert!(receive(&mut receiver) == data);
    while !second.is_handed_over() {
        sender.offer(&Host, &mut second).unwrap();
    }
    assert!(receive(&mut receiver) == short);
}

#[test]
fn a_network_that_lets_nothing_through_brings_no_path_up() {
    let fake = Fake::new(1, 19);
    fake.set_silent(true);
    let ends = RdmaLink::pair(&fake, &settings(1));
    assert_eq!(RdmaLink::settle(&ends), 0);
    exchange(&ends, 20, 1, &mut |_| {});
    for end in &ends {
        let core = end.core();
        let path = &core.paths[0];
        assert!(!path.was_up && path.segments == 0, "{path:?}");
        assert!(path.pause > std::time::Duration::from_millis(100), "each try waits longer: {path:?}");
        assert!(path.reason.contains("no answer to a packet of 1024 bytes"), "{}", path.reason);
    }
    fake.set_silent(false);
    until(|| ends.iter().all(is_up));
    exchange(&ends, 20, 1, &mut |_| {});
}

#[test]
fn faults_at_random_points_lose_and_double_nothing() {
    let mut failed_pairs = 0;
    for seed in 1..=40 {
        let fake = Fake::new(2, seed as u64 * 0x9e37_79b9);
        let ends = RdmaLink::pair(&fake, &settings(1 + seed as u8 % 2));
        let mut random = seed as u64;
        let mut disturb = |round: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let port = (random >> 60) as usize % 2;
            match random >> 33 & 511 {
                0 => fake.inject(Fault::Lost { port }),
                1 => fake.inject(Fault::Unacknowledged { port }),
                2 => fake.set_down(port, true),
                3 => fake.refuse("ibv_post_send", 0),
                4 => fake.refuse("ibv_post_recv", 3),
                5 => fake.refuse("ibv_create_qp", 0),
                6 => fake.refuse("ibv_modify_qp", 1),
                7 => fake.refuse("ibv_poll_cq", 2),
                8..=15 => fake.set_down(port, false),
                _ => {}
            }
            if round.is_multiple_of(64) {
                // Paths rest for real time.
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        };
        exchange(&ends, 120, seed, &mut disturb);
        let counts = fake.counts();
        assert_eq!(counts.not_ready, 0, "seed {seed}");
        failed_pairs += counts.failed_pairs;
        drop(ends);
        assert_eq!(fake.live(), (0, 0, 0), "seed {seed}: something is left");
    }
    println!("{failed_pairs} queue pairs failed");
    assert!(failed_pairs > 100, "{failed_pairs}");
}

#[test]
fn a_path_that_was_down_comes_back() {
    let fake = Fake::new(1, 5);
    let ends = RdmaLink::pair(&fake, &settings(1));
    assert_eq!(RdmaLink::settle(&ends), 1);
    fake.set_down(0, true);
    exchange(&ends, 20, 1, &mut |_| {});
    let before = fake.counts().writes[0];
    // Everything has gone by TCP, but for what was tried before the fault was seen.
    let by_path: u64 = ends.iter().map(|end| end.core().paths[0].segments).sum();
    assert!(by_path < 70, "{by_path}");
    fake.set_down(0, false);
    until(|| ends.iter().all(is_up));
    exchange(&ends, 20, 2, &mut |_| {});
    assert!(fake.counts().writes[0] > before + 40, "the path is used again");
}

#[test]
fn segments_are_spread_evenly() {
    let fake = Fake::new(2, 9);
    let ends = RdmaLink::pair(&fake, &settings(2));
    assert_eq!(RdmaLink::settle(&ends), 4);
    exchange(&ends, 200, 3, &mut |_| {});
    for end in &ends {
        let segments: Vec<_> = end.core().paths.iter().map(|path| path.segments).collect();
        let (least, most) = (segments.iter().min().unwrap(), segments.iter().max().unwrap());
        println!("{segments:?}");
        assert!(*least > 50 && most * 10 <= least * 11, "{segments:?}");
    }
    let counts = fake.counts();
    let writes: u64 = counts.writes.iter().sum();
    assert!(counts.signalled * 6 < writes, "{counts:?}: most writes report nothing");
}

#[test]
fn what_is_required_and_lost_is_an_error_that_names_the_port() {
    let fake = Fake::new(1, 5);
    let mut required = settings(1);
    required.verbs.is_required = true;
    let ends = RdmaLink::pair(&fake, &required);
    assert_eq!(RdmaLink::settle(&ends), 1);
    fake.set_down(0, true);
    let mut sender = RdmaSender::new(ends[0].clone());
    let error = loop {
        let mut data = bytes(100_000, 1);
        let head = MessageHead { bytes: data.len(), ..MessageHead::default() };
        let mut message = Outgoing::new(room(&mut data), head);
        let mut outcome = Ok(false);
        while !message.is_handed_over() && outcome.is_ok() {
            outcome = sender.offer(&Host, &mut message);
            ends[1].core().progress();
        }
        if let Err(error) = outcome {
            break error;
        }
    };
    assert!(error.text().starts_with("ACCL_REQUIRE_PATH=rdma, but no path leads to rank 1"), "{error}");
    assert!(error.text().contains("unset it"), "{error}");
}

#[test]
fn memory_that_cannot_be_registered_leaves_tcp_and_says_why() {
    let fake = Fake::new(1, 5);
    fake.refuse("ibv_reg_mr", 0);
    let ends = RdmaLink::pair(&fake, &settings(1));
    assert_eq!(RdmaLink::settle(&ends), 0);
    exchange(&ends, 20, 1, &mut |_| {});
    // Both ends know why, and none of them tries it again.
    for end in &ends {
        let core = end.core();
        let (reason, epoch) = (&core.paths[0].reason, core.paths[0].state.epoch());
        assert!(reason.contains("port fake0:1 cannot be used: ibv_reg_mr of libibverbs failed"), "{reason}");
        assert!(reason.contains("ulimit -l") && core.paths[0].is_useless, "{reason}");
        assert!(epoch <= 1, "{epoch} tries");
    }
    let told = ends.each_ref().map(|end| end.core().paths[0].reason.contains(" says: "));
    assert!(told == [true, false] || told == [false, true], "one end has it from the other: {told:?}");
}

#[test]
fn what_was_sent_before_a_link_is_closed_arrives() {
    for settled in [false, true] {
        let fake = Fake::new(2, 7);
        let ends = RdmaLink::pair(&fake, &settings(1));
        if settled {
            RdmaLink::settle(&ends);
        }
        let [one, other] = ends;
        let mut sender = RdmaSender::new(one.clone());
        let mut data = bytes(40_000, 4);
        for tag in 0..3 {
            let head = MessageHead { bytes: data.len(), tag, ..MessageHead::default() };
            let mut message = Outgoing::new(room(&mut data), head);
            while !message.is_handed_over() {
                sender.offer(&Host, &mut message).unwrap();
            }
        }
        drop((sender, one));
        let mut receiver = RdmaReceiver::new(other.clone());
        for tag in 0..3 {
            assert!(other.is_open());
            assert_eq!(next_head(&mut receiver).tag, tag);
            let mut got = vec![0; data.len()];
            let there = receiver.contiguous().unwrap();
            receiver.copy_to(&Host, room(&mut got), there).unwrap();
            receiver.advance(there);
            assert!(got == data);
        }
        let error = loop {
            match receiver.head() {
                Ok(head) => assert_eq!(head, None),
                Err(error) => break error,
            }
        };
        assert!(!other.is_open());
        assert!(error.text().contains("it closed the connection"), "{error}");
    }
}

#[test]
fn who_waits_is_woken_by_what_comes() {
    let fake = Fake::new(1, 3);
    let ends = RdmaLink::pair(&fake, &settings(1));
    RdmaLink::settle(&ends);
    let (mut sender, mut receiver) = (RdmaSender::new(ends[0].clone()), RdmaReceiver::new(ends[1].clone()));
    let arena = ends[1].core().tcp.world().arena.clone();
    for round in 0..20 {
        assert!(receiver.head().unwrap().is_none());
        let bell = &arena.block(1).bell;
        let rings = bell.arm();
        ends[1].ring_when(1, 0).unwrap();
        let mut data = bytes(5, round);
        let head = MessageHead { bytes: 5, tag: round as u64, ..MessageHead::default() };
        let mut message = Outgoing::new(room(&mut data), head);
        assert!(sender.offer(&Host, &mut message).unwrap());
        // Time passes in the fake when anybody looks.
        for _ in 0..50 {
            ends[0].core().progress();
        }
        crate::os::futex::wait_any(&[(bell.word(), rings)], std::time::Duration::from_secs(20));
        bell.disarm();
        assert_eq!(next_head(&mut receiver).tag, round as u64);
        let there = receiver.contiguous().unwrap();
        receiver.advance(there);
    }
}

#[test]
fn ports_of_a_fake_are_used_by_their_routable_address() {
    let (found, _) = ports::ports_of(&Fake::new(2, 1), &settings(1).verbs).unwrap();
    assert_eq!(
        found.iter().map(LocalPort::describe).collect::<Vec<_>>(),
        ["fake0:1/RoCE<10.0.0.1>", "fake1:1/RoCE<10.0.1.1>"]
    );
}
