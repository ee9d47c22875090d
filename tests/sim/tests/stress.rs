//! Many threads, streams and events at once, against a model: what a thread's streams do in the order of its events is what happens.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod support;

use support::*;

const STREAMS: usize = 3;
const WORDS: usize = 16;
const STEPS: usize = 400;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// One thread's work: fills and copies of single words, each in any stream, in order by events.
fn work(seed: u64, legacy: bool) {
    let mut random = Random(seed);
    ok(cudaSetDevice((seed % 2) as i32));
    let memory = device_with(&[0u8; WORDS]);
    let mut model = [0u8; WORDS];
    let mut streams = [0; STREAMS];
    for stream in &mut streams {
        ok(cudaStreamCreateWithFlags(stream, u32::from(!legacy)));
    }
    if legacy {
        // The legacy stream takes part, too: it needs no events to come after, and before, the others.
        streams[0] = 0;
    }
    let mut last = 0;
    for step in 0..STEPS {
        let now = random.below(STREAMS);
        if now != last && !(legacy && (now == 0 || last == 0)) {
            let mut event = 0;
            ok(cudaEventCreateWithFlags(&mut event, 2));
            ok(cudaEventRecord(event, streams[last]));
            ok(cudaStreamWaitEvent(streams[now], event, 0));
            ok(cudaEventDestroy(event));
        }
        last = now;
        let (to, from) = (random.below(WORDS), random.below(WORDS));
        if random.below(2) == 0 {
            ok(cudaMemsetAsync(memory + to as u64, step as i32, 1, streams[now]));
            model[to] = step as u8;
        } else {
            ok(cudaMemcpyAsync(memory + to as u64, memory + from as u64, 1, 3, streams[now]));
            model[to] = model[from];
        }
        if random.below(50) == 0 {
            ok(cudaStreamSynchronize(streams[now]));
        }
    }
    ok(cudaStreamSynchronize(streams[last]));
    assert_eq!(fetch::<u8>(memory, WORDS), model, "seed {seed}");
    streams.iter().filter(|&&stream| stream != 0).for_each(|&stream| ok(cudaStreamDestroy(stream)));
    ok(cudaFree(memory));
}

#[test]
fn threads_with_streams_of_their_own() {
    std::thread::scope(|scope| (0..6).for_each(|seed| drop(scope.spawn(move || work(seed, false)))));
}

#[test]
fn threads_that_share_the_legacy_stream() {
    std::thread::scope(|scope| (10..14).for_each(|seed| drop(scope.spawn(move || work(seed, true)))));
}

#[test]
fn graphs_that_fork_at_random() {
    ok(cudaSetDevice(0));
    for seed in 0..20 {
        let mut random = Random(seed);
        let memory = device_with(&[0u8; WORDS]);
        let mut streams = [0; STREAMS];
        streams.iter_mut().for_each(|stream| ok(cudaStreamCreateWithFlags(stream, 1)));
        ok(cudaStreamBeginCapture(streams[0], 1));
        let mut event = 0;
        ok(cudaEventCreateWithFlags(&mut event, 2));
        let mut last = 0;
        let mut model = [0u8; WORDS];
        for step in 0..60 {
            let now = random.below(STREAMS);
            if now != last {
                ok(cudaEventRecord(event, streams[last]));
                ok(cudaStreamWaitEvent(streams[now], event, 0));
            }
            last = now;
            let (to, from) = (random.below(WORDS), random.below(WORDS));
            if random.below(2) == 0 {
                ok(cudaMemsetAsync(memory + to as u64, step, 1, streams[now]));
                model[to] = step as u8;
            } else {
                ok(cudaMemcpyAsync(memory + to as u64, memory + from as u64, 1, 3, streams[now]));
                model[to] = model[from];
            }
        }
        for stream in &streams[1..] {
            // Whoever has joined comes back; a stream that never joined records nothing of the capture.
            let mut status = 0;
            ok(cudaStreamIsCapturing(*stream, &mut status));
            if status == 1 {
                ok(cudaEventRecord(event, *stream));
                ok(cudaStreamWaitEvent(streams[0], event, 0));
            }
        }
        let (mut graph, mut executable) = (0, 0);
        ok(cudaStreamEndCapture(streams[0], &mut graph));
        ok(cudaGraphInstantiate(&mut executable, graph, 0));
        ok(cudaGraphLaunch(executable, streams[0]));
        ok(cudaStreamSynchronize(streams[0]));
        assert_eq!(fetch::<u8>(memory, WORDS), model, "seed {seed}");
    }
}

#[test]
fn the_same_with_random_delays() {
    if std::env::var_os("ACCL_SIM_RANDOM_DELAY").is_some() {
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .env("ACCL_SIM_RANDOM_DELAY", "5")
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
}
