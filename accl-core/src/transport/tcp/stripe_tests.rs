//! Blocks of one message on connections of different speed, and blocks that are wrong.

use super::{BLOCK_BYTES, BlockHead, Head, Link, TcpReceiver};
use crate::device::Host;
use crate::transport::conformance::{bytes, next_head, room, take_all};
use crate::transport::{MessageHead, Receiver, Route};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Writes all of it on one connection of a link.
fn write(link: &Arc<Link>, index: usize, parts: &[&[u8]]) {
    let bytes = parts.concat();
    let mut sent = 0;
    while sent < bytes.len() {
        let socket = link.stripe(index).unwrap();
        sent += socket.write_some(&bytes[sent..], &[]).unwrap().unwrap_or(0);
    }
}

fn block_head(message: u32, block: u64) -> [u8; 16] {
    BlockHead { message, block, blocks: 1 }.encode()
}

fn message_head(bytes: usize) -> [u8; 48] {
    Head::Message(MessageHead { bytes, tag: 5, scale: None, call: None }).encode()
}

#[test]
fn a_slow_connection_gets_the_others_to_wait_only_where_order_counts() {
    const SIZE: usize = BLOCK_BYTES;
    let data = bytes(4 * SIZE + 100, 9);
    for in_place in [false, true] {
        let [sending, receiving] = Link::pair(3);
        let mut receiver = TcpReceiver::new(receiving);
        // The last block and the third are there long before the first.
        write(
            &sending,
            2,
            &[&block_head(0, 2), &data[2 * SIZE..3 * SIZE], &block_head(0, 4), &data[4 * SIZE..]],
        );
        write(&sending, 1, &[&block_head(0, 1), &data[SIZE..2 * SIZE], &block_head(1, 0)]);
        write(&sending, 0, &[&message_head(data.len())]);
        assert_eq!(next_head(&mut receiver).bytes, data.len());
        let mut got = vec![0; data.len()];
        if in_place {
            assert_eq!(receiver.contiguous().unwrap(), 0, "the first block is missing");
        } else {
            let there = 2 * SIZE + 100;
            let mut taken = 0;
            while taken < there {
                taken += receiver.take(&Host, room(&mut got[taken..]), usize::MAX, false).unwrap();
            }
            assert_eq!(receiver.take(&Host, room(&mut got[taken..]), usize::MAX, false).unwrap(), 0);
            assert!(got[SIZE..3 * SIZE] == data[SIZE..3 * SIZE] && got[4 * SIZE..] == data[4 * SIZE..]);
            // Not the second connection: it has begun with another message.
            assert_eq!(receiver.waits_for(), 0b101);
        }
        write(&sending, 0, &[&block_head(0, 0), &data[..SIZE], &block_head(0, 3), &data[3 * SIZE..4 * SIZE]]);
        let mut filled = if in_place { 0 } else { 2 * SIZE + 100 };
        while filled < data.len() {
            if in_place {
                let piece = receiver.contiguous().unwrap();
                receiver.copy_to(&Host, room(&mut got[filled..]), piece).unwrap();
                receiver.advance(piece);
                filled += piece;
            } else {
                filled += receiver.take(&Host, room(&mut got[filled..]), usize::MAX, false).unwrap();
            }
        }
        assert!(got == data);
        // The message that the second connection has begun with.
        write(&sending, 0, &[&message_head(SIZE + 1), &block_head(1, 1), &[7]]);
        write(&sending, 1, &[&data[..SIZE]]);
        assert_eq!(next_head(&mut receiver).bytes, SIZE + 1);
        take_all(&mut receiver, &mut got[..=SIZE], 1 << 20).unwrap();
        assert!(got[..SIZE] == data[..SIZE] && got[SIZE] == 7);
        assert_eq!(receiver.head().unwrap(), None);
    }
}

#[test]
fn blocks_that_are_wrong_are_an_error_and_nothing_is_written() {
    let size = 3 * BLOCK_BYTES;
    let filler = bytes(BLOCK_BYTES, 1);
    for (index, wrong, words) in [
        (1, block_head(0, 3), "block 3 (and 0 more) of message 0"),
        (1, block_head(0, u64::MAX), "which is not due"),
        (1, block_head(0, 0), "block 0 (and 0 more) of message 0"),
        (1, block_head(u32::MAX, 0), "of message 4294967295"),
        (1, [9; 16], "no block of a message"),
    ] {
        for in_place in [false, true] {
            let [sending, receiving] = Link::pair(2);
            let mut receiver = TcpReceiver::new(receiving);
            write(&sending, 0, &[&message_head(size), &block_head(0, 0), &filler]);
            assert_eq!(next_head(&mut receiver).bytes, size);
            let mut got = vec![0; size + 1];
            let mut filled = 0;
            // The first block is right.
            while filled < BLOCK_BYTES {
                filled +=
                    receiver.take(&Host, room(&mut got[filled..]), BLOCK_BYTES - filled, false).unwrap();
            }
            write(&sending, index, &[&wrong, &filler]);
            let error = loop {
                let result = if in_place {
                    receiver.contiguous()
                } else {
                    receiver.take(&Host, room(&mut got[filled..]), size - filled, false)
                };
                match result {
                    Ok(count) => assert_eq!(count, 0),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), crate::ErrorKind::Remote);
            assert!(error.text().contains("is lost") && error.text().contains(words), "{error}");
            assert!(got[BLOCK_BYTES..].iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_connection_that_breaks_ends_the_link() {
    let [sending, receiving] = Link::pair(2);
    let (mut receiver, data) = (TcpReceiver::new(receiving), bytes(3 * BLOCK_BYTES, 1));
    write(&sending, 1, &[&block_head(0, 1), &data[..1000]]);
    write(&sending, 0, &[&message_head(data.len()), &block_head(0, 0), &data[..BLOCK_BYTES]]);
    rustix::net::shutdown(sending.stripe(1).unwrap(), rustix::net::Shutdown::Both).unwrap();
    assert_eq!(next_head(&mut receiver).bytes, data.len());
    let mut got = vec![0; data.len()];
    let error = take_all(&mut receiver, &mut got, 1 << 20).unwrap_err();
    assert!(error.text().contains("rank 0") && error.text().contains("it closed the connection"), "{error}");
}

/// Sends two blocks and goes; the second comes by a connection that the receiver only expects until then, and which `dials` says
/// who makes: the receiver, or the sender.
fn send_and_go(dials: bool) {
    let [mut receiving, mut sending] = Link::pair(1);
    if !dials {
        std::mem::swap(&mut receiving, &mut sending);
    }
    let (mut receiver, data) = (TcpReceiver::new(receiving.clone()), bytes(2 * BLOCK_BYTES, 3));
    let expected = receiving.expect_further();
    write(&sending, 0, &[&message_head(data.len()), &block_head(0, 0), &data[..BLOCK_BYTES]]);
    sending.shut();
    assert_eq!(next_head(&mut receiver).bytes, data.len());
    let mut got = vec![0; data.len()];
    let mut taken = 0;
    while taken < BLOCK_BYTES {
        taken += receiver.take(&Host, room(&mut got[taken..]), usize::MAX, false).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(receiver.take(&Host, room(&mut got[taken..]), usize::MAX, false).unwrap(), 0);
    }
    assert!(receiving.is_open(), "the second block may still come");
    let (mut gone, late) = UnixStream::pair().unwrap();
    let second = data[BLOCK_BYTES..].to_vec();
    let writer =
        std::thread::spawn(move || gone.write_all(&[&block_head(0, 1)[..], &second].concat()).unwrap());
    receiving.take_further(OwnedFd::from(late).into());
    drop(expected);
    while taken < data.len() {
        taken += receiver.take(&Host, room(&mut got[taken..]), usize::MAX, false).unwrap();
    }
    writer.join().unwrap();
    assert!(got == data && receiving.is_open());
    assert_eq!(receiver.head().unwrap(), None);
    assert!(!receiving.is_open(), "nothing can come any more");
}

#[test]
fn what_came_by_a_connection_that_is_taken_in_late_is_not_lost() {
    send_and_go(false);
    send_and_go(true);
}
