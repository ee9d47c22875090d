//! C43 from Python: what becomes of an interrupt (Control-C) while a rank waits in the library.
//!
//! Python handles signals in its main thread, between its own steps. So a program that wants to hear of them leaves the waiting to
//! another thread, or asks from time to time; while the main thread itself is in a call, the handler runs when that returns.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};
use support::api::{INT32, REMOTE_ERROR, SUCCESS, SUM};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::python::{self, JOIN, become_python};

const SCENARIOS: [(&str, Scenario); 1] = [("interrupted", interrupted)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Interrupts itself soon; says how long after that it was heard of, which must be long before the peer comes.
const ALARM: &str = "
sent = []
def send():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, send).start()
def heard():
    after = time.monotonic() - sent[0]
    print(f'heard after {after:.3f} s', file=sys.stderr)
    return after < 3
";

/// The call is in another thread: the main thread hears at once, and aborts, which ends the call. What a thread has done is asked by
/// an event, since an interrupted `join` may take a thread that runs for one that has ended.
const IN_A_THREAD: &str = "
codes, over = [], threading.Event()
def block():
    codes.append(total())
    over.set()
threading.Thread(target=block).start()
try:
    over.wait(30)
    sys.exit(1)
except KeyboardInterrupt:
    in_time = heard()
assert lib.ncclCommAbort(comm) == SUCCESS
assert over.wait(5) and codes[0] > 4, codes
sys.exit(42 if in_time else 2)
";

/// Operations are queued on a host stream, and asked for.
const ON_A_STREAM: &str = "
stream = ctypes.c_void_p()
assert lib.acclStreamCreate(ctypes.byref(stream)) == SUCCESS
one, sums = ctypes.c_int32(1), ctypes.c_int32(0)
assert lib.ncclAllReduce(ctypes.byref(one), ctypes.byref(sums), 1, 2, 0, comm, stream) == SUCCESS
try:
    while lib.acclStreamQuery(stream) == IN_PROGRESS:
        time.sleep(0.01)
    sys.exit(1)
except KeyboardInterrupt:
    in_time = heard()
assert lib.ncclCommAbort(comm) == SUCCESS
begin = time.monotonic()
while lib.acclStreamQuery(stream) == IN_PROGRESS:
    assert time.monotonic() - begin < 5
sys.exit(42 if in_time else 2)
";

/// A communicator that does not block is made, and asked for; the other rank is late.
const NON_BLOCKING: &str = "
late, config = ctypes.c_void_p(), Config(ctypes.sizeof(Config), 0xcafebeef, 21400, 0)
assert lib.ncclCommInitRankConfig(ctypes.byref(late), ranks, uids[1], 1, ctypes.byref(config)) in (SUCCESS, IN_PROGRESS)
state = ctypes.c_int(IN_PROGRESS)
try:
    while state.value == IN_PROGRESS:
        time.sleep(0.01)
        assert lib.ncclCommGetAsyncError(late, ctypes.byref(state)) == SUCCESS
    sys.exit(1)
except KeyboardInterrupt:
    in_time = heard()
assert lib.ncclCommAbort(late) == SUCCESS
assert lib.ncclCommAbort(comm) == SUCCESS
sys.exit(42 if in_time else 2)
";

/// The main thread is in the call: that is no failure of the call, and the handler runs when it is over.
const IN_THE_CALL: &str = "
calls = []
signal.signal(signal.SIGINT, lambda *_: calls.append(time.monotonic()))
assert total() == ranks
assert len(calls) == 1 and calls[0] - sent[0] > 1, (calls, sent)
assert total() == ranks
assert lib.ncclCommDestroy(comm) == SUCCESS
sys.exit(42)
";

const WAYS: [(&str, &str); 4] = [
    ("in a thread", IN_A_THREAD),
    ("on a stream", ON_A_STREAM),
    ("non-blocking", NON_BLOCKING),
    ("in the call", IN_THE_CALL),
];

#[test]
fn c43_python_hears_of_an_interrupt() {
    if !python::is_here() {
        return;
    }
    for (way, _) in WAYS {
        let ended = Cluster::new(2, 1).ids(2).argument(way).limit(40).run_to_end("interrupted");
        let texts = [&ended[0].stderr, &ended[1].stderr];
        assert_eq!((ended[0].code, ended[1].code), (Some(0), Some(42)), "{way}: {texts:?}");
        println!("{way}: {}", texts[1].trim_end());
    }
}

fn interrupted(rank: Rank) {
    let in_the_call = rank.argument == "in the call";
    if rank.rank == 1 {
        let (_, program) = WAYS.iter().find(|(way, _)| *way == rank.argument).unwrap();
        become_python(&format!("{JOIN}{ALARM}{program}"));
    }
    let comm = rank.join();
    assert_eq!(rank.api.sum(1, comm), 2);
    // The other rank waits for this one, or has given up.
    std::thread::sleep(Duration::from_secs(if in_the_call { 2 } else { 5 }));
    if in_the_call {
        assert_eq!([rank.api.sum(1, comm), rank.api.sum(1, comm)], [2, 2]);
    } else {
        let begin = Instant::now();
        let reduce = || rank.api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
        let code = if reduce() == SUCCESS { reduce() } else { rank.api.async_error(comm) };
        assert_eq!(code, REMOTE_ERROR, "{}", rank.api.error_text());
        assert!(rank.api.error_text().contains("rank 1 (process"), "{}", rank.api.error_text());
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
    rank.api.destroy(comm);
}
