//! Links over the fake plugin: who carries what, what is asked of the plugin, and what becomes of failures.

use super::link::Carrier;
use super::{Chosen, PluginLink, PluginReceiver, PluginSender};
use crate::device::{Host, UserPointer};
use crate::driver::network_plugin::fake::Fake;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Scratch;
use crate::os::clock;
use crate::transport::conformance::{bytes, take_all};
use crate::transport::{MessageHead, Outgoing, Receiver, Route, Sender};
use std::sync::Arc;
use std::time::Duration;

fn chosen(fake: &Fake, is_required: bool) -> Chosen {
    Chosen { session: Ok(fake.session()), name: "fake".to_string(), device: 0, is_required }
}

fn ends_of(fake: &Fake) -> [Arc<PluginLink>; 2] {
    PluginLink::pair([chosen(fake, false), chosen(fake, false)])
}

struct Message {
    _memory: Scratch,
    outgoing: Outgoing,
}

fn message(data: &[u8], tag: u64) -> Message {
    let mut memory = Scratch::default();
    let source: UserPointer = memory.fill(data).unwrap();
    let head = MessageHead { bytes: data.len(), tag, scale: None, call: None };
    Message { _memory: memory, outgoing: Outgoing::new(source, head) }
}

/// Has `sizes` go from one end to the other, and compares them; the first error, if there is one.
fn carry(sender: &mut PluginSender, receiver: &mut PluginReceiver, sizes: &[usize]) -> Result<()> {
    let end = clock::now() + Duration::from_secs(60);
    for (tag, size) in sizes.iter().enumerate() {
        let data = bytes(*size, tag);
        let mut message = message(&data, tag as u64);
        let mut got = vec![0; *size];
        let mut filled = 0;
        let mut has_head = false;
        while !has_head || filled < *size || !message.outgoing.is_done(sender) {
            assert!(clock::now() < end, "message {tag} of {size} bytes does not come");
            if !message.outgoing.is_handed_over() {
                sender.offer(&Host, &mut message.outgoing)?;
            }
            if has_head && filled == *size {
                continue;
            }
            let Some(head) = receiver.head()? else { continue };
            assert_eq!((head.bytes, head.tag), (*size, tag as u64));
            has_head = true;
            let piece = receiver.contiguous()?;
            receiver.copy_to(&Host, crate::transport::conformance::room(&mut got[filled..]), piece)?;
            receiver.advance(piece);
            filled += piece;
        }
        assert!(got == data, "message {tag} of {size} bytes");
    }
    Ok(())
}

const SIZES: [usize; 8] = [0, 1, 131_024, 131_025, 5_000_000, 70_000, 262_096, 3];

#[test]
fn everything_is_given_back_when_both_ends_leave_and_requests_have_ended() {
    for (most, flushes, idle) in [(1, false, true), (4, false, false), (8, true, true), (1, true, false)] {
        let fake = Fake::new(most as u64, most, flushes);
        let ends = ends_of(&fake);
        assert_eq!(PluginLink::settle(&ends), Carrier::Plugin);
        let [one, other] = ends;
        let mut sender = PluginSender::new(one.clone());
        let mut receiver = PluginReceiver::new(other.clone());
        carry(&mut sender, &mut receiver, &SIZES).unwrap();
        let carried: usize = SIZES.iter().map(|size| size + 48).sum();
        let counts = fake.counts();
        assert_eq!(counts.bytes, carried, "{counts:?}");
        assert_eq!((counts.groups > 0, counts.flushes > 0), (most > 1, flushes), "{counts:?}");
        assert!(counts.refused > 0);
        // The other end leaves at the same time, or does something else meanwhile.
        if idle {
            drop(sender);
            drop((receiver, one));
            PluginSender::new(other).close();
        } else {
            let mut back = PluginSender::new(other);
            std::thread::scope(|scope| {
                scope.spawn(|| back.close());
                sender.close();
            });
            drop((back, receiver, sender, one));
        }
        let counts = fake.counts();
        assert_eq!(fake.wrong(), Vec::<String>::new());
        assert_eq!((counts.opened, counts.registered), (6, 4), "{counts:?}");
        assert_eq!((counts.closed, counts.deregistered), (6, 4), "{counts:?}");
    }
}

#[test]
fn what_fails_before_it_is_used_leaves_everything_to_tcp_at_both_ends() {
    for function in ["listen", "connect", "accept", "register"] {
        for after in [0, 1] {
            let fake = Fake::new(7, 1, false);
            fake.fail(function, after);
            let ends = ends_of(&fake);
            assert_eq!(PluginLink::settle(&ends), Carrier::Tcp, "{function} after {after}");
            let [one, other] = ends;
            let (mut sender, mut receiver) = (PluginSender::new(one), PluginReceiver::new(other));
            carry(&mut sender, &mut receiver, &SIZES).unwrap();
            drop((sender, receiver));
            let counts = fake.counts();
            assert_eq!(counts.bytes, 0);
            assert_eq!(
                (counts.opened, counts.registered),
                (counts.closed, counts.deregistered),
                "{function}"
            );
            assert_eq!(fake.wrong(), Vec::<String>::new(), "{function}");
        }
    }
}

#[test]
fn where_the_plugin_is_required_tcp_takes_nothing() {
    let fake = Fake::new(7, 1, false);
    let [one, other] = PluginLink::pair([
        chosen(&fake, true),
        Chosen { session: Err("not loaded".to_string()), ..chosen(&fake, false) },
    ]);
    let (mut sender, mut receiver) = (PluginSender::new(one), PluginReceiver::new(other));
    let error = carry(&mut sender, &mut receiver, &[10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Remote);
    for words in
        ["the network plugin fake is required", "from rank 0 to rank 1", "not loaded", "to go by TCP"]
    {
        assert!(error.text().contains(words), "{words}: {error}");
    }
    assert_eq!(fake.counts().bytes, 0);
}

/// What the first failing call says, and that everything is given back after it.
fn failing(spoil: impl Fn(&Fake), sizes: &[usize]) -> Error {
    let fake = Fake::new(9, 4, true);
    let ends = ends_of(&fake);
    assert_eq!(PluginLink::settle(&ends), Carrier::Plugin);
    let [one, other] = ends;
    let (mut sender, mut receiver) = (PluginSender::new(one), PluginReceiver::new(other.clone()));
    spoil(&fake);
    let error = carry(&mut sender, &mut receiver, sizes).unwrap_err();
    sender.close_failed(&error);
    drop((sender, receiver));
    PluginSender::new(other).close_failed(&error);
    let counts = fake.counts();
    assert_eq!((counts.opened, counts.registered), (counts.closed, counts.deregistered), "{error}");
    error
}

#[test]
fn what_fails_while_it_is_used_is_an_error_that_is_the_plugins() {
    for function in ["send", "receive", "test", "flush"] {
        for after in [0, 13] {
            let error = failing(|fake| fake.fail(function, after), &[5_000_000, 5_000_000]);
            assert!(error.text().contains(&format!("the fake fails in {function}")), "{error}");
        }
    }
    let error = failing(Fake::lie, &[1000]);
    assert!(error.text().contains("a segment has 1049 bytes in place of 1048"), "{error}");
    let error = failing(Fake::lie, &[1_000_000]);
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.text().contains("131073 bytes have come") && error.text().contains("131072"), "{error}");
}

#[test]
fn who_leaves_a_plugin_that_hangs_is_not_kept_for_long() {
    let fake = Fake::new(9, 1, false);
    let ends = ends_of(&fake);
    assert_eq!(PluginLink::settle(&ends), Carrier::Plugin);
    fake.hang();
    let [one, other] = ends;
    let (mut sender, mut receiver) = (PluginSender::new(one), PluginReceiver::new(other));
    let mut sent = message(&bytes(1000, 1), 0);
    for _ in 0..1000 {
        sender.offer(&Host, &mut sent.outgoing).unwrap();
        assert_eq!(receiver.head().unwrap(), None);
    }
    let begin = clock::now();
    drop((sender, receiver));
    assert!(clock::now() - begin < Duration::from_secs(20));
    let counts = fake.counts();
    assert_eq!((counts.registered, counts.deregistered), (4, 4));
}

/// A rank that sleeps is woken by what comes, though the plugin wakes nobody.
#[test]
fn who_sleeps_is_woken() {
    let fake = Fake::new(11, 1, false);
    let ends = ends_of(&fake);
    assert_eq!(PluginLink::settle(&ends), Carrier::Plugin);
    let [one, other] = ends;
    let world = other.core().tcp.world().clone();
    let (mut sender, mut receiver) = (PluginSender::new(one), PluginReceiver::new(other.clone()));
    let bell = &world.arena.block(world.rank).bell;
    let rings = bell.arm();
    other.ring_when(1, 0).unwrap();
    let data = bytes(300_000, 5);
    let mut sent = message(&data, 4);
    let end = clock::now() + Duration::from_secs(60);
    while bell.arm() == rings || !sent.outgoing.is_done(&sender) {
        if !sent.outgoing.is_handed_over() {
            sender.offer(&Host, &mut sent.outgoing).unwrap();
        }
        std::thread::yield_now();
        assert!(clock::now() < end, "the bell did not ring");
    }
    let mut got = vec![0; data.len()];
    while receiver.head().unwrap().is_none() {}
    take_all(&mut receiver, &mut got, 1 << 20).unwrap();
    assert!(got == data);
}
