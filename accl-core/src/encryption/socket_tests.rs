//! Sealed sockets whose bytes are split, cut and changed at every place there is.

use super::*;
use crate::encryption::{End, Key};
use proptest::prelude::*;
use std::os::unix::net::UnixStream;

/// Two connected sockets with little room in between, plain or sealed.
fn pair(is_sealed: bool) -> [Socket; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    let mut ends = [one, other].map(|end| {
        end.set_nonblocking(true).unwrap();
        let descriptor = OwnedFd::from(end);
        rustix::net::sockopt::set_socket_send_buffer_size(&descriptor, 4096).unwrap();
        Socket::from(descriptor)
    });
    if is_sealed {
        let key = Key::new(b"the key of a test");
        ends[0].seal(key.session(End::Dialler, b"test"), Vec::new());
        ends[1].seal(key.session(End::Listener, b"test"), Vec::new());
    }
    ends
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 + place / 251) as u8).collect()
}

/// Writes what there is room for: pieces of these sizes in turn, from `gone` on.
fn write(socket: &Socket, bytes: &[u8], gone: &mut usize, sizes: (usize, usize)) {
    while *gone < bytes.len() {
        let rest = &bytes[*gone..];
        // What has not gone must be offered again: at least as much as before.
        let (first, second) = rest.split_at(sizes.0.min(rest.len()));
        let second = &second[..sizes.1.min(second.len())];
        match socket.write_some(first, second).unwrap() {
            Some(count) => *gone += count,
            None => return,
        }
    }
}

proptest! {
    #[test]
    fn bytes_come_as_they_were_written_however_they_are_split(
        is_sealed: bool,
        bytes in 1usize..120_000,
        sizes in (0usize..60_000, 1usize..60_000),
        reads in prop::collection::vec((0usize..20_000, 1usize..20_000), 1..8),
    ) {
        let [writer, reader] = pair(is_sealed);
        let bytes = content(bytes);
        let (mut gone, mut got) = (0, Vec::new());
        for (first, second) in reads.iter().cycle() {
            write(&writer, &bytes, &mut gone, sizes);
            let (mut first, mut second) = (vec![0; *first], vec![0; *second]);
            if first.is_empty() {
                first.push(0);
            }
            if let Some(count) = reader.read_some_into(&mut first, &mut second).unwrap() {
                prop_assert!(count > 0);
                got.extend_from_slice(&first[..count.min(first.len())]);
                got.extend_from_slice(&second[..count.saturating_sub(first.len())]);
                if count < first.len() + second.len() {
                    prop_assert!(!reader.has_waiting(), "a short read leaves nothing");
                }
            }
            if got.len() == bytes.len() {
                break;
            }
        }
        prop_assert!(got == bytes);
        drop(writer);
        prop_assert_eq!(reader.read_some(&mut [0]).unwrap(), Some(0));
    }

    #[test]
    fn what_was_changed_or_cut_is_an_error_and_nothing_of_it_is_read(
        bytes in 1usize..40_000, place: usize, bit in 0u32..8, is_cut: bool,
    ) {
        let bytes = content(bytes);
        let mut passed = overheard(&bytes);
        let place = place % passed.len();
        if is_cut {
            passed.truncate(place);
        } else {
            passed[place] ^= 1 << bit;
        }
        let (got, end) = read_all(passed);
        // Whole records before the place, and no more.
        prop_assert_eq!(got.len(), place / (MOST_SEALED_BYTES + RECORD_OVERHEAD_BYTES) * MOST_SEALED_BYTES);
        prop_assert!(got[..] == bytes[..got.len()]);
        let at_boundary = place.is_multiple_of(MOST_SEALED_BYTES + RECORD_OVERHEAD_BYTES);
        match end {
            Ok(()) => prop_assert!(is_cut && at_boundary),
            Err(error) if is_cut => prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
            Err(error) => {
                prop_assert!([io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof].contains(&error.kind()));
            }
        }
    }
}

/// What passes when a sealed socket sends this.
fn overheard(bytes: &[u8]) -> Vec<u8> {
    let (one, other) = UnixStream::pair().unwrap();
    let (mut writer, middle) = (Socket::from(OwnedFd::from(one)), Socket::from(OwnedFd::from(other)));
    writer.seal(Key::new(b"the key of a test").session(End::Dialler, b"test"), Vec::new());
    let (mut gone, mut passed, mut piece) = (0, Vec::new(), [0; 5000]);
    loop {
        write(&writer, bytes, &mut gone, (usize::MAX, 0));
        while let Some(count) = middle.read_some(&mut piece).unwrap() {
            passed.extend_from_slice(&piece[..count]);
        }
        if gone == bytes.len() {
            return passed;
        }
    }
}

/// Reads what the other end of a sealed socket makes of that, half of which has come before it was sealed.
fn read_all(passed: Vec<u8>) -> (Vec<u8>, io::Result<()>) {
    let (one, other) = UnixStream::pair().unwrap();
    let mut reader = Socket::from(OwnedFd::from(other));
    let early = passed[..passed.len() / 2].to_vec();
    let late = passed[passed.len() / 2..].to_vec();
    reader.seal(Key::new(b"the key of a test").session(End::Listener, b"test"), early);
    let writing = std::thread::spawn(move || {
        // It may be that nobody reads to the end.
        let _ = std::io::Write::write_all(&mut &one, &late);
    });
    let (mut got, mut piece) = (Vec::new(), [0; 3000]);
    let end = loop {
        match reader.read_some(&mut piece) {
            Ok(Some(0)) => break Ok(()),
            Ok(Some(count)) => got.extend_from_slice(&piece[..count]),
            Ok(None) => drop(socket::wait_readable(&[reader.as_fd()], STEP)),
            Err(error) => {
                assert!(reader.has_waiting() || error.kind() == io::ErrorKind::UnexpectedEof);
                break Err(error);
            }
        }
    };
    drop(reader);
    writing.join().unwrap();
    (got, end)
}

#[test]
fn a_word_is_sent_and_received_as_a_whole_over_either() {
    for is_sealed in [false, true] {
        let [writer, reader] = pair(is_sealed);
        let bytes = content(50_000);
        let deadline = clock::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| writer.send_all(&bytes, deadline, &|| Ok(())).unwrap());
            let mut got = vec![0; bytes.len()];
            for piece in got.chunks_mut(777) {
                assert!(reader.receive_exact(piece, deadline, &|| Ok(())).unwrap().is_none());
            }
            assert!(got == bytes);
        });
        let gives_up = || Err(Error::usage("enough"));
        assert_eq!(reader.receive_exact(&mut [0], deadline, &gives_up).unwrap_err().text(), "enough");
        drop(writer);
        let error = reader.receive_exact(&mut [0], deadline, &|| Ok(())).unwrap_err();
        assert_eq!(error.text(), "the other side closed the connection");
    }
}

#[test]
fn what_passes_has_nothing_of_what_was_sent() {
    let bytes = vec![0x5a; 40_000];
    let passed = overheard(&bytes);
    assert_eq!(passed.len(), 40_000 + 3 * RECORD_OVERHEAD_BYTES);
    assert!(!passed.windows(8).any(|window| window == [0x5a; 8]));
}

#[test]
fn half_a_record_must_be_sent_on() {
    let [writer, _reader] = pair(true);
    let bytes = content(300_000);
    let mut gone = 0;
    write(&writer, &bytes, &mut gone, (usize::MAX, 0));
    assert!(gone < bytes.len());
    let error = writer.write_some(b"something else", b"").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}
