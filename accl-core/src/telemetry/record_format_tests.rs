//! Records as bytes: there and back, cut off, damaged, and half written.

use super::record_format::{ENTRY_WORDS, Head, RING_BYTES, Record};
use proptest::prelude::*;

prop_compose! {
    fn heads()(
        numbers in any::<[u64; 6]>(), pid in any::<u32>(), library in any::<u32>(), ranks in 1usize..40,
        seed in any::<usize>(), name in "[a-zA-Zäß→ ]{0,20}", hosts in prop::collection::vec("[a-z0-9.-]{1,60}", 1..5),
    ) -> Head {
        let peers = (0..ranks).map(|rank| (rank as u32 + 7, (rank % hosts.len()) as u32)).collect();
        let [communicator, parent, start, boot, pid_namespace, made_ns] = numbers;
        let (rank, host) = (seed % ranks, hosts[0].clone());
        Head { communicator, parent, rank, ranks, pid, start, boot, pid_namespace, made_ns, library, name, host, hosts, peers }
    }
}

/// Stores word `at` of the entry that operation `place` has.
fn put(file: &mut [u8], place: u64, at: usize, word: u64) {
    let start = RING_BYTES + (place as usize % 256 * ENTRY_WORDS + at) * 8;
    file[start..start + 8].copy_from_slice(&word.to_le_bytes());
}

proptest! {
    #[test]
    fn heads_come_back(head in heads()) {
        let record = Record::decode(&head.encode()).unwrap();
        prop_assert_eq!(&record.head, &head);
        prop_assert!(record.operations.is_empty() && record.wait.is_none() && record.failure.is_none());
    }

    #[test]
    fn what_is_cut_off_is_refused_and_says_so(head in heads(), cut in any::<prop::sample::Index>()) {
        let file = head.encode();
        let cut = cut.index(file.len());
        let text = Record::decode(&file[..cut]).unwrap_err().to_string();
        let words = if cut < 8 { "no record of ACCL-P" } else if cut < 12 { "version" } else { "cut off" };
        prop_assert!(text.contains(words), "{} bytes: {}", cut, text);
    }

    #[test]
    fn damage_is_survived(
        head in heads(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
    ) {
        let mut file = head.encode();
        for (place, byte) in damage {
            let place = place.index(file.len());
            file[place] = byte;
        }
        // A record, whatever it says, or a reason.
        if let Err(error) = Record::decode(&file) {
            prop_assert!(!error.text().is_empty());
        }
    }

    /// An entry is overwritten, in the order in which the writer stores: a reader sees all of it, or nothing.
    #[test]
    fn half_an_entry_is_none(head in heads(), place in 257u64..1_000_000, stored in 0usize..6) {
        let mut file = head.encode();
        let begun = place.to_le_bytes();
        file[512..520].copy_from_slice(&begun);
        let stores = |place: u64| [(0, place), (1, place), (2, place * 3), (3, place * 5), (7, place)];
        for (at, word) in stores(place - 256) {
            put(&mut file, place, at, word);
        }
        for (at, word) in stores(place).into_iter().take(stored) {
            put(&mut file, place, at, word);
        }
        let found = Record::decode(&file).unwrap().operations;
        let told = match stored { 0 => vec![place - 256], 5 => vec![place], _ => vec![] };
        prop_assert_eq!(found.iter().map(|made| made.place).collect::<Vec<_>>(), told);
        for made in found {
            prop_assert_eq!((made.number, made.what, made.count), (made.place, made.place * 3, made.place * 5));
        }
    }
}
