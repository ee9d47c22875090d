//! What the fuzz targets do with their input: everything that reads bytes or text from outside, and what must hold
//! of it. Public for `fuzz/`, and for the test that replays the committed inputs; no part of the interface.
//!
//! A body panics where the library is wrong, and only there.
// Failing is what these functions are for.
#![allow(clippy::panic)]

use crate::ErrorKind;
use crate::bootstrap::{UniqueId, wire};
use crate::config::{AlgorithmRules, Settings, Source};
use crate::encryption::{End, Key, MOST_SEALED_BYTES};
use crate::telemetry;
use crate::topo::Machine;
use crate::transport::tcp::{
    Arrivals, BLOCK_BYTES, BLOCK_HEAD_BYTES, Beginning, BlockHead, HEAD_BYTES, Head, Record,
};
use crate::transport::{plugin, rdma};
use crate::types::Collective;
use std::collections::BTreeSet;

/// A fuzz target: its name, which is that of its file and of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 12] = [
    ("bootstrap_message", bootstrap_message),
    ("unique_id", unique_id),
    ("settings_file", settings_file),
    ("algorithm_rules", algorithm_rules),
    ("tune_file", tune_file),
    ("message_head", message_head),
    ("message_blocks", message_blocks),
    ("host_records", host_records),
    ("recorder_file", recorder_file),
    ("rdma_record", rdma_record),
    ("plugin_record", plugin_record),
    ("encrypted_record", encrypted_record),
];

/// A stream of frames, read as a stranger's and as a member's.
pub fn bootstrap_message(data: &[u8]) {
    for most in [wire::STRANGER_BYTES, wire::MEMBER_BYTES] {
        let mut buffer = data.to_vec();
        loop {
            let before = buffer.clone();
            match wire::Message::decode(&mut buffer, most) {
                Ok(Some(message)) => {
                    let used = before.len() - buffer.len();
                    assert!((5..=most + 4).contains(&used), "a frame of {used} bytes");
                    // A message has one form, so that nothing can hide in another.
                    assert_eq!(message.encode(), before[..used], "{message:?}");
                }
                Ok(None) => {
                    assert_eq!(buffer, before, "an incomplete frame is left alone");
                    break;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
                    break;
                }
            }
        }
    }
}

/// 128 bytes (missing ones are zero) as a unique id: as they are, and with magic and checksum put right, since
/// guessing those would take for ever.
pub fn unique_id(data: &[u8]) {
    let mut bytes = [0; 128];
    let length = data.len().min(bytes.len());
    bytes[..length].copy_from_slice(&data[..length]);
    let id = UniqueId(bytes);
    for id in [id, id.repaired()] {
        match id.decode() {
            Ok(invitation) => {
                let again = UniqueId::encode(&invitation).and_then(|id| id.decode());
                assert_eq!(again.as_ref(), Ok(&invitation));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
        }
    }
}

/// The text of a configuration file.
pub fn settings_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut source = Source::default();
    source.add_lines("the file", text);
    match Settings::from_source(&source) {
        Ok(settings) => assert!(settings.segment_bytes > 0),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.text().contains("(the file:"), "the origin is named: {error}");
        }
    }
}

/// A value of `ALGO`.
pub fn algorithm_rules(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rules = match AlgorithmRules::parse(text) {
        Ok(rules) => rules,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    };
    for kind in (0..=u8::MAX).filter_map(Collective::from_code) {
        let allowed = ["direct", "ring", "tree", "rd"].map(|algorithm| rules.allow(kind, algorithm));
        assert!(!rules.is_open(kind) || allowed == [true; 4], "{kind} is open and {allowed:?} are allowed");
    }
}

/// A file of figures of the machine.
pub fn tune_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Machine::parse(text) {
        Ok(machine) => {
            assert_eq!(Machine::from_words(machine.words()), Some(machine), "figures that can be true");
            assert_eq!(Machine::parse(&machine.to_text()), Ok(machine));
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.text().starts_with("line "), "the line is named: {error}");
        }
    }
}

/// The beginning of a message between hosts (missing bytes are zero).
pub fn message_head(data: &[u8]) {
    let mut bytes = [0; HEAD_BYTES];
    let length = data.len().min(bytes.len());
    bytes[..length].copy_from_slice(&data[..length]);
    if let Some(head) = Head::decode(&bytes) {
        assert_eq!(head.encode(), bytes, "a head has one form: {head:?}");
    }
}

/// Heads of the blocks of one message, whose length the first byte says.
pub fn message_blocks(data: &[u8]) {
    let Some((length, heads)) = data.split_first() else { return };
    let bytes = usize::from(*length) * 7 * BLOCK_BYTES + 1;
    let (mut arrivals, mut begun) = (Arrivals::new(bytes), BTreeSet::new());
    for chunk in heads.as_chunks::<BLOCK_HEAD_BYTES>().0 {
        let Some(BlockHead { message, block, blocks }) = BlockHead::decode(chunk) else { continue };
        assert_eq!(BlockHead { message, block, blocks }.encode(), *chunk, "a head has one form");
        let (run, count) = (block..block + blocks, bytes.div_ceil(BLOCK_BYTES) as u64);
        match arrivals.begin(block, blocks) {
            Beginning::At(offset, length) => {
                assert_eq!(offset as u64, block * BLOCK_BYTES as u64);
                assert!(length > 0 && offset + length <= bytes, "block {block}");
                assert!(run.into_iter().all(|block| begun.insert(block)), "block {block} has begun twice");
            }
            Beginning::Later => assert!(run.end > arrivals.next() && !begun.contains(&block)),
            Beginning::Wrong => {
                let wrong =
                    run.end > count || blocks > 1024 || run.into_iter().any(|block| begun.contains(&block));
                assert!(wrong, "block {block} was refused");
            }
        }
    }
}

/// What leaders of hosts tell each other.
pub fn host_records(data: &[u8]) {
    let mut inbox = data.to_vec();
    loop {
        let before = inbox.clone();
        match Record::take(&mut inbox) {
            Ok(Some(record)) => {
                let used = before.len() - inbox.len();
                assert_eq!(record.encode(), before[..used], "a record has one form: {record:?}");
            }
            Ok(None) => {
                assert_eq!(inbox, before, "an incomplete record is left alone");
                break;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
                break;
            }
        }
    }
}

/// A file of the flight recorder: as it is, and what follows the head's 512 bytes behind a head that is right.
pub fn recorder_file(data: &[u8]) {
    let head = telemetry::Head {
        ranks: 2,
        hosts: vec!["host".to_string()],
        peers: vec![(1, 0), (2, 0)],
        ..telemetry::Head::default()
    };
    let mut repaired = head.encode();
    let room = repaired.len().min(512 + data.len());
    repaired[512..room].copy_from_slice(&data[..room - 512]);
    for file in [data, &repaired] {
        match telemetry::Record::decode(file) {
            Ok(record) => {
                assert!(record.head.rank < record.head.ranks, "{:?}", record.head);
                assert!(
                    record.operations.is_sorted_by(|a, b| a.place < b.place),
                    "each has a place of its own"
                );
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
        }
    }
}

/// What the two ends of an RDMA link tell each other by their TCP connection.
pub fn rdma_record(data: &[u8]) {
    let mut rest = data;
    loop {
        match rdma::Record::decode(rest) {
            Ok(Some((record, used))) => {
                let mut again = Vec::new();
                record.encode(&mut again);
                assert_eq!(again, rest[..used], "a record has one form: {record:?}");
                rest = &rest[used..];
            }
            Ok(None) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
                break;
            }
        }
    }
}

/// The same of a link by a network plugin: one record, all of it.
pub fn plugin_record(data: &[u8]) {
    match plugin::Record::decode(data) {
        Ok(record) => {
            let mut again = Vec::new();
            record.encode(&mut again);
            assert_eq!(again, data, "a record has one form: {record:?}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Remote, "{error}"),
    }
}

/// What comes by an encrypted connection: bytes of a stranger, and bytes of the other end of which the first says where one is changed.
pub fn encrypted_record(data: &[u8]) {
    let key = Key::new(b"the key of a fuzz target");
    let session = |end| key.session(end, b"a context");
    let mut opener = session(End::Listener).opener;
    if let Ok(Some(bytes)) = opener.record_bytes(data)
        && let Some(record) = data.get(..bytes)
    {
        assert!(opener.open(&mut record.to_vec()).is_err(), "nobody has encrypted that");
        assert!(opener.record_bytes(data).is_err(), "nothing opens behind it");
    }
    let Some((change, content)) = data.split_first() else { return };
    let content = &content[..content.len().min(MOST_SEALED_BYTES)];
    if content.is_empty() {
        return;
    }
    let (mut sealer, mut opener) = (session(End::Dialler).sealer, session(End::Listener).opener);
    let mut record = Vec::new();
    sealer.seal([content, &[]], &mut record);
    assert_eq!(opener.record_bytes(&record).ok(), Some(Some(record.len())));
    let at = usize::from(*change);
    if at > 0 && at <= record.len() {
        record[at - 1] ^= *change;
        assert!(opener.open(&mut record).is_err(), "byte {} was changed", at - 1);
    } else {
        assert_eq!(opener.open(&mut record).ok().as_deref(), Some(content));
    }
}
