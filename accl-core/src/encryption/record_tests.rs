//! Records that are right, and those that anything was done to.

use super::*;
use crate::encryption::{End, Key};
use proptest::prelude::*;

/// Made by HMAC and AES-GCM of another library, by the drawings of `key.rs` and `record.rs`.
const EXPECTED: [&str; 2] = [
    "1000000046c27b6f184f74bc2994a9392fe228571c47220360686ed549a520c1f3166e8d",
    "01000000b279ac4c77438ac7cecba5d5925fb0250c",
];

fn ends() -> (Sealer, Opener) {
    let key = Key::new(b"the key of a test");
    let context = b"a context";
    (key.session(End::Dialler, context).sealer, key.session(End::Listener, context).opener)
}

/// So many records, each of these bytes with its number in the first place.
fn records(sealer: &mut Sealer, count: u8, bytes: usize) -> Vec<Vec<u8>> {
    let record = |number| {
        let (content, mut record) = (vec![number; bytes], Vec::new());
        sealer.seal([&content, &[]], &mut record);
        record
    };
    (0..count).map(record).collect()
}

#[test]
fn a_record_is_what_another_implementation_makes_of_the_same() {
    let (mut sealer, mut opener) = ends();
    let mut record = Vec::new();
    sealer.seal([b"the first ", b"record"], &mut record);
    assert_eq!(hex(&record), EXPECTED[0]);
    assert_eq!(opener.open(&mut record).unwrap(), b"the first record");
    record.clear();
    sealer.seal([b"", b"2"], &mut record);
    assert_eq!(hex(&record), EXPECTED[1]);
    assert_eq!(opener.open(&mut record).unwrap(), b"2");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn what_is_repeated_left_out_or_moved_does_not_open_and_nothing_does_after_it() {
    for order in [[0, 0, 1], [1, 2, 0], [0, 2, 1]] {
        let (mut sealer, mut opener) = ends();
        let records = records(&mut sealer, 3, 100);
        let opened = order.iter().take_while(|number| opener.open(&mut records[**number].clone()).is_ok());
        let right = order.iter().zip(0..).take_while(|(number, place)| *number == place).count();
        assert_eq!(opened.count(), right);
        assert!(opener.open(&mut records[right].clone()).is_err(), "the one that was due comes too late");
    }
}

#[test]
fn what_was_sent_the_other_way_or_on_another_connection_does_not_open() {
    let key = Key::new(b"the key of a test");
    let mut record = Vec::new();
    key.session(End::Listener, b"a context").sealer.seal([b"hello", b""], &mut record);
    let wrong = [
        key.session(End::Listener, b"a context").opener,
        key.session(End::Dialler, b"b context").opener,
        Key::new(b"the key of a tesT").session(End::Dialler, b"a context").opener,
    ];
    for mut opener in wrong {
        assert_eq!(opener.open(&mut record.clone()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    assert_eq!(key.session(End::Dialler, b"a context").opener.open(&mut record).unwrap(), b"hello");
}

#[test]
fn a_key_is_followed_by_the_next_one_at_both_ends() {
    let (mut sealer, mut opener) = ends();
    let mut record = Vec::new();
    let mut before = None;
    for number in 0..=RECORDS_OF_A_KEY {
        record.clear();
        sealer.seal([b"x", b""], &mut record);
        if number == RECORDS_OF_A_KEY {
            // The old key with the number that is due.
            let old: Direction = Direction { records: number, ..before.take().unwrap() };
            let nonce = Nonce::assume_unique_for_key(
                [&[0; 4][..], &old.records.to_le_bytes()].concat().try_into().unwrap(),
            );
            let (head, sealed) = record.split_first_chunk::<HEAD_BYTES>().unwrap();
            old.sealing.open_in_place(nonce, Aad::from(*head), &mut sealed.to_vec()).unwrap_err();
        } else if number == 0 {
            before = Some(Direction::new(opener.direction.sending.clone()));
        }
        assert_eq!(opener.open(&mut record).unwrap(), b"x");
    }
}

proptest! {
    #[test]
    fn no_changed_bit_goes_unnoticed(content in prop::collection::vec(any::<u8>(), 1..300), bit: usize) {
        let (mut sealer, mut opener) = ends();
        let mut record = Vec::new();
        sealer.seal([&content, &[]], &mut record);
        let bit = bit % (record.len() * 8);
        record[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(opener.open(&mut record).is_err());
        prop_assert!(opener.record_bytes(&record).is_err(), "nothing opens any more");
    }

    #[test]
    fn whatever_comes_is_a_length_or_an_error(received in prop::collection::vec(any::<u8>(), 0..40)) {
        let (_, mut opener) = ends();
        if let Ok(Some(bytes)) = opener.record_bytes(&received) {
            prop_assert!((RECORD_OVERHEAD_BYTES + 1..=MOST_SEALED_BYTES + RECORD_OVERHEAD_BYTES).contains(&bytes));
        }
        prop_assert!(opener.open(&mut received.clone()).is_err());
    }
}
