//! What small calls must not do: allocate, or ask the kernel for anything.

// A test ends by panicking; what it calls gets pointers that it keeps alive.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/paths.rs"]
mod paths;

use paths::Pair;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

#[global_allocator]
static COUNTING: counting::Counting = counting::Counting;

/// Elements of calls up to 4 KiB.
const COUNTS: [usize; 5] = [1, 8, 9, 256, 1024];

fn small_calls(pair: &mut Pair) {
    for count in COUNTS {
        pair.broadcast(count);
        pair.reduce(count);
    }
}

const CHILD: &str = "PATHS_CHILD";
/// What a child ends with that has come to its end.
const DONE: i32 = 7;

/// The child of the tests below.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let mut pair = Pair::new(1024);
    small_calls(&mut pair);
    match what.as_str() {
        "allocations" => {
            let before = counting::allocations();
            small_calls(&mut pair);
            assert_eq!(counting::allocations(), before);
            drop(std::hint::black_box(vec![0u8; 100]));
            assert_eq!(counting::allocations(), before + 1, "the count counts");
        }
        "streams" => {
            let streams = Pair::streams();
            // How far the other rank's queue grows is chance: here each of them grows as far as it can.
            [0, 1].into_iter().for_each(|first| pair.all_reduce_on(streams, first, 400));
            let before = counting::allocations();
            (0..20).for_each(|_| pair.all_reduce_on(streams, 0, 400));
            assert_eq!(counting::allocations(), before);
        }
        "calls" => {
            forbid_system_calls();
            small_calls(&mut pair);
        }
        _ => {
            forbid_system_calls();
            std::thread::yield_now();
        }
    }
    // SAFETY: ends the process at once, with the one call that the filter allows.
    unsafe { libc::syscall(libc::SYS_exit_group, DONE) };
}

fn run(what: &str) -> std::process::Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    // Whatever the model would say, these calls are small: their ranks do not wait for each other.
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, what).env("ACCL_EXCHANGE_BYTES", "16K");
    command.output().unwrap()
}

#[test]
fn small_calls_allocate_nothing() {
    let output = run("allocations");
    assert_eq!(output.status.code(), Some(DONE), "{output:?}");
}

#[test]
fn calls_on_streams_allocate_nothing() {
    let output = run("streams");
    assert_eq!(output.status.code(), Some(DONE), "{output:?}");
}

/// From here on, the calling thread may only end the process (seccomp, `SECCOMP_RET_KILL_PROCESS`).
fn forbid_system_calls() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit_group as u32)
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives until the kernel has copied it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn small_calls_ask_the_kernel_for_nothing() {
    let output = run("calls");
    assert_eq!(output.status.code(), Some(DONE), "{output:?}");
    // The filter does what it should.
    assert_eq!(run("yield").status.signal(), Some(libc::SIGSYS));
}
