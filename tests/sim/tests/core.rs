//! Memory, copies, streams, events and errors, through both faces.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use support::*;

#[test]
fn memory_comes_and_goes() {
    let address = device_with(&[1u32, 2, 3]);
    assert_eq!(fetch::<u32>(address, 3), [1, 2, 3]);
    let mut attributes = [0; 3];
    ok(cudaPointerGetAttributes(&mut attributes, address + 4));
    assert_eq!(attributes, [2, address + 4, 0]);
    let (mut base, mut bytes) = (0, 0);
    ok(cuMemGetAddressRange_v2(&mut base, &mut bytes, address + 5));
    assert_eq!((base, bytes), (address, 12));
    ok(cudaFree(address));
    assert_eq!(cudaFree(address), 1);
    assert_eq!(cudaMemset(address, 0, 4), 1);
    assert_eq!(cudaGetLastError(), 1);
    assert_eq!(cudaGetLastError(), 0);
    let stack = [0u8; 4];
    ok(cudaPointerGetAttributes(&mut attributes, stack.as_ptr() as u64));
    assert_eq!(attributes[0] as u32, 0);
}

#[test]
fn copies_stay_in_their_allocations() {
    let address = device_with(&[0u8; 100]);
    let mut host = [0u8; 200];
    assert_eq!(cudaMemcpy(host.as_mut_ptr() as u64, address, 101, 2), 1);
    assert_eq!(cudaMemcpy(host.as_mut_ptr() as u64, address + 50, 51, 4), 1);
    ok(cudaMemcpy(host.as_mut_ptr() as u64, address + 50, 50, 4));
    assert_eq!(cudaMemcpy(address, host.as_ptr() as u64, 4, 9), 21);
    assert_eq!(cudaMemcpy(address, host.as_ptr() as u64, 4, 2), 1);
    ok(cudaMemcpy(0, 0, 0, 1));
}

#[test]
fn out_of_memory_is_an_error_that_leaves_no_trace() {
    let (mut free, mut total, mut address) = (0, 0, 0);
    ok(cudaMemGetInfo(&mut free, &mut total));
    assert_eq!(cudaMalloc(&mut address, total + 1), 2);
    assert_eq!(cudaGetLastError(), 2);
    ok(cudaMalloc(&mut address, 1000));
    ok(cudaFree(address));
}

#[test]
fn a_stream_runs_in_order_and_beside_the_host() {
    let mut stream = 0;
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    let address = device_with(&[7u32]);
    let gate = Gate::close(stream);
    let mut pinned = 0;
    ok(cudaHostAlloc(&mut pinned, 4, 0));
    ok(cudaMemcpyAsync(pinned, address, 4, 2, stream));
    ok(cudaMemsetAsync(address, 0, 4, stream));
    assert_eq!(cudaStreamQuery(stream), 600);
    assert_eq!(cudaGetLastError(), 0);
    gate.open();
    ok(cudaStreamSynchronize(stream));
    ok(cudaStreamQuery(stream));
    // SAFETY: pinned memory, written by the copy that is done.
    assert_eq!(unsafe { *(pinned as *const u32) }, 7);
    assert_eq!(fetch::<u32>(address, 1), [0]);
    ok(cudaStreamDestroy(stream));
    assert_eq!(cudaStreamDestroy(stream), 400);
    assert_eq!(cudaMemsetAsync(address, 0, 4, stream), 400);
}

#[test]
fn events_order_streams() {
    let (mut first, mut second, mut start, mut end) = (0, 0, 0, 0);
    ok(cudaStreamCreateWithFlags(&mut first, 1));
    ok(cudaStreamCreateWithFlags(&mut second, 1));
    ok(cudaEventCreate(&mut start));
    ok(cudaEventCreate(&mut end));
    ok(cudaEventQuery(start));
    let address = device_with(&[1u32]);
    let gate = Gate::close(first);
    ok(cudaEventRecord(start, first));
    ok(cudaMemsetAsync(address, 5, 4, first));
    ok(cudaEventRecord(end, first));
    ok(cudaStreamWaitEvent(second, end, 0));
    ok(cudaMemsetAsync(address, 6, 2, second));
    assert_eq!(cudaEventQuery(end), 600);
    let mut ms = -1.0;
    assert_eq!(cudaEventElapsedTime(&mut ms, start, end), 600);
    ok(cudaEventDestroy(0x5A5A) - 400);
    gate.open();
    ok(cudaStreamSynchronize(second));
    assert_eq!(fetch::<u32>(address, 1), [0x0505_0606]);
    ok(cudaEventSynchronize(end));
    ok(cudaEventElapsedTime(&mut ms, start, end));
    assert!(ms >= 0.0);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    // On a context of its own, since other tests use the legacy stream of the primary one.
    ok(cuInit(0));
    let mut context = 0;
    ok(cuCtxCreate_v2(&mut context, 0, 0));
    let (mut blocking, mut free) = (0, 0);
    ok(cuStreamCreate(&mut blocking, 0));
    ok(cuStreamCreate(&mut free, 1));
    let mut address = 0;
    ok(cuMemAlloc_v2(&mut address, 8));
    let gate = Gate::close(blocking);
    ok(cuMemsetD32Async(address, 1, 1, blocking));
    ok(cuMemsetD32Async(address, 2, 1, 0));
    ok(cuMemsetD32Async(address + 4, 9, 1, free));
    ok(cuStreamSynchronize(free));
    assert_eq!(cuStreamQuery(0), 600);
    gate.open();
    let mut words = [0u32; 2];
    ok(cuMemcpyDtoH_v2(words.as_mut_ptr() as u64, address, 8));
    assert_eq!(words, [2, 9]);
    ok(cuCtxDestroy_v2(context));
    assert_eq!(cuMemAlloc_v2(&mut address, 8), 201);
}

#[test]
fn host_functions_run_in_order() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn note(value: u64) {
        SEEN.store(SEEN.load(Ordering::Relaxed) * 10 + value, Ordering::Relaxed);
    }
    let mut stream = 0;
    ok(cudaStreamCreate(&mut stream));
    for value in [1, 2, 3] {
        ok(cudaLaunchHostFunc(stream, note, value));
    }
    ok(cudaStreamSynchronize(stream));
    assert_eq!(SEEN.load(Ordering::Relaxed), 123);
}

#[test]
fn both_faces_and_both_prefixes_share_their_state() {
    ok(cudaSetDevice(1));
    let mut context = 0;
    ok(cuCtxGetCurrent(&mut context));
    assert_ne!(context, 0);
    ok(hgInit(0));
    let mut address = 0;
    ok(hgMemAlloc_v2(&mut address, 64));
    let mut attributes = [0; 3];
    ok(cudaPointerGetAttributes(&mut attributes, address));
    assert_eq!(attributes[0], 1 << 32 | 2);
    ok(cudaFree(address));
    let mut device = -1;
    ok(cudaGetDevice(&mut device));
    assert_eq!(device, 1);
    assert_eq!(cudaSetDevice(2), 101);
}

#[test]
fn the_runtime_keeps_its_context() {
    ok(cudaSetDevice(1));
    let address = device_with(&[4u32]);
    let mut context = 0;
    ok(cuDevicePrimaryCtxRetain(&mut context, 1));
    ok(cuDevicePrimaryCtxRelease_v2(1));
    assert_eq!(fetch::<u32>(address, 1), [4]);
}

#[test]
fn waits_for_words_compare_cyclically() {
    let mut stream = 0;
    ok(cudaStreamCreateWithFlags(&mut stream, 1));
    let word = device_with(&[0xFFFF_FFFFu32, 0]);
    let done = device_with(&[0u32]);
    ok(cuStreamWaitValue32_v2(stream, word, 2, 0));
    ok(cuStreamWriteValue32_v2(stream, done, 77, 0));
    assert_eq!(cudaStreamQuery(stream), 600);
    let mut other = 0;
    ok(cudaStreamCreateWithFlags(&mut other, 1));
    ok(cuStreamWriteValue32_v2(other, word, 3, 0));
    ok(cudaStreamSynchronize(stream));
    assert_eq!(fetch::<u32>(done, 1), [77]);
    assert_eq!(cuStreamWaitValue32_v2(stream, word + 2, 2, 0), 1);
    assert_eq!(cuStreamWaitValue64_v2(stream, word, 2, 1 << 30), 801);
    ok(cuStreamWaitValue64_v2(stream, word, 1, 0));
    ok(cudaStreamSynchronize(stream));
}

#[test]
fn one_library_has_all_names() {
    let folder = std::env::temp_dir().join(format!("accl-sim-names-{}", std::process::id()));
    accl_sim::install(&accl_sim::built().unwrap(), &folder).unwrap();
    accl_sim::install(&accl_sim::built().unwrap(), &folder).unwrap();
    let mut count = 0;
    // SAFETY: the library has no constructors.
    let library = unsafe { libloading::Library::new(folder.join("libcudart.so.13")) }.unwrap();
    // SAFETY: the type is that of the API's function.
    let function = unsafe { library.get::<extern "C" fn(&mut i32) -> i32>(b"cudaGetDeviceCount") }.unwrap();
    ok(function(&mut count));
    assert_eq!(count, 2);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), accl_sim::NAMES.len());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn functions_are_found_by_name_and_version() {
    let find = |name: &std::ffi::CStr, version: i32| {
        let (mut address, mut status) = (0, -1);
        let code = cuGetProcAddress_v2(name.as_ptr() as u64, &mut address, version, 0, &mut status);
        (code, address, status)
    };
    let (code, address, status) = find(c"cuMemAlloc", 12000);
    assert_eq!((code, status), (0, 0));
    assert_eq!(find(c"cuMemAlloc_v2", 12000).1, address);
    assert_ne!(find(c"hgMemAlloc", 12000).1, address);
    let old = find(c"cuStreamGetCaptureInfo", 12000).1;
    assert_ne!(find(c"cuStreamGetCaptureInfo", 13000).1, old);
    assert_eq!(find(c"cuNobody", 13000), (500, 0, 1));
    assert_eq!(find(c"malloc", 13000).0, 500);
}

#[test]
fn threads_have_default_streams_and_contexts_of_their_own() {
    // In a context of its own: the legacy stream, which other tests use, would wait for the stream that is closed here.
    ok(cuInit(0));
    let (mut mine, mut words) = (0, 0);
    ok(cuCtxCreate_v2(&mut mine, 0, 0));
    ok(cuMemAlloc_v2(&mut words, 8));
    // Stream 2 is the thread's own, and waits for nobody else's.
    let gate = Gate::close(2);
    ok(cudaMemsetAsync(words, 1, 4, 2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut context = 1;
            ok(cuCtxGetCurrent(&mut context));
            assert_eq!(context, 0);
            ok(cuCtxSetCurrent(mine));
            ok(cudaMemsetAsync(words + 4, 2, 4, 2));
            ok(cudaStreamSynchronize(2));
        });
    });
    assert_eq!(cudaStreamQuery(2), 600);
    gate.open();
    ok(cudaStreamSynchronize(2));
    assert_eq!(fetch::<u32>(words, 2), [0x0101_0101, 0x0202_0202]);
    ok(cuCtxDestroy_v2(mine));
}

#[test]
fn contexts_are_a_stack() {
    ok(cuInit(0));
    let (mut first, mut second, mut top) = (0, 0, 0);
    ok(cuCtxCreate_v2(&mut first, 0, 0));
    ok(cuCtxCreate_v2(&mut second, 0, 1));
    ok(cuCtxPushCurrent_v2(first));
    ok(cuCtxPopCurrent_v2(&mut top));
    assert_eq!(top, first);
    ok(cuCtxGetCurrent(&mut top));
    assert_eq!(top, second);
    let mut stream = 0;
    ok(cuStreamCreate(&mut stream, 1));
    ok(cuCtxSetCurrent(first));
    ok(cuStreamGetCtx(stream, &mut top));
    assert_eq!(top, second);
    // An event of one context can not be recorded in a stream of another one.
    let mut event = 0;
    ok(cudaEventCreate(&mut event));
    assert_eq!(cudaEventRecord(event, stream), 400);
    ok(cuCtxDestroy_v2(first));
    ok(cuCtxDestroy_v2(second));
    assert_eq!(cuCtxPushCurrent_v2(second), 201);
    assert_eq!(cuStreamQuery(stream), 201);
}
