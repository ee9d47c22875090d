//! One suite for every transport: a new one adds a line to [`every_transport`].
//!
//! # Safety
//! Test buffers outlive the links that use them.
#![allow(unsafe_code)]

use super::plugin::{Chosen, PluginLink, PluginReceiver, PluginSender};
use super::rdma::{RdmaLink, RdmaReceiver, RdmaSender};
use super::shm::{Lane, Reach, RingReceiver, RingSender};
use super::tcp::{Link, TcpReceiver, TcpSender};
use super::{MessageHead, Outgoing, Receiver, Sender, mem, shm};
use crate::config;
use crate::device::{Host, UserPointer};
use crate::driver::network_plugin::fake::Fake as FakePlugin;
use crate::driver::verbs::fake::Fake;
use crate::driver::verbs::{self, Verbs};
use crate::encryption::Key;
use crate::os::process;
use crate::types::Scalar;

type Pair = (Box<dyn Sender>, Box<dyn Receiver>);

fn ring(arena: std::sync::Arc<shm::Arena>, lend_above: usize, reach: Reach) -> Pair {
    if reach != Reach::None {
        arena.set_reads(1, 0);
    }
    (
        Box::new(RingSender::new(arena.clone(), 0, 1, Lane::Collective, lend_above)),
        Box::new(RingReceiver::new(arena, 0, 1, Lane::Collective, reach)),
    )
}

fn tcp(stripes: usize) -> Pair {
    let [sending, receiving] = Link::pair(stripes);
    (Box::new(TcpSender::new(sending)), Box::new(TcpReceiver::new(receiving)))
}

fn encrypted_tcp(stripes: usize) -> Pair {
    let key = Key::new(b"the key of a test");
    let [sending, receiving] = Link::pair_with(stripes, &config::Network::default(), Some(&key));
    (Box::new(TcpSender::new(sending)), Box::new(TcpReceiver::new(receiving)))
}

/// Over verbs that are given; settled, or with all that to come.
fn rdma(verbs: &dyn Verbs, pairs: u8, is_settled: bool) -> Pair {
    let mut settings = config::Network::default();
    (settings.verbs.pairs, settings.verbs.timeout) = (pairs, 18);
    let ends = RdmaLink::pair(verbs, &settings);
    if is_settled {
        assert!(RdmaLink::settle(&ends) > 0, "no path is up");
    }
    let [sending, receiving] = ends;
    (Box::new(RdmaSender::new(sending)), Box::new(RdmaReceiver::new(receiving)))
}

/// By a plugin that is given, or by TCP where one end fails to use it.
fn plugin(fake: &FakePlugin, fails: bool, is_settled: bool) -> Pair {
    let chosen = |session| Chosen { session, name: "fake".to_string(), device: 0, is_required: false };
    let other = if fails { Err("it is not wanted".to_string()) } else { Ok(fake.session()) };
    let ends = PluginLink::pair([chosen(Ok(fake.session())), chosen(other)]);
    if is_settled {
        PluginLink::settle(&ends);
    }
    let [sending, receiving] = ends;
    (Box::new(PluginSender::new(sending)), Box::new(PluginReceiver::new(receiving)))
}

/// Verbs of this machine, if it has a device: in the guest of `ci/rdma` it must.
fn real_verbs() -> Option<&'static dyn Verbs> {
    let found = verbs::of_process().unwrap().ok().filter(|verbs| !verbs.devices().unwrap().is_empty());
    assert!(found.is_some() || std::env::var_os("TEST_REQUIRES_RDMA").is_none(), "there is no RDMA device");
    found
}

fn every_transport() -> Vec<(&'static str, Pair)> {
    let shared = || shm::create(2).unwrap().0;
    let mut all = vec![
        ("mem", ring(mem::arena(2).unwrap(), mem::LEND_ABOVE_BYTES, Reach::SameProcess)),
        ("shm, reading across", ring(shared(), shm::LEND_ABOVE_BYTES, Reach::CrossProcess(process::id()))),
        ("shm, through the ring", ring(shared(), usize::MAX, Reach::None)),
        ("tcp", tcp(1)),
        ("tcp, 2 stripes", tcp(2)),
        ("tcp, 4 stripes", tcp(4)),
        ("tcp, encrypted", encrypted_tcp(1)),
        ("tcp, encrypted, 3 stripes", encrypted_tcp(3)),
        ("rdma, fake", rdma(&Fake::new(1, 1), 1, true)),
        ("rdma, fake, 2 ports, 3 pairs each", rdma(&Fake::new(2, 2), 3, true)),
        ("rdma, fake, from the beginning", rdma(&Fake::new(2, 3), 1, false)),
        ("plugin, fake", plugin(&FakePlugin::new(1, 1, false), false, true)),
        ("plugin, fake, 4 receives in a request", plugin(&FakePlugin::new(2, 4, false), false, true)),
        ("plugin, fake, 8 receives and flushes", plugin(&FakePlugin::new(3, 8, true), false, true)),
        ("plugin, fake, from the beginning", plugin(&FakePlugin::new(3, 1, false), false, false)),
        ("plugin, not at the receiver: tcp", plugin(&FakePlugin::new(4, 1, false), true, true)),
        ("rdma, no port", rdma(&Fake::new(0, 4), 1, false)),
    ];
    if let Some(verbs) = real_verbs() {
        all.push(("rdma, this machine's", rdma(verbs, 1, true)));
        all.push(("rdma, this machine's, 3 pairs", rdma(verbs, 3, true)));
        all.push(("rdma, this machine's, from the beginning", rdma(verbs, 1, false)));
    }
    all
}

pub(super) fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8).collect()
}

fn pointer(data: &[u8]) -> UserPointer {
    // SAFETY: callers keep `data` alive while the link uses it.
    unsafe { UserPointer::new(data.as_ptr().cast()) }
}

pub(super) fn room(data: &mut [u8]) -> UserPointer {
    // SAFETY: callers keep `data` alive while the link writes to it.
    unsafe { UserPointer::new(data.as_mut_ptr().cast_const().cast()) }
}

fn outgoing(data: &[u8], tag: u64, scale: Option<Scalar>) -> Outgoing {
    Outgoing::new(pointer(data), MessageHead { bytes: data.len(), tag, scale, call: None })
}

/// The next message's head, once it is there.
pub(super) fn next_head(receiver: &mut dyn Receiver) -> MessageHead {
    loop {
        match receiver.head().unwrap() {
            Some(head) => return head,
            None => std::thread::yield_now(),
        }
    }
}

/// Consumes that message, of so many bytes.
fn skip(receiver: &mut dyn Receiver, mut bytes: usize) {
    while bytes > 0 {
        let piece = receiver.contiguous().unwrap().min(bytes);
        receiver.advance(piece);
        bytes -= piece;
    }
}

/// Receives whole messages while the sender offers what it has, in steps of at most `step` bytes.
fn transfer(pair: &mut Pair, messages: &[Vec<u8>], step: usize, in_place: bool) {
    let (sender, receiver) = pair;
    let mut waiting: Vec<Outgoing> =
        messages.iter().enumerate().map(|(tag, data)| outgoing(data, tag as u64, None)).collect();
    let mut scratch = vec![0u8; step];
    for (tag, expected) in messages.iter().enumerate() {
        let mut got = vec![0u8; expected.len() + 1];
        let mut filled = 0;
        loop {
            if let Some(next) = waiting.iter_mut().find(|message| !message.is_handed_over()) {
                sender.offer(&Host, next).unwrap();
            }
            let Some(head) = receiver.head().unwrap() else { continue };
            assert_eq!((head.bytes, head.tag), (expected.len(), tag as u64));
            let piece = receiver.contiguous().unwrap().min(step);
            if in_place {
                let at = receiver.view(piece, room(&mut scratch)).unwrap();
                // SAFETY: the receiver vouches for `piece` bytes until it advances.
                let seen = unsafe { std::slice::from_raw_parts(at.as_ptr(), piece) };
                got[filled..filled + piece].copy_from_slice(seen);
                scratch.fill(0);
            } else {
                receiver.copy_to(&Host, room(&mut got[filled..]), piece).unwrap();
            }
            receiver.advance(piece);
            filled += piece;
            if filled == expected.len() {
                break;
            }
        }
        assert_eq!(&got[..filled], &expected[..]);
        assert_eq!(got[filled], 0, "wrote past the end");
    }
    assert!(receiver.head().unwrap().is_none());
    assert!(waiting.iter().all(|message| message.is_done(&**sender)));
    assert_eq!(sender.messages_consumed() % messages.len() as u64, 0);
}

#[test]
fn messages_of_every_size_arrive_in_order() {
    let sizes = [0, 1, 63, 64, 65, 0, 4096, 4097, 49_152, 49_153, 65_472, 65_473, 300_000, 3_000_001, 5];
    for in_place in [false, true] {
        for (name, mut pair) in every_transport() {
            let messages: Vec<_> = sizes.iter().enumerate().map(|(seed, size)| bytes(*size, seed)).collect();
            for step in [100_000, 8192] {
                println!("{name}, step {step}");
                transfer(&mut pair, &messages, step, in_place);
            }
        }
    }
}

#[test]
fn many_small_messages_wrap_around() {
    for (name, mut pair) in every_transport() {
        println!("{name}");
        let messages: Vec<_> = (0..3000).map(|seed| bytes(seed % 700, seed)).collect();
        for _ in 0..3 {
            transfer(&mut pair, &messages, 1 << 20, false);
        }
    }
}

#[test]
fn a_factor_travels_with_the_head() {
    for (_, (mut sender, mut receiver)) in every_transport() {
        let data = bytes(8, 1);
        for scale in [None, Some(Scalar([1, 2, 3, 4, 5, 6, 7, 8]))] {
            let mut message = outgoing(&data, 77, scale);
            assert!(sender.offer(&Host, &mut message).unwrap());
            while receiver.head().unwrap().is_none() {
                sender.offer(&Host, &mut message).unwrap();
            }
            assert_eq!(next_head(&mut *receiver), MessageHead { bytes: 8, tag: 77, scale, call: None });
            skip(&mut *receiver, 8);
            while !message.is_done(&*sender) {
                sender.offer(&Host, &mut message).unwrap();
            }
        }
    }
}

#[test]
fn credits_run_out_and_come_back() {
    for (name, (mut sender, mut receiver)) in every_transport() {
        // It comes to terms meanwhile, by a thread of its own, and moves by itself.
        if name == "plugin, fake, from the beginning" {
            continue;
        }
        let data = bytes(2000, 3);
        // Small messages need no receiver, until one does not fit, or not all of it.
        let mut count = 0;
        let mut stuck = loop {
            let mut message = outgoing(&data, count, None);
            // A plugin may refuse what it has room for, or be asked by its own thread at the time.
            for _ in 0..200 {
                sender.offer(&Host, &mut message).unwrap();
                if message.is_done(&*sender) {
                    break;
                }
                std::thread::yield_now();
            }
            if !message.is_done(&*sender) {
                break message;
            }
            count += 1;
        };
        assert!(count > 10, "{name}: {count}");
        assert!(!sender.offer(&Host, &mut stuck).unwrap(), "{name}: nothing was consumed");
        // A ring has room again as soon as a message is consumed, a socket when its kernel sees fit,
        // RDMA by the quarter.
        let late = ["tcp", "rdma", "plugin"].iter().any(|kind| name.starts_with(kind));
        let enough = if late { count } else { 1 };
        for expected in 0..=count {
            assert_eq!(next_head(&mut *receiver).tag, expected, "{name}");
            skip(&mut *receiver, 2000);
            sender.offer(&Host, &mut stuck).unwrap();
            // Credits may take their time.
            while expected + 1 >= enough && enough > 1 && !stuck.is_done(&*sender) {
                std::thread::yield_now();
                sender.offer(&Host, &mut stuck).unwrap();
            }
            assert!(expected + 1 < enough || stuck.is_done(&*sender), "{name}");
        }
    }
}

#[test]
fn a_closed_link_reads_no_lent_memory() {
    for (name, (mut sender, mut receiver)) in every_transport() {
        let data = bytes(1 << 20, 1);
        let mut message = outgoing(&data, 0, None);
        sender.offer(&Host, &mut message).unwrap();
        sender.close();
        if message.is_handed_over() && !message.is_done(&*sender) {
            assert!(receiver.head().unwrap().is_some());
            let scratch = bytes(64, 0);
            let error = receiver.view(64, pointer(&scratch)).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Remote, "{name}");
        }
    }
}

#[test]
fn two_threads_agree() {
    for (name, (mut sender, mut receiver)) in every_transport() {
        println!("{name}");
        let messages: Vec<_> = (0..400).map(|seed| bytes((seed * 977) % 150_000, seed)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (tag, data) in messages.iter().enumerate() {
                    let mut message = outgoing(data, tag as u64, None);
                    while !message.is_done(&*sender) {
                        if !sender.offer(&Host, &mut message).unwrap() {
                            std::thread::yield_now();
                        }
                    }
                }
            });
            for (tag, expected) in messages.iter().enumerate() {
                let mut got = vec![0u8; expected.len()];
                let mut filled = 0;
                loop {
                    let Some(head) = receiver.head().unwrap() else {
                        std::thread::yield_now();
                        continue;
                    };
                    assert_eq!(head.tag, tag as u64);
                    let piece = receiver.contiguous().unwrap();
                    receiver.copy_to(&Host, room(&mut got[filled..]), piece).unwrap();
                    receiver.advance(piece);
                    filled += piece;
                    if filled == expected.len() {
                        break;
                    }
                    if piece == 0 {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(&got, expected);
            }
        });
    }
}

#[test]
fn garbage_on_a_connection_is_an_error_that_says_so() {
    let [sending, receiving] = Link::pair(1);
    let mut receiver = TcpReceiver::new(receiving);
    let socket = sending.socket().unwrap().unwrap();
    let garbage = [b'x'; 4096];
    assert_eq!(socket.write_some(&garbage, &[]).unwrap(), Some(4096));
    let error = loop {
        match receiver.head() {
            Ok(head) => assert_eq!(head, None),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), crate::ErrorKind::Remote);
    assert!(error.text().contains("is lost: what it sends is no message"), "{error}");
}

#[test]
fn what_came_before_the_end_of_a_connection_is_received_first() {
    let (mut sender, mut receiver) = tcp(2);
    let data = bytes(100_000, 5);
    let mut message = outgoing(&data, 3, None);
    while !message.is_done(&*sender) {
        sender.offer(&Host, &mut message).unwrap();
    }
    drop(sender);
    assert_eq!(next_head(&mut *receiver).bytes, data.len());
    skip(&mut *receiver, data.len());
    let error = loop {
        match receiver.head() {
            Ok(head) => assert_eq!(head, None),
            Err(error) => break error,
        }
    };
    assert!(error.text().contains("rank 0") && error.text().contains("it closed the connection"), "{error}");
}

#[test]
fn a_message_that_breaks_off_is_an_error() {
    let (mut sender, mut receiver) = tcp(2);
    let data = bytes(64 << 20, 5);
    let mut message = outgoing(&data, 3, None);
    sender.offer(&Host, &mut message).unwrap();
    assert!(!message.is_handed_over());
    sender.close();
    next_head(&mut *receiver);
    let error = loop {
        match receiver.contiguous() {
            Ok(piece) => receiver.advance(piece),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), crate::ErrorKind::Remote);
}

/// What has come of one message is taken to its place, whatever comes first.
pub(super) fn take_all(
    receiver: &mut dyn Receiver,
    got: &mut [u8],
    piece: usize,
) -> crate::error::Result<()> {
    let mut filled = 0;
    while filled < got.len() {
        filled += receiver.take(&Host, room(&mut got[filled..]), piece, false)?;
    }
    Ok(())
}

#[test]
fn what_is_only_stored_may_come_in_any_order() {
    for (name, (mut sender, mut receiver)) in every_transport() {
        println!("{name}");
        let messages: Vec<_> = (0..40).map(|seed| bytes(seed * 70_001 % 1_500_000 + 1, seed)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (tag, data) in messages.iter().enumerate() {
                    let mut message = outgoing(data, tag as u64, None);
                    while !message.is_done(&*sender) {
                        sender.offer(&Host, &mut message).unwrap();
                    }
                }
            });
            for (tag, expected) in messages.iter().enumerate() {
                assert_eq!(next_head(&mut *receiver).tag, tag as u64);
                let mut got = vec![0u8; expected.len()];
                take_all(&mut *receiver, &mut got, if tag % 2 == 0 { 1 << 20 } else { 5000 }).unwrap();
                assert!(got == *expected, "{name}: message {tag}");
            }
        });
    }
}
