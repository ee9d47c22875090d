//! Messages there and back, damaged ones, and ones that claim too much.

use super::*;
use proptest::prelude::*;

fn place() -> impl Strategy<Value = Place> {
    any::<(u64, u64, u64, u32, u64)>().prop_map(|(kernel, network, pid_namespace, pid, process)| Place {
        kernel,
        network,
        pid_namespace,
        pid,
        process,
    })
}

fn record() -> impl Strategy<Value = PeerRecord> {
    let addresses = prop::collection::vec(any::<IpAddr>(), 0..MOST_ADDRESSES);
    (place(), any::<(Option<u64>, u16, u32, u32, (bool, bool, u64))>(), addresses, ".{0,12}").prop_map(
        |(
            place,
            (host_id, port, round_trip_us, bandwidth_mbps, (on_device, has_verbs, plugin)),
            addresses,
            host,
        )| {
            let uplink = Uplink { round_trip_us, bandwidth_mbps };
            PeerRecord { place, host_id, port, addresses, host, uplink, on_device, has_verbs, plugin }
        },
    )
}

/// Some ranks share a host or a process with the one before.
fn roster() -> impl Strategy<Value = Vec<PeerRecord>> {
    prop::collection::vec((record(), 0..4), 0..9).prop_map(|records| {
        let mut roster: Vec<PeerRecord> = Vec::new();
        for (record, likeness) in records {
            roster.push(match (likeness, roster.last().cloned()) {
                (1, Some(before)) => PeerRecord { port: record.port, ..before },
                (3, Some(before)) => PeerRecord { uplink: record.uplink, ..before },
                (2, Some(before)) => before,
                _ => record,
            });
        }
        roster
    })
}

fn failure() -> impl Strategy<Value = (ErrorKind, String)> {
    (prop::sample::select(&ErrorKind::ALL[..]), ".{0,50}")
}

fn proof() -> impl Strategy<Value = Proof> {
    any::<([u8; 32], Option<[u8; 32]>)>().prop_map(|(secret, key)| Proof { secret, key })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<(u32, Token, Nonce)>().prop_map(|(protocol, token, nonce)| Message::Hello {
            protocol,
            token,
            nonce
        }),
        (any::<Nonce>(), proof()).prop_map(|(nonce, proof)| Message::Challenge { nonce, proof }),
        proof().prop_map(Message::Proof),
        (any::<(u32, u32, u32, bool, i32, u64)>(), record()).prop_map(
            |((ranks, rank, ids, stands, version, patience_ms), record)| {
                Message::Join { ranks, rank, ids, stands, version, patience_ms, record }
            }
        ),
        roster().prop_map(|records| Message::Roster(records.into())),
        prop::option::of(record()).prop_map(Message::Seek),
        roster().prop_map(|records| Message::Share(records.into())),
        prop::option::of(failure()).prop_map(Message::Ready),
        Just(Message::Go),
        failure().prop_map(|(kind, text)| Message::Failure(kind, text)),
        Just(Message::Fetch),
        Just(Message::Grant),
        any::<(u32, u32, u8, u16)>().prop_map(|(from_rank, to_rank, purpose, index)| {
            Message::Link(LinkRequest { from_rank, to_rank, purpose, index })
        }),
        Just(Message::LinkAccepted),
    ]
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(messages in prop::collection::vec(message(), 1..5), cut in 0usize..40) {
        let mut stream: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let held_back = stream.split_off(stream.len() - cut.min(stream.len()));
        let mut got = Vec::new();
        while let Some(message) = Message::decode(&mut stream, MEMBER_BYTES).unwrap() {
            got.push(message);
        }
        stream.extend(held_back);
        while let Some(message) = Message::decode(&mut stream, MEMBER_BYTES).unwrap() {
            got.push(message);
        }
        prop_assert_eq!(got, messages);
        prop_assert!(stream.is_empty());
    }

    #[test]
    fn garbage_is_refused_or_incomplete(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut buffer = bytes;
        while let Ok(Some(_)) = Message::decode(&mut buffer, STRANGER_BYTES) {}
    }

    #[test]
    fn damaged_frames_do_no_harm(message in message(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut buffer = message.encode();
        let index = at.index(buffer.len());
        buffer[index] ^= flip;
        let _ = Message::decode(&mut buffer, MEMBER_BYTES);
    }
}

#[test]
fn a_host_is_shared_only_if_nobody_says_otherwise() {
    let record = |host_id| PeerRecord { host_id, ..PeerRecord::default() };
    assert!(record(None).shares_host(&record(None)) && record(Some(1)).shares_host(&record(Some(1))));
    assert!(!record(Some(1)).shares_host(&record(Some(2))) && !record(Some(1)).shares_host(&record(None)));
    let elsewhere = PeerRecord { place: Place { network: 7, ..Place::default() }, ..record(Some(1)) };
    assert!(!record(Some(1)).shares_host(&elsewhere));
}

#[test]
fn too_much_in_a_record_is_cut_and_foreign_excess_refused() {
    let record = PeerRecord {
        addresses: vec![IpAddr::from([10, 0, 0, 1]); 40],
        host: "ä".repeat(40),
        ..PeerRecord::default()
    };
    let mut buffer = Message::Roster(vec![record].into()).encode();
    let Some(Message::Roster(back)) = Message::decode(&mut buffer, MEMBER_BYTES).unwrap() else { panic!() };
    assert_eq!((back[0].addresses.len(), back[0].host.len()), (MOST_ADDRESSES, HOST_BYTES));
    let mut frame = Message::Roster(vec![PeerRecord::default()].into()).encode();
    let addresses = frame.len() - 11;
    frame[addresses] = 17;
    assert!(Message::decode(&mut frame, MEMBER_BYTES).is_err());
}

#[test]
fn a_list_says_what_ranks_have_in_common_once() {
    let record = |pid, host: &str| {
        let place = Place { pid, process: u64::from(pid), ..Place::default() };
        PeerRecord { place, host: host.into(), ..PeerRecord::default() }
    };
    let roster = [record(1, "a"), record(1, "a"), record(2, "a"), record(3, "b"), record(3, "b")];
    let mut frame = Message::Roster(roster.to_vec().into()).encode();
    assert_eq!(frame.len(), 9 + (1 + 51) + 1 + (1 + 14) + (1 + 51) + 1);
    assert_eq!(Message::decode(&mut frame, MEMBER_BYTES), Ok(Some(Message::Roster(roster.to_vec().into()))));
    // The first rank is like nobody, and what can be said shortly must be.
    for damage in [(9, SAME_PROCESS), (62, SAME_HOST), (62, NEW_HOST)] {
        let mut frame = Message::Roster(roster[..2].to_vec().into()).encode();
        frame.truncate(damage.0 - 1);
        frame.push(damage.1);
        match damage.1 {
            SAME_HOST => frame.extend([&1u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 2]].concat()),
            NEW_HOST => frame.extend_from_within(10..61),
            _ => {}
        }
        let length = (frame.len() - 4) as u32;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        assert!(Message::decode(&mut frame, MEMBER_BYTES).is_err(), "{damage:?}");
    }
}

#[test]
fn ranks_that_follow_each_other_on_a_host_share_its_way_to_others() {
    let record = |pid, host: &str, round_trip_us| {
        let place = Place { pid, process: u64::from(pid), ..Place::default() };
        let uplink = Uplink { round_trip_us, bandwidth_mbps: 1000 };
        PeerRecord { place, host: host.into(), uplink, ..PeerRecord::default() }
    };
    let mut roster =
        [record(1, "a", 5), record(1, "a", 6), record(2, "a", 7), record(3, "b", 8), record(4, "a", 9)];
    share_uplinks(&mut roster);
    assert_eq!(roster.map(|one| one.uplink.round_trip_us), [5, 5, 5, 8, 9]);
}

#[test]
fn a_list_that_claims_to_be_endless_is_refused_at_once() {
    let mut frame = vec![5u8];
    frame.extend(u32::MAX.to_le_bytes());
    let mut buffer = (frame.len() as u32).to_le_bytes().to_vec();
    buffer.extend(frame);
    assert!(Message::decode(&mut buffer, MEMBER_BYTES).is_err());
}
