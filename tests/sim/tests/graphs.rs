//! Capture, what it forbids, and replay.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use support::*;

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

fn stream() -> u64 {
    let mut stream = 0;
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    stream
}

fn event() -> u64 {
    let mut event = 0;
    ok(cudaEventCreateWithFlags(&mut event, 2));
    event
}

fn instantiated(graph: u64) -> u64 {
    let mut executable = 0;
    ok(cudaGraphInstantiate(&mut executable, graph, 0));
    executable
}

fn nodes_of(graph: u64) -> usize {
    let mut count = 0;
    ok(cudaGraphGetNodes(graph, 0, &mut count));
    count
}

extern "C" fn count(counter: u64) {
    // SAFETY: the tests give addresses of counters that live long enough.
    unsafe { AtomicU32::from_ptr(counter as *mut u32) }.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn what_is_captured_runs_at_each_launch() {
    let (stream, counter) = (stream(), AtomicU32::new(0));
    let (source, target) = (device_with(&[1u32, 2]), device_with(&[0u32, 0]));
    ok(cudaStreamBeginCapture(stream, THREAD_LOCAL));
    let mut status = -1;
    ok(cudaStreamIsCapturing(stream, &mut status));
    assert_eq!(status, 1);
    ok(cudaMemcpyAsync(target, source, 8, 3, stream));
    ok(cudaMemsetAsync(source, 9, 1, stream));
    ok(cudaLaunchHostFunc(stream, count, counter.as_ptr() as u64));
    let mut graph = 0;
    ok(cudaStreamEndCapture(stream, &mut graph));
    assert_eq!(nodes_of(graph), 3);
    assert_eq!(fetch::<u32>(target, 2), [0, 0]);
    let executable = instantiated(graph);
    ok(cudaGraphDestroy(graph));
    for round in 1..=2 {
        ok(cudaGraphLaunch(executable, stream));
        ok(cudaStreamSynchronize(stream));
        assert_eq!(counter.load(Ordering::Relaxed), round);
        assert_eq!(fetch::<u32>(target, 2), [if round == 1 { 1 } else { 9 }, 2]);
    }
    ok(cudaGraphExecDestroy(executable));
    assert_eq!(cudaGraphLaunch(executable, stream), 1);
}

#[test]
fn streams_join_and_come_back() {
    let (first, second, fork, join) = (stream(), stream(), event(), event());
    let words = device_with(&[0u32; 3]);
    ok(cudaStreamBeginCapture(first, THREAD_LOCAL));
    ok(cudaMemsetAsync(words, 1, 4, first));
    ok(cudaEventRecord(fork, first));
    ok(cudaStreamWaitEvent(second, fork, 0));
    ok(cudaMemsetAsync(words + 4, 2, 4, second));
    ok(cudaMemsetAsync(words + 8, 3, 4, first));
    ok(cudaEventRecord(join, second));
    ok(cudaStreamWaitEvent(first, join, 0));
    let (mut status, mut id, mut graph, mut after, mut count) = (0, 0, 0, 0, 0);
    ok(cudaStreamGetCaptureInfo_v2(first, &mut status, &mut id, &mut graph, &mut after, &mut count));
    assert_eq!((status, count), (1, 2));
    assert_ne!(after, 0);
    let mut ended = 0;
    ok(cudaStreamEndCapture(first, &mut ended));
    assert_eq!(ended, graph);
    // What is left of the capture is in the way of nobody.
    ok(cudaStreamWaitEvent(second, join, 0));
    ok(cudaStreamSynchronize(second));
    let executable = instantiated(graph);
    ok(cudaGraphLaunch(executable, first));
    ok(cudaStreamSynchronize(first));
    assert_eq!(fetch::<u32>(words, 3), [0x0101_0101, 0x0202_0202, 0x0303_0303]);
}

#[test]
fn a_wait_for_a_stream_that_captures_invalidates_the_capture() {
    let (stream, event) = (stream(), event());
    let mut graph = 7;
    ok(cudaStreamBeginCapture(stream, THREAD_LOCAL));
    assert_eq!(cudaStreamSynchronize(stream), 900);
    assert_eq!(cudaMemsetAsync(device_word(), 0, 4, stream), 901);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 901);
    assert_eq!(graph, 0);
    ok(cudaStreamSynchronize(stream));
    ok(cudaStreamBeginCapture(stream, RELAXED));
    ok(cudaEventRecord(event, stream));
    assert_eq!(cudaEventQuery(event), 907);
    assert_eq!(cudaEventSynchronize(event), 907);
    ok(cudaStreamEndCapture(stream, &mut graph));
}

/// Memory that was there before any capture.
fn device_word() -> u64 {
    static WORD: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *WORD.get_or_init(|| {
        let mut mode = RELAXED;
        ok(cudaThreadExchangeStreamCaptureMode(&mut mode));
        let mut word = 0;
        ok(cudaMalloc(&mut word, 4));
        ok(cudaThreadExchangeStreamCaptureMode(&mut mode));
        word
    })
}

#[test]
fn captures_stay_apart() {
    let (first, second, event) = (stream(), stream(), event());
    let mut graph = 0;
    // Work of outside, which the capture can not know.
    ok(cudaEventRecord(event, second));
    ok(cudaStreamBeginCapture(first, THREAD_LOCAL));
    assert_eq!(cudaStreamWaitEvent(first, event, 0), 905);
    assert_eq!(cudaStreamEndCapture(first, &mut graph), 901);
    // Two captures.
    ok(cudaStreamBeginCapture(first, THREAD_LOCAL));
    ok(cudaStreamBeginCapture(second, THREAD_LOCAL));
    ok(cudaEventRecord(event, first));
    assert_eq!(cudaStreamWaitEvent(second, event, 0), 902);
    assert_eq!(cudaStreamEndCapture(first, &mut graph), 901);
    assert_eq!(cudaStreamEndCapture(second, &mut graph), 901);
    // A stream that never came back; one that did not begin.
    ok(cudaStreamBeginCapture(first, THREAD_LOCAL));
    ok(cudaEventRecord(event, first));
    ok(cudaStreamWaitEvent(second, event, 0));
    ok(cudaMemsetAsync(device_word(), 0, 4, second));
    assert_eq!(cudaStreamEndCapture(first, &mut graph), 904);
    ok(cudaStreamBeginCapture(first, THREAD_LOCAL));
    ok(cudaEventRecord(event, first));
    ok(cudaStreamWaitEvent(second, event, 0));
    assert_eq!(cudaStreamEndCapture(second, &mut graph), 903);
    assert_eq!(cudaStreamEndCapture(first, &mut graph), 901);
    assert_eq!(cudaStreamEndCapture(first, &mut graph), 401);
    assert_eq!(cudaStreamBeginCapture(0, THREAD_LOCAL), 900);
}

#[test]
fn threads_and_modes() {
    let stream = stream();
    let mut graph = 0;
    ok(cudaStreamBeginCapture(stream, THREAD_LOCAL));
    let ended = std::thread::spawn(move || cudaStreamEndCapture(stream, &mut 0)).join().unwrap();
    assert_eq!(ended, 908);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 901);
    let mut word = 0;
    ok(cudaStreamBeginCapture(stream, THREAD_LOCAL));
    assert_eq!(cudaMalloc(&mut word, 4), 900);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 901);
    let mut mode = RELAXED;
    ok(cudaThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL);
    ok(cudaStreamBeginCapture(stream, THREAD_LOCAL));
    ok(cudaMalloc(&mut word, 4));
    ok(cudaStreamEndCapture(stream, &mut graph));
    ok(cudaThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, RELAXED);
}

#[test]
fn a_global_capture_forbids_what_other_threads_ask_for() {
    // In a process of its own: it is in the way of all other tests here.
    const ROLE: &str = "ACCL_SIM_GLOBAL_CAPTURE";
    if std::env::var_os(ROLE).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_global_capture_forbids_what_other_threads_ask_for"]).env(ROLE, "1");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (stream, other, event) = (stream(), stream(), event());
    ok(cudaEventRecord(event, other));
    ok(cudaEventSynchronize(event));
    for (mode, expected) in [(GLOBAL, 900), (THREAD_LOCAL, 0), (RELAXED, 0)] {
        ok(cudaStreamBeginCapture(stream, GLOBAL));
        let watchdog = std::thread::spawn(move || {
            let mut mode = mode;
            ok(cudaThreadExchangeStreamCaptureMode(&mut mode));
            cudaEventQuery(event)
        });
        assert_eq!(watchdog.join().unwrap(), expected);
        assert_eq!(cudaStreamEndCapture(stream, &mut 0), if expected == 0 { 0 } else { 901 });
    }
}

#[test]
fn the_legacy_stream_can_not_wait_for_a_capture() {
    ok(cuInit(0));
    let mut context = 0;
    ok(cuCtxCreate_v2(&mut context, 0, 1));
    let (mut blocking, mut word, mut graph) = (0, 0, 0);
    ok(cuStreamCreate(&mut blocking, 0));
    ok(cuMemAlloc_v2(&mut word, 4));
    ok(cudaStreamBeginCapture(blocking, RELAXED));
    assert_eq!(cuMemsetD32Async(word, 0, 1, 0), 906);
    assert_eq!(cudaStreamEndCapture(blocking, &mut graph), 901);
    ok(cuCtxDestroy_v2(context));
}

#[test]
fn objects_live_as_long_as_graphs_need_them() {
    static DESTROYED: AtomicU32 = AtomicU32::new(0);
    let stream = stream();
    let (mut graph, mut object) = (0, 0);
    ok(cudaStreamBeginCapture(stream, THREAD_LOCAL));
    ok(cudaMemsetAsync(device_word(), 0, 4, stream));
    ok(cudaStreamEndCapture(stream, &mut graph));
    ok(cudaUserObjectCreate(&mut object, DESTROYED.as_ptr() as u64, count, 1, 1));
    ok(cudaGraphRetainUserObject(graph, object, 1, 1));
    let executable = instantiated(graph);
    ok(cudaGraphDestroy(graph));
    let gate = Gate::close(stream);
    ok(cudaGraphLaunch(executable, stream));
    ok(cudaGraphExecDestroy(executable));
    assert_eq!(DESTROYED.load(Ordering::Relaxed), 0);
    gate.open();
    ok(cudaStreamSynchronize(stream));
    // The stream lets go of the launch just after it counts it as done.
    for _ in 0..1000 {
        if DESTROYED.load(Ordering::Relaxed) == 1 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(DESTROYED.load(Ordering::Relaxed), 1);
}

#[test]
fn graphs_can_be_made_without_a_capture() {
    static SEEN: AtomicU32 = AtomicU32::new(1);
    extern "C" fn double(_: u64) {
        SEEN.store(SEEN.load(Ordering::Relaxed) * 2, Ordering::Relaxed);
    }
    extern "C" fn add_three(_: u64) {
        SEEN.fetch_add(3, Ordering::Relaxed);
    }
    ok(cudaSetDevice(0));
    let (mut graph, mut first, mut second, mut executable) = (0, 0, 0, 0);
    ok(cuGraphCreate(&mut graph, 0));
    ok(cuGraphAddHostNode(&mut second, graph, 0, 0, &HostNode(double, 0)));
    ok(cuGraphAddHostNode(&mut first, graph, 0, 0, &HostNode(add_three, 0)));
    ok(cuGraphAddDependencies(graph, &first, &second, 1));
    assert_eq!(cuGraphAddDependencies(graph, &second, &first, 1), 1);
    ok(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    let stream = stream();
    ok(cudaGraphLaunch(executable, stream));
    ok(cudaStreamSynchronize(stream));
    assert_eq!(SEEN.load(Ordering::Relaxed), 8);
}

#[test]
fn kernels_of_two_devices_in_one_graph_run_at_the_same_time() {
    let text = concat!(include_str!("device/kernels.ptx"), "\0");
    let mut functions = [0; 2];
    let mut words = [0; 2];
    let mut streams = [0; 2];
    for device in 0..2 {
        ok(cudaSetDevice(device as i32));
        let mut module = 0;
        ok(cuModuleLoadData(&mut module, text.as_ptr() as u64));
        ok(cuModuleGetFunction(&mut functions[device], module, c"launches_meet".as_ptr() as u64));
        let mut word = 0;
        ok(cudaHostAlloc(&mut word, 4, 0));
        words[device] = word;
        streams[device] = stream();
    }
    let launch = |device: usize| {
        ok(cudaSetDevice(device as i32));
        let arguments = [words[device], words[1 - device]];
        let pointers = arguments.each_ref().map(|argument| std::ptr::from_ref(argument) as u64);
        cuLaunchKernel(functions[device], 1, 1, 1, 1, 1, 1, 0, streams[device], pointers.as_ptr() as u64, 0)
    };
    ok(cudaSetDevice(0));
    let fork = event();
    ok(cudaSetDevice(1));
    let join = event();
    ok(cudaStreamBeginCapture(streams[0], RELAXED));
    ok(cudaEventRecord(fork, streams[0]));
    ok(cudaStreamWaitEvent(streams[1], fork, 0));
    ok(launch(0));
    ok(launch(1));
    ok(cudaEventRecord(join, streams[1]));
    ok(cudaStreamWaitEvent(streams[0], join, 0));
    let mut graph = 0;
    ok(cudaStreamEndCapture(streams[0], &mut graph));
    let executable = instantiated(graph);
    ok(cudaGraphLaunch(executable, streams[0]));
    ok(cudaStreamSynchronize(streams[0]));
}
