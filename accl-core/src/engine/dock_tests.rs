//! Launches over the driver of tests: every call of the driver that a launch needs is refused once, and nobody hangs, nothing
//! is told that is not so, and nothing is left.

use super::dock::{Accelerator, Dock, launch};
use super::stream::Part;
use super::{Call, Endpoint, Fabric, Limits, Operator, Peer, Seat};
use crate::algo::{Facts, Selection};
use crate::config::Settings;
use crate::device::{self, Device, UserPointer};
use crate::driver::fake::{Fake, Live};
use crate::driver::{Driver, Stream};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, process};
use crate::sync::wait::Patience;
use crate::telemetry::Recorder;
use crate::transport::mem;
use crate::transport::shm::Reach;
use crate::types::{Collective, DataType, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

/// Calls of the driver that may happen while others wait for them: their number is another one each time.
const POLLED: [&str; 4] = ["has_passed", "push", "pop", "exchange_capture_mode"];

/// Calls that are not needed: a stream whose device is not told is used.
const FORGIVEN: [&str; 1] = ["device_of"];

/// Waits for something that must come.
#[track_caller]
fn comes(what: &str, mut is_there: impl FnMut() -> bool) {
    let begin = clock::now();
    while !is_there() {
        assert!(clock::now() - begin < Duration::from_secs(20), "{what} does not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Two ranks of one process, each with a dock.
fn seats(driver: &'static Fake) -> Result<Vec<Arc<Seat>>> {
    let arena = mem::arena(2).unwrap();
    let seat = |rank| {
        let dock = Dock::new(Accelerator { driver, context: driver.context() })?;
        let fabric = Fabric::new(&arena, rank, &[Reach::SameProcess; 2], None);
        let facts = Facts::for_tests(&Settings::load()?);
        let recorder = Recorder::without_file()?.into();
        let endpoint = Endpoint::new(rank, 2, Some(fabric), facts, 4096, recorder);
        let limits = Limits { timeout: None, warn_after: None, patience: Patience::for_ranks(2, 2) };
        let peer = |_| Peer { pid: process::id(), name: "this process".to_string(), watch: None, speaker: 0 };
        let seat = Seat::new(rank, endpoint, Some(arena.clone()), (0..2).map(peer).collect(), limits);
        Ok(Arc::new(seat.with_dock(Some(dock))))
    };
    (0..2).map(seat).collect()
}

struct Buffers {
    streams: Vec<Stream>,
    send: UserPointer,
    recv: UserPointer,
}

impl Buffers {
    fn new(driver: &'static Fake) -> Result<Self> {
        let streams = vec![driver.create_stream()?, driver.create_stream()?];
        let [send, recv] = [0; 2].map(|_: i32| device::Accelerator::allocate(driver, 1600));
        let buffers = Self { streams, send: send?, recv: recv? };
        driver.put(buffers.send.address(), &[7; 200]);
        Ok(buffers)
    }

    fn free(self, driver: &Fake) {
        self.streams.into_iter().for_each(|stream| driver.destroy_stream(stream).unwrap());
        driver.free(self.send.address()).unwrap();
        driver.free(self.recv.address()).unwrap();
    }
}

/// Three launches of both ranks, on one stream and on two.
fn launch_all(seats: &[Arc<Seat>], buffers: &[Buffers]) -> Result<()> {
    for streams in [&[0usize][..], &[1], &[0, 1]] {
        for (seat, buffers) in seats.iter().zip(buffers) {
            let call = Call {
                kind: Collective::AllReduce,
                dtype: DataType::Uint64,
                operator: Operator::plain(ReduceOp::Sum),
                root: 0,
                count_elems: 200,
                send: buffers.send,
                recv: buffers.recv,
                selection: Selection::default(),
            };
            let part = Part {
                seat: seat.clone(),
                calls: vec![call],
                transfers: vec![],
                copies: vec![],
                one_sided: vec![],
            };
            let streams: Vec<_> = streams.iter().map(|index| buffers.streams[*index]).collect();
            launch(&streams, part)?;
        }
    }
    Ok(())
}

/// Both ranks launch, and wait for the result or for a failure; then everything is given back. What was told, and what is left.
fn run(driver: &'static Fake) -> (Result<()>, Live) {
    let buffers: Vec<_> = (0..2).map(|_| Buffers::new(driver).unwrap()).collect();
    let outcome = seats(driver).and_then(|seats| {
        let mut outcome = launch_all(&seats, &buffers);
        if outcome.is_ok() {
            comes("a result", || {
                outcome = seats.iter().try_for_each(|seat| seat.error().map_or(Ok(()), Err));
                outcome.is_err() || driver.is_idle()
            });
        }
        if let Err(error) = &outcome {
            // The other rank hears of it.
            comes("word of the failure", || seats.iter().all(|seat| seat.has_failed()));
            assert_eq!(seats.iter().filter_map(|seat| seat.error()).next().as_ref(), Some(error));
            seats.iter().for_each(|seat| seat.abort());
        }
        seats.iter().for_each(|seat| {
            seat.leave();
            seat.close();
            seat.release();
        });
        comes("the streams' end", || driver.is_idle());
        comes("the engine's leave", || seats.iter().all(|seat| Arc::strong_count(seat) == 1));
        outcome
    });
    if outcome.is_ok() {
        buffers.iter().for_each(|buffers| assert_eq!(driver.words(buffers.recv.address()), [14; 200]));
    }
    buffers.into_iter().for_each(|buffers| buffers.free(driver));
    (outcome, driver.live())
}

#[test]
fn each_call_of_the_driver_may_fail_and_nothing_is_left() {
    let driver = Fake::new(None);
    let (outcome, kept) = run(driver);
    outcome.unwrap();
    assert_eq!(driver.pushed(), 0);
    // Staging memory of two ranks: two streams and seven events each. Nothing else may be left.
    assert_eq!(kept, Live { allocations: 0, streams: 4, events: 14 });
    let calls = driver.calls();
    let counted = |name| calls.get(name).copied().unwrap_or(0);
    assert!(["copy", "record", "wait_word", "write_word"].iter().all(|name| counted(name) > 3), "{calls:?}");
    let mut refused = 0;
    for (function, count) in calls.into_iter().filter(|(function, _)| !POLLED.contains(function)) {
        // The buffers' own come first.
        let own = match function {
            "create_stream" | "allocate" => 4,
            "destroy_stream" | "free" => continue,
            _ => 0,
        };
        for nth in own + 1..=count {
            let driver = Fake::new(Some((function, nth)));
            let (outcome, left) = run(driver);
            let context = format!("{function}, call {nth}");
            if driver.calls().get(function).is_some_and(|count| *count >= nth)
                && !FORGIVEN.contains(&function)
            {
                let error = outcome.err().unwrap_or_else(|| Error::internal(format!("{context}: no error")));
                assert_eq!(error.kind(), ErrorKind::Device, "{context}: {error}");
                assert!(error.text().contains("INJECTED (999)"), "{context}: {error}");
                refused += 1;
            }
            let Live { allocations, streams, events } = left;
            // What the driver does not take back, it has.
            let events = events - usize::from(function == "destroy_event");
            assert!(
                allocations == 0 && streams <= kept.streams && events <= kept.events,
                "{context}: {left:?}"
            );
            assert_eq!(driver.pushed(), 0, "{context}");
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn a_stream_that_was_made_anew_on_another_device_is_refused() {
    let driver = Fake::new(None);
    let buffers: Vec<_> = (0..2).map(|_| Buffers::new(driver).unwrap()).collect();
    let seats = seats(driver).unwrap();
    for is_foreign in [false, true, false] {
        for stream in buffers.iter().flat_map(|buffers| &buffers.streams) {
            driver.make_anew(*stream, is_foreign);
        }
        let outcome = launch_all(&seats, &buffers);
        if is_foreign {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.text().contains("the stream is of device 1; need one of"), "{error}");
        } else {
            outcome.unwrap();
        }
        comes("a result", || driver.is_idle());
        // What was refused concerns nobody else.
        assert!(seats.iter().all(|seat| seat.error().is_none()));
    }
    assert_eq!(driver.pushed(), 0);
    seats.iter().for_each(|seat| {
        seat.leave();
        seat.close();
        seat.release();
    });
    comes("the engine's leave", || seats.iter().all(|seat| Arc::strong_count(seat) == 1));
    buffers.into_iter().for_each(|buffers| buffers.free(driver));
}

#[test]
fn a_devices_work_tells_once_what_was_refused_and_makes_nothing_that_it_loses() {
    for (function, nth) in [("create_stream", 1), ("create_event", 1)] {
        let driver = Fake::new(Some((function, nth)));
        assert!(device::Accelerator::new(driver).unwrap_err().text().contains(function));
        assert_eq!(driver.live(), Live::default(), "{function}");
    }
    let driver = Fake::new(Some(("copy", 2)));
    let work = device::Accelerator::new(driver).unwrap();
    assert!(!work.has_kernels());
    let [from, to] = [0; 2].map(|_: i32| device::Accelerator::allocate(driver, 8).unwrap());
    driver.put(from.address(), &[3]);
    work.copy(to, from, 8);
    assert_eq!(work.is_through(), Ok(true));
    assert_eq!(driver.words(to.address()), [3]);
    // Nothing is queued behind what was refused.
    (0..3).for_each(|_| work.copy(from, to, 8));
    assert!(work.is_through().unwrap_err().text().starts_with("copy of the device driver failed"));
    assert_eq!(driver.calls()["copy"], 2);
}
