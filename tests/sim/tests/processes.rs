//! What takes more than one process, or a fresh one: IPC, exported memory, switches, and what ends a process.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use support::*;

const ROLE: &str = "ACCL_SIM_TEST_ROLE";

/// A child that runs one test of this file in a role of its own.
fn child(test: &str, role: &str, switches: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
    command.envs(switches.iter().copied());
    command
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

fn output(test: &str, switches: &[(&str, &str)]) -> Output {
    child(test, "child", switches).output().unwrap()
}

#[track_caller]
fn passes(test: &str, switches: &[(&str, &str)]) {
    let output = output(test, switches);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    std::array::from_fn(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap())
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

/// Handles are passed by value, which the macro of `support` can not do.
fn open(name: &str, handle: Handle) -> Result<u64, i32> {
    let mut out = 0;
    type OpenMemory = extern "C" fn(&mut u64, Handle, u32) -> i32;
    // SAFETY: the type is that of the API's functions of both names (the second has no flags, and does not see them).
    let open = unsafe { function::<OpenMemory>(name) };
    match open(&mut out, handle, 1) {
        0 => Ok(out),
        code => Err(code),
    }
}

fn spawn(test: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = child(test, "child", &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// The next line that begins so, without its beginning.
fn line(lines: &mut impl BufRead, begin: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "no line begins with {begin}");
        if let Some((_, rest)) = line.trim_end().split_once(begin) {
            return rest.to_owned();
        }
    }
}

#[test]
fn memory_and_events_are_shared_by_handles() {
    if role().is_some() {
        let address = device_with(&[11u32, 12, 13]);
        let (mut memory, mut handle) = ([0; 64], [0; 64]);
        ok(cudaIpcGetMemHandle(&mut memory, address));
        let (mut event, mut stream) = (0, 0);
        ok(cudaEventCreateWithFlags(&mut event, 4 | 2));
        ok(cudaIpcGetEventHandle(&mut handle, event));
        ok(cudaStreamCreateWithFlags(&mut stream, 1));
        let gate = Gate::close(stream);
        ok(cudaMemsetAsync(address, 0, 4, stream));
        ok(cudaEventRecord(event, stream));
        println!("memory={}", hex(&memory));
        println!("event={}", hex(&handle));
        println!("address={address}");
        let mut input = std::io::stdin().lines();
        input.next();
        gate.open();
        input.next();
        assert_eq!(fetch::<u32>(address, 3), [0, 12, 77]);
        return;
    }
    let (mut child, mut lines) = spawn("memory_and_events_are_shared_by_handles");
    let memory = unhex(&line(&mut lines, "memory="));
    let event_handle = unhex(&line(&mut lines, "event="));
    let theirs: u64 = line(&mut lines, "address=").parse().unwrap();
    let address = open("cudaIpcOpenMemHandle", Handle(memory)).unwrap();
    assert_ne!(address, theirs);
    assert_eq!(open("cuIpcOpenMemHandle_v2", Handle(memory)), Ok(address));
    assert_eq!(fetch::<u32>(address, 3), [11, 12, 13]);
    let event = open("cudaIpcOpenEventHandle", Handle(event_handle)).unwrap();
    assert_eq!(cudaEventQuery(event), 600);
    let mut stream = 0;
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    ok(cudaStreamWaitEvent(stream, event, 0));
    ok(cudaMemcpyAsync(address + 8, [77u32].as_ptr() as u64, 4, 1, stream));
    assert_eq!(cudaStreamQuery(stream), 600);
    let mut input = child.stdin.take().unwrap();
    writeln!(input).unwrap();
    ok(cudaStreamSynchronize(stream));
    ok(cudaEventSynchronize(event));
    assert_eq!(fetch::<u32>(address, 3), [0, 12, 77]);
    writeln!(input).unwrap();
    assert!(child.wait().unwrap().success());
    // The process has gone: so has what its handles mean.
    assert_eq!(open("cudaIpcOpenEventHandle", Handle(event_handle)), Err(400));
    let mut mine = [0; 64];
    ok(cudaIpcGetMemHandle(&mut mine, device_with(&[1u32])));
    assert_eq!(open("cudaIpcOpenMemHandle", Handle(mine)), Err(201));
}

const GRAIN: usize = 2 << 20;
const PINNED: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];

fn mapped(handle: u64) -> u64 {
    let mut base = 0;
    ok(cuMemAddressReserve(&mut base, 2 * GRAIN, 0, 0, 0));
    ok(cuMemMap(base, GRAIN, 0, handle, 0));
    base
}

#[test]
fn exported_memory_is_imported_by_its_descriptor() {
    ok(cudaSetDevice(0));
    if role().is_some() {
        let mut handle = 0;
        ok(cuMemCreate(&mut handle, GRAIN, &PINNED, 0));
        let base = mapped(handle);
        ok(cuMemSetAccess(base, GRAIN, &[1, 0, 3], 1));
        ok(cudaMemcpy(base, [5u32, 6].as_ptr() as u64, 8, 1));
        let mut descriptor = -1;
        ok(cuMemExportToShareableHandle(&mut descriptor, handle, 1, 0));
        println!("descriptor={descriptor}");
        let _ = std::io::stdin().lines().next();
        return;
    }
    let (mut child, mut lines) = spawn("exported_memory_is_imported_by_its_descriptor");
    let descriptor = line(&mut lines, "descriptor=");
    let file =
        std::fs::File::options().read(true).write(true).open(format!("/proc/{}/fd/{descriptor}", child.id()));
    let file = file.unwrap();
    let mut handle = 0;
    ok(cuMemImportFromShareableHandle(&mut handle, std::os::fd::AsRawFd::as_raw_fd(&file) as u64, 1));
    let base = mapped(handle);
    assert_eq!(cudaMemcpy([0u32; 2].as_ptr() as u64, base, 8, 2), 1);
    ok(cuMemSetAccess(base, GRAIN, &[1, 0, 3], 1));
    assert_eq!(fetch::<u32>(base, 2), [5, 6]);
    ok(cuMemRelease(handle));
    assert_eq!(fetch::<u32>(base, 2), [5, 6]);
    ok(cuMemUnmap(base, GRAIN));
    assert_eq!(cuMemUnmap(base, GRAIN), 1);
    ok(cuMemAddressFree(base, 2 * GRAIN));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn mappings_are_checked() {
    ok(cudaSetDevice(0));
    let (mut first, mut second, mut base) = (0, 0, 0);
    assert_eq!(cuMemCreate(&mut first, GRAIN - 1, &PINNED, 0), 1);
    ok(cuMemCreate(&mut first, GRAIN, &PINNED, 0));
    ok(cuMemCreate(&mut second, GRAIN, &PINNED, 0));
    ok(cuMemAddressReserve(&mut base, 2 * GRAIN, 0, 0, 0));
    ok(cuMemMap(base, GRAIN, 0, first, 0));
    assert_eq!(cuMemMap(base, GRAIN, 0, second, 0), 208);
    ok(cuMemMap(base + GRAIN as u64, GRAIN, 0, second, 0));
    assert_eq!(cuMemMap(base + 2 * GRAIN as u64, GRAIN, 0, second, 0), 1);
    ok(cuMemSetAccess(base, 2 * GRAIN, &[1, 0, 3], 1));
    // A copy may go over the seam.
    let seam = base + GRAIN as u64 - 4;
    ok(cudaMemcpy(seam, [1u32, 2].as_ptr() as u64, 8, 1));
    assert_eq!(fetch::<u32>(seam, 2), [1, 2]);
    assert_eq!(cuMemAddressFree(base, 2 * GRAIN), 1);
}

#[test]
fn the_number_of_devices_and_their_capacity() {
    if role().is_none() {
        return passes(
            "the_number_of_devices_and_their_capacity",
            &[("ACCL_SIM_DEVICES", "5"), ("ACCL_SIM_CAPACITY_MB", "4")],
        );
    }
    let (mut count, mut address, mut free, mut total) = (0, 0, 0, 0);
    ok(cudaGetDeviceCount(&mut count));
    assert_eq!(count, 5);
    ok(cudaSetDevice(4));
    ok(cudaMalloc(&mut address, 3 << 20));
    assert_eq!(cudaMalloc(&mut address, 2 << 20), 2);
    ok(cudaMemGetInfo(&mut free, &mut total));
    assert_eq!((free, total), (1 << 20, 4 << 20));
    ok(cudaFree(address));
    ok(cudaMalloc(&mut address, 4 << 20));
}

#[test]
fn poison_fills_fresh_memory() {
    if role().is_none() {
        return passes("poison_fills_fresh_memory", &[("ACCL_SIM_POISON", "1")]);
    }
    let mut address = 0;
    ok(cudaMalloc(&mut address, 8));
    assert_eq!(fetch::<u32>(address, 2), [0xA5A5_A5A5; 2]);
}

#[test]
fn failures_are_injected_and_calls_counted_and_traced() {
    let test = "failures_are_injected_and_calls_counted_and_traced";
    if role().is_none() {
        let folder = std::env::temp_dir().join(format!("accl-sim-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [counts, trace] =
            ["counts", "trace"].map(|name| folder.join(name).to_string_lossy().into_owned());
        let switches = [
            ("ACCL_SIM_FAIL", "cudaMalloc:2:2,cuMemAlloc_v2:*:46"),
            ("ACCL_SIM_COUNTS", &counts),
            ("ACCL_SIM_TRACE", &trace),
        ];
        passes(test, &switches);
        let counts = std::fs::read_to_string(&counts).unwrap();
        assert!(counts.contains("cudaMalloc 3\n"), "{counts}");
        // What the program has not freed.
        assert!(counts.contains("live.memory 2\n"), "{counts}");
        let trace = std::fs::read_to_string(&trace).unwrap();
        assert!(trace.lines().any(|line| line.contains("cudaMalloc(") && line.ends_with("= 2")), "{trace}");
        std::fs::remove_dir_all(&folder).unwrap();
        return;
    }
    let mut address = 0;
    ok(cudaMalloc(&mut address, 8));
    assert_eq!(cudaMalloc(&mut address, 8), 2);
    ok(cudaMalloc(&mut address, 8));
    assert_eq!(cuMemAlloc_v2(&mut address, 8), 46);
}

#[test]
fn copies_can_fail_in_their_stream() {
    if role().is_none() {
        return passes("copies_can_fail_in_their_stream", &[("ACCL_SIM_FAIL", "copy:2:719")]);
    }
    let (mut stream, word) = (0, device_with(&[1u32]));
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    ok(cudaMemcpyAsync(word, word, 4, 3, stream));
    assert_eq!(cudaStreamSynchronize(stream), 719);
    // It stays.
    assert_eq!(cudaMalloc(&mut 0, 4), 719);
    assert_eq!((cudaGetLastError(), cudaGetLastError()), (719, 719));
}

/// A stream that stands still takes as much as its queue holds; whoever has more waits until it goes on.
#[test]
fn queues_of_streams_are_bounded() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    if role().is_none() {
        return passes("queues_of_streams_are_bounded", &[("ACCL_SIM_QUEUE", "5")]);
    }
    let (mut stream, mut other) = (0, 0);
    let (word, filled) = (device_with(&[0u32]), device_with(&[1u32]));
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    ok(cudaStreamCreateWithFlags(&mut other, 1));
    ok(cuStreamWaitValue32_v2(stream, word, 1, 1));
    static QUEUED: AtomicUsize = AtomicUsize::new(0);
    let more = std::thread::spawn(move || {
        ok(cudaSetDevice(0));
        for _ in 0..10 {
            ok(cudaMemsetAsync(filled, 0, 4, stream));
            QUEUED.fetch_add(1, SeqCst);
        }
    });
    let begin = std::time::Instant::now();
    while QUEUED.load(SeqCst) < 5 && begin.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(QUEUED.load(SeqCst), 5);
    // Other streams have room.
    ok(cuStreamWriteValue32_v2(other, word, 1, 0));
    more.join().unwrap();
    ok(cudaStreamSynchronize(stream));
    assert_eq!(QUEUED.load(SeqCst), 10);
}

#[test]
fn memory_operations_can_be_missing() {
    if role().is_none() {
        return passes("memory_operations_can_be_missing", &[("ACCL_SIM_NO_MEMOPS", "1")]);
    }
    let mut stream = 0;
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    assert_eq!(cuStreamWriteValue32_v2(stream, device_with(&[0u32]), 1, 0), 801);
}

#[test]
fn random_delays_change_no_results() {
    if role().is_none() {
        return passes(
            "random_delays_change_no_results",
            &[("ACCL_SIM_RANDOM_DELAY", "3"), ("ACCL_SIM_DELAY_US", "20")],
        );
    }
    let (mut first, mut second, mut event) = (0, 0, 0);
    ok(cudaStreamCreateWithFlags(&mut first, 1));
    ok(cudaStreamCreateWithFlags(&mut second, 1));
    ok(cudaEventCreateWithFlags(&mut event, 2));
    let word = device_with(&[0u32]);
    for round in 0..50 {
        let (here, there) = if round % 2 == 0 { (first, second) } else { (second, first) };
        ok(cudaMemsetAsync(word, round, 4, here));
        ok(cudaEventRecord(event, here));
        ok(cudaStreamWaitEvent(there, event, 0));
    }
    ok(cudaStreamSynchronize(first));
    assert_eq!(fetch::<u32>(word, 1), [49 * 0x0101_0101]);
}

#[test]
fn memory_that_was_freed_can_not_be_touched() {
    let test = "memory_that_was_freed_can_not_be_touched";
    if role().is_none() {
        let status = output(test, &[]).status;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(11));
        return;
    }
    let address = device_with(&[1u32]);
    ok(cudaFree(address));
    // SAFETY: none; the process shall die of it.
    unsafe { (address as *const u32).read_volatile() };
}

#[test]
fn a_host_function_that_calls_the_api_ends_the_process() {
    let test = "a_host_function_that_calls_the_api_ends_the_process";
    if role().is_none() {
        let output = output(test, &[]);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("cudaGetDevice was called by a host function"), "{text}");
        return;
    }
    extern "C" fn wrong(_: u64) {
        cudaGetDevice(&mut 0);
    }
    let mut stream = 0;
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    ok(cudaLaunchHostFunc(stream, wrong, 0));
    ok(cudaStreamSynchronize(stream));
}

#[test]
fn a_device_that_was_reset_begins_anew() {
    if role().is_none() {
        return passes("a_device_that_was_reset_begins_anew", &[]);
    }
    let address = device_with(&[4u32]);
    let (begin, begun) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        ok(cudaSetDevice(0));
        begun.recv().unwrap();
        device_with(&[5u32])
    });
    ok(cudaDeviceReset());
    begin.send(()).unwrap();
    assert_eq!(cudaMemset(address, 0, 4), 1);
    assert_eq!(fetch::<u32>(other.join().unwrap(), 1), [5]);
}

#[test]
fn the_api_can_be_called_at_the_very_end() {
    if role().is_none() {
        let output = output("the_api_can_be_called_at_the_very_end", &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    extern "C" fn last() {
        let mut device = -1;
        assert_eq!((cudaGetDevice(&mut device), device), (0, 1));
    }
    // SAFETY: registers a function without arguments.
    unsafe { libc::atexit(last) };
    ok(cudaSetDevice(1));
    // The destructors of this thread run before those of the process.
    std::process::exit(0);
}

#[test]
fn a_forked_child_can_not_use_what_its_parent_began() {
    if role().is_none() {
        return passes("a_forked_child_can_not_use_what_its_parent_began", &[]);
    }
    device_with(&[1u32]);
    // SAFETY: the child calls one function, which takes no lock, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = cudaSetDevice(0);
        // SAFETY: leaves without destructors of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and room for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 3);
}
