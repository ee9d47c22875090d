//! The simulated device (`tests/sim`), as a program of the runtime library sees one: functions looked up by name.
//!
//! The library under test is told of the same file as its driver, so that both work on one device.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of a C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::cluster::Cluster;
use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Where workers find the simulator.
pub const SIMULATOR: &str = "TEST_SIMULATOR";

type Ptr = *mut c_void;

macro_rules! functions {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The functions; each returns a code.
        #[allow(non_snake_case)]
        pub struct Cuda {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        fn load(path: &Path) -> Cuda {
            let library = unsafe { libloading::Library::new(path) }.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let cuda = Cuda { $($name: *unsafe { library.get(stringify!($name).as_bytes()) }.unwrap(),)* };
            std::mem::forget(library);
            cuda
        }
    };
}

functions! {
    cudaSetDevice(c_int);
    cudaMalloc(*mut Ptr, usize);
    cudaFree(Ptr);
    cudaMemGetInfo(*mut usize, *mut usize);
    cudaMemcpy(Ptr, Ptr, usize, c_int);
    cudaMemsetAsync(Ptr, c_int, usize, Ptr);
    cudaMemcpyAsync(Ptr, Ptr, usize, c_int, Ptr);
    cudaMallocManaged(*mut Ptr, usize, c_uint);
    cudaHostAlloc(*mut Ptr, usize, c_uint);
    cudaFreeHost(Ptr);
    cudaStreamCreateWithFlags(*mut Ptr, c_uint);
    cudaStreamDestroy(Ptr);
    cudaStreamSynchronize(Ptr);
    cudaStreamQuery(Ptr);
    cudaDeviceSynchronize();
    cudaLaunchHostFunc(Ptr, extern "C" fn(Ptr), Ptr);
    cudaStreamBeginCapture(Ptr, c_int);
    cudaStreamEndCapture(Ptr, *mut Ptr);
    cudaGraphInstantiateWithFlags(*mut Ptr, Ptr, u64);
    cudaGraphLaunch(Ptr, Ptr);
    cudaGraphExecDestroy(Ptr);
    cudaGraphDestroy(Ptr);
    cudaEventCreateWithFlags(*mut Ptr, c_uint);
    cudaEventQuery(Ptr);
    cudaEventDestroy(Ptr);
}

/// Copies in any direction.
const BETWEEN_ANY: c_int = 4;

/// A capture that forbids unsafe calls to its own thread only.
const THREAD_LOCAL: c_int = 1;

/// The device, loaded once.
pub fn cuda() -> &'static Cuda {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    CUDA.get_or_init(|| load(Path::new(&std::env::var_os(SIMULATOR).expect("a worker"))))
}

/// The simulator, built for this run.
pub fn simulator() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| super::build(&["accl-sim"]).join("libaccl_sim.so"))
}

/// Gives the ranks of a cluster so many simulated devices.
pub fn with_devices(cluster: Cluster, devices: usize) -> Cluster {
    let path = simulator().display();
    let cluster = cluster.env(SIMULATOR, &path).env("ACCL_DRIVER_LIB", path);
    cluster.env("ACCL_SIM_DEVICES", devices)
}

/// A buffer on the device.
pub struct OnDevice<T> {
    pub start: Ptr,
    count: usize,
    of: std::marker::PhantomData<T>,
}

impl<T: Copy + Default> OnDevice<T> {
    /// With these values.
    pub fn of(values: &[T]) -> Self {
        let cuda = cuda();
        let mut start = null_mut();
        cuda.ok(unsafe { (cuda.cudaMalloc)(&raw mut start, size_of_val(values).max(1)) });
        let buffer = Self { start, count: values.len(), of: std::marker::PhantomData };
        buffer.set(values);
        buffer
    }

    /// Other values, at once.
    pub fn set(&self, values: &[T]) {
        assert_eq!(values.len(), self.count);
        let cuda = cuda();
        let from = values.as_ptr().cast_mut().cast();
        cuda.ok(unsafe { (cuda.cudaMemcpy)(self.start, from, size_of_val(values), BETWEEN_ANY) });
    }

    /// What is there now; streams must be through.
    pub fn get(&self) -> Vec<T> {
        let cuda = cuda();
        let mut values = vec![T::default(); self.count];
        let bytes = size_of_val(&values[..]);
        cuda.ok(unsafe { (cuda.cudaMemcpy)(values.as_mut_ptr().cast(), self.start, bytes, BETWEEN_ANY) });
        values
    }

    /// The address of an element.
    pub fn at(&self, index: usize) -> Ptr {
        self.start.wrapping_byte_add(index * size_of::<T>())
    }
}

impl<T> Drop for OnDevice<T> {
    fn drop(&mut self) {
        let cuda = cuda();
        unsafe { (cuda.cudaFree)(self.start) };
    }
}

impl Cuda {
    #[track_caller]
    pub fn ok(&self, code: c_int) {
        assert_eq!(code, 0, "code of the runtime library");
    }

    /// Chooses a device for the calling thread.
    pub fn choose(&self, device: usize) {
        self.ok(unsafe { (self.cudaSetDevice)(device as c_int) });
    }

    /// A stream that does not wait for the default stream.
    pub fn stream(&self) -> Ptr {
        let mut stream = null_mut();
        self.ok(unsafe { (self.cudaStreamCreateWithFlags)(&raw mut stream, 1) });
        stream
    }

    #[track_caller]
    pub fn wait(&self, stream: Ptr) {
        self.ok(unsafe { (self.cudaStreamSynchronize)(stream) });
    }

    /// What `body` puts on `stream`, as a graph that can be launched.
    pub fn capture(&self, stream: Ptr, body: impl FnOnce()) -> Graph {
        let (mut graph, mut executable) = (null_mut(), null_mut());
        self.ok(unsafe { (self.cudaStreamBeginCapture)(stream, THREAD_LOCAL) });
        body();
        self.ok(unsafe { (self.cudaStreamEndCapture)(stream, &raw mut graph) });
        self.ok(unsafe { (self.cudaGraphInstantiateWithFlags)(&raw mut executable, graph, 0) });
        Graph { graph, executable }
    }
}

/// A captured graph.
pub struct Graph {
    graph: Ptr,
    executable: Ptr,
}

impl Graph {
    /// Runs it once more.
    #[track_caller]
    pub fn launch(&self, stream: Ptr) {
        cuda().ok(unsafe { (cuda().cudaGraphLaunch)(self.executable, stream) });
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        cuda().ok(unsafe { (cuda().cudaGraphExecDestroy)(self.executable) });
        cuda().ok(unsafe { (cuda().cudaGraphDestroy)(self.graph) });
    }
}
