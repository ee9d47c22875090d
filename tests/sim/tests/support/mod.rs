//! Calls of the library as a program makes them: by name, through the dynamic loader.
#![allow(
    dead_code,
    non_snake_case,
    unreachable_pub,
    reason = "each test uses some of it; the names are CUDA's"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::too_many_arguments,
    reason = "tests; CUDA's functions have as many"
)]

use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

/// The libraries: the simulator, or, where `ACCL_SIM_TEST_REAL` is set, NVIDIA's, to see whether the tests are right.
pub fn libraries() -> &'static [Library] {
    static LIBRARIES: OnceLock<Vec<Library>> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let names: Vec<PathBuf> = match std::env::var_os("ACCL_SIM_TEST_REAL") {
            Some(_) => vec!["libcudart.so.13".into(), "libcuda.so.1".into()],
            None => vec![accl_sim::built().unwrap()],
        };
        // SAFETY: the simulator has no constructors; NVIDIA's do no harm.
        names.into_iter().map(|name| unsafe { Library::new(name) }.unwrap()).collect()
    })
}

/// A function by its name and type.
///
/// # Safety
///
/// The type must be that of the API's function of this name.
pub unsafe fn function<T: Copy>(name: &str) -> T {
    // SAFETY: as above.
    let found = libraries().iter().find_map(|library| unsafe { library.get::<T>(name.as_bytes()) }.ok());
    *found.unwrap_or_else(|| panic!("{name} is missing"))
}

pub type HostFunction = extern "C" fn(u64);

/// A host function and its data.
#[repr(C)]
pub struct HostNode(pub HostFunction, pub u64);

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {$(
        pub fn $name($($arg: $type),*) -> i32 {
            // SAFETY: the type is that of the API's function of this name.
            let function = unsafe { function::<extern "C" fn($($type),*) -> i32>(stringify!($name)) };
            function($($arg),*)
        }
    )*};
}

api! {
    fn cudaGetDeviceCount(count: &mut i32);
    fn cudaSetDevice(device: i32);
    fn cudaGetDevice(device: &mut i32);
    fn cudaGetLastError();
    fn cudaPeekAtLastError();
    fn cudaDeviceSynchronize();
    fn cudaMalloc(out: &mut u64, bytes: usize);
    fn cudaFree(address: u64);
    fn cudaHostAlloc(out: &mut u64, bytes: usize, flags: u32);
    fn cudaFreeHost(address: u64);
    fn cudaMemGetInfo(free: &mut usize, total: &mut usize);
    fn cudaMemcpy(to: u64, from: u64, bytes: usize, kind: i32);
    fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: i32, stream: u64);
    fn cudaMemset(to: u64, value: i32, bytes: usize);
    fn cudaMemsetAsync(to: u64, value: i32, bytes: usize, stream: u64);
    fn cudaPointerGetAttributes(out: &mut [u64; 3], address: u64);
    fn cudaStreamCreate(out: &mut u64);
    fn cudaStreamCreateWithFlags(out: &mut u64, flags: u32);
    fn cudaStreamDestroy(stream: u64);
    fn cudaStreamQuery(stream: u64);
    fn cudaStreamSynchronize(stream: u64);
    fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32);
    fn cudaStreamBeginCapture(stream: u64, mode: i32);
    fn cudaStreamEndCapture(stream: u64, graph: &mut u64);
    fn cudaStreamIsCapturing(stream: u64, status: &mut i32);
    fn cudaStreamGetCaptureInfo_v2(stream: u64, status: &mut i32, id: &mut u64, graph: &mut u64, after: &mut u64, count: &mut usize);
    fn cudaThreadExchangeStreamCaptureMode(mode: &mut i32);
    fn cudaGraphInstantiate(out: &mut u64, graph: u64, flags: u64);
    fn cudaGraphLaunch(executable: u64, stream: u64);
    fn cudaGraphExecDestroy(executable: u64);
    fn cudaGraphDestroy(graph: u64);
    fn cudaGraphGetNodes(graph: u64, nodes: u64, count: &mut usize);
    fn cudaUserObjectCreate(out: &mut u64, data: u64, destroy: HostFunction, count: u32, flags: u32);
    fn cudaGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32);
    fn cudaEventCreate(out: &mut u64);
    fn cudaEventCreateWithFlags(out: &mut u64, flags: u32);
    fn cudaEventDestroy(event: u64);
    fn cudaEventRecord(event: u64, stream: u64);
    fn cudaEventQuery(event: u64);
    fn cudaEventSynchronize(event: u64);
    fn cudaEventElapsedTime(out: &mut f32, start: u64, end: u64);
    fn cudaLaunchHostFunc(stream: u64, function: HostFunction, data: u64);
    fn cudaIpcGetMemHandle(handle: &mut [u8; 64], address: u64);
    fn cudaIpcGetEventHandle(handle: &mut [u8; 64], event: u64);
    fn cuInit(flags: u32);
    fn cuDevicePrimaryCtxRetain(out: &mut u64, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cudaDeviceReset();
    fn cuCtxSetCurrent(context: u64);
    fn cuCtxGetCurrent(context: &mut u64);
    fn cuCtxCreate_v2(out: &mut u64, flags: u32, device: i32);
    fn cuCtxDestroy_v2(context: u64);
    fn cuCtxSynchronize();
    fn cuMemAlloc_v2(out: &mut u64, bytes: usize);
    fn cuMemFree_v2(address: u64);
    fn cuMemHostAlloc(out: &mut u64, bytes: usize, flags: u32);
    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize);
    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64);
    fn cuMemGetAddressRange_v2(base: &mut u64, bytes: &mut usize, address: u64);
    fn cuStreamCreate(out: &mut u64, flags: u32);
    fn cuStreamSynchronize(stream: u64);
    fn cuStreamQuery(stream: u64);
    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32);
    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32);
    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32);
    fn cuLaunchHostFunc(stream: u64, function: HostFunction, data: u64);
    fn hgMemAlloc_v2(out: &mut u64, bytes: usize);
    fn hgInit(flags: u32);
    fn cuModuleLoadData(out: &mut u64, image: u64);
    fn cuModuleUnload(module: u64);
    fn cuModuleGetFunction(out: &mut u64, module: u64, name: u64);
    fn cuMemAddressReserve(out: &mut u64, bytes: usize, align: usize, at: u64, flags: u64);
    fn cuMemAddressFree(address: u64, bytes: usize);
    fn cuMemCreate(out: &mut u64, bytes: usize, properties: &[u32; 8], flags: u64);
    fn cuMemRelease(handle: u64);
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(address: u64, bytes: usize);
    fn cuMemSetAccess(address: u64, bytes: usize, access: &[u32; 3], count: usize);
    fn cuMemExportToShareableHandle(out: &mut i32, handle: u64, kind: u32, flags: u64);
    fn cuMemImportFromShareableHandle(out: &mut u64, descriptor: u64, kind: u32);
    fn cuGetProcAddress_v2(name: u64, out: &mut u64, version: i32, flags: u64, status: &mut i32);
    fn cuCtxPushCurrent_v2(context: u64);
    fn cuCtxPopCurrent_v2(context: &mut u64);
    fn cuStreamGetCtx(stream: u64, context: &mut u64);
    fn cuGraphCreate(out: &mut u64, flags: u32);
    fn cuGraphAddHostNode(out: &mut u64, graph: u64, after: u64, count: usize, parameters: &HostNode);
    fn cuGraphAddDependencies(graph: u64, from: &u64, to: &u64, count: usize);
    fn cuGraphInstantiateWithFlags(out: &mut u64, graph: u64, flags: u64);
    fn cuIpcGetMemHandle(handle: &mut [u8; 64], address: u64);
    fn cuLaunchKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, parameters: u64, extra: u64
    );
}

/// Fails with the API's name of the code.
#[track_caller]
pub fn ok(code: i32) {
    assert_eq!(code, 0, "error {code}");
}

/// Device memory of the current device that holds these values.
pub fn device_with<T: Copy>(values: &[T]) -> u64 {
    let mut address = 0;
    ok(cudaMalloc(&mut address, size_of_val(values)));
    ok(cudaMemcpy(address, values.as_ptr() as u64, size_of_val(values), 1));
    address
}

/// What device memory holds.
pub fn fetch<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    ok(cudaMemcpy(values.as_mut_ptr() as u64, address, count * size_of::<T>(), 2));
    values
}

/// A gate: host memory that a stream waits for.
pub struct Gate(pub u64);

impl Gate {
    /// Closes a stream until the gate is opened.
    pub fn close(stream: u64) -> Self {
        let mut address = 0;
        ok(cudaHostAlloc(&mut address, 4, 0));
        ok(cuStreamWaitValue32_v2(stream, address, 1, 1));
        Self(address)
    }

    pub fn open(&self) {
        // SAFETY: pinned memory of this gate.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.0 as *mut u32) }
            .store(1, std::sync::atomic::Ordering::Release);
    }
}
