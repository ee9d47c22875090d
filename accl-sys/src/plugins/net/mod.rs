//! Network plugins, versions 8 to 12: transports between hosts that others provide. What moves data by them (`transport/plugin` of accl-core) knows no
//! versions; `tables.rs` has what differs, `calls.rs` takes it out.

mod calls;
mod tables;

use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, OnceLock};

use accl_core::config::subsystem::{INIT, NET};
use accl_core::driver::network_plugin::{
    self, Communication, Found, HANDLE_BYTES, Handle, Inlet, Listener, NetworkPlugin, Outlet, Piece,
    Properties, Registration, Request, Session,
};
use accl_core::telemetry::{self, log};
use accl_core::{Error, ErrorKind, Result};
use libloading::os::unix::Library;
use parking_lot::Mutex;

use calls::{Calls, Outcome};
use tables::Opaque;

/// How many plugins are tried: as NCCL has room for.
const MOST_PLUGINS: usize = 16;
/// More devices than a host has.
const MOST_DEVICES: c_int = 256;
/// NCCL's codes by name.
const CODES: [&str; 8] = [
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
];
const REMOTE: c_int = 6;

/// Has communicators find plugins.
pub(crate) fn offer() {
    network_plugin::set_finder(find);
}

/// The plugins that the setting names. Each value of it is looked up once in a process, and what was loaded stays.
fn find() -> Found {
    static KNOWN: Mutex<Vec<(String, Found)>> = Mutex::new(Vec::new());
    let value = super::value_of("NET_PLUGIN");
    let mut known = KNOWN.lock();
    if let Some((_, found)) = known.iter().find(|(one, _)| *one == value) {
        return found.clone();
    }
    let found = load(&value);
    known.push((value, found.clone()));
    found
}

fn load(value: &str) -> Found {
    let mut found = Found::default();
    for name in value.split(',').map(str::trim).take(MOST_PLUGINS) {
        if name == "none" || name.is_empty() && value.contains(',') {
            continue;
        }
        match load_one(name) {
            Ok(plugin) => {
                let Functions { called, version, .. } = &*plugin.functions;
                log::info(INIT | NET, format_args!("NET/Plugin: Loaded net plugin {called} (v{version})"));
                found.plugins.push(plugin);
            }
            Err(why) => {
                log::info(INIT | NET, format_args!("NET/Plugin: {why}"));
                found.not_loaded.push(why);
            }
        }
    }
    found
}

fn load_one(name: &str) -> std::result::Result<Arc<Plugin>, String> {
    let library = if name == "STATIC_PLUGIN" {
        Library::this()
    } else {
        super::load("net", name).map_err(|reasons| format!("{} is not loaded: {reasons}", shown(name)))?
    };
    // SAFETY: the library is kept by the plugin, which is never dropped; whoever names a plugin says that it is one.
    let found = unsafe { Calls::of(&library) };
    let (calls, version, called) = found.ok_or_else(|| {
        format!("{} has no complete ncclNetPlugin_v12, _v11, _v10, _v9 or _v8, and is not used", shown(name))
    })?;
    let functions = Arc::new(Functions { calls, version, called });
    Ok(Arc::new(Plugin { functions, begun: OnceLock::new(), _library: library }))
}

fn shown(name: &str) -> String {
    if name.is_empty() { "libnccl-net.so".to_string() } else { format!("the network plugin {name}") }
}

/// What a plugin can do, and who it is.
struct Functions {
    calls: Calls,
    version: u32,
    called: String,
}

impl Functions {
    /// The error of a function.
    fn failed(&self, function: &str, device: &str, code: c_int) -> Error {
        let name = usize::try_from(code).ok().and_then(|code| CODES.get(code)).unwrap_or(&"no code of NCCL");
        let by = if device.is_empty() { String::new() } else { format!(" on device {device}") };
        let kind = if code == REMOTE { ErrorKind::Remote } else { ErrorKind::System };
        Error::new(
            kind,
            format!(
                "{function}() of the network plugin {} (v{}) failed{by} with code {code} ({name}); see what it writes with NCCL_DEBUG=INFO, or go \
                 without it (NCCL_NET_PLUGIN=none)",
                self.called, self.version
            ),
        )
    }
}

/// A plugin that is loaded, for as long as the process lives.
struct Plugin {
    functions: Arc<Functions>,
    /// For versions without contexts: whether it could begin, which it does once in a process.
    begun: OnceLock<Outcome>,
    _library: Library,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Plugin({}, v{})", self.functions.called, self.functions.version)
    }
}

impl NetworkPlugin for Plugin {
    fn name(&self) -> &str {
        &self.functions.called
    }

    fn version(&self) -> u32 {
        self.functions.version
    }

    fn begin(&self, communicator: u64) -> Result<Arc<dyn Session>> {
        let functions = self.functions.clone();
        let calls = functions.calls;
        let failed = |code| functions.failed("init", "", code);
        let context = if calls.has_contexts() {
            calls.init(communicator).map_err(failed)?
        } else {
            (*self.begun.get_or_init(|| calls.init(communicator).map(|_| ()))).map_err(failed)?;
            std::ptr::null_mut()
        };
        let mut inner =
            Inner { functions: functions.clone(), context, devices: Vec::new(), turn: Mutex::new(()) };
        let count = calls.devices().map_err(|code| functions.failed("devices", "", code))?;
        for device in 0..count.min(MOST_DEVICES) {
            let told = calls.properties(device);
            let failed = |code| functions.failed("getProperties", &device.to_string(), code);
            inner.devices.push(told.map_err(failed)?);
        }
        Ok(Arc::new(Used(Arc::new(inner))))
    }
}

/// A plugin in use.
#[derive(Debug)]
struct Used(Arc<Inner>);

struct Inner {
    functions: Arc<Functions>,
    context: Opaque,
    devices: Vec<Properties>,
    /// Held for each call: of one communicator, threads of the program and of the library may have calls at once, which not all plugins bear.
    turn: Mutex<()>,
}

// SAFETY: what a plugin gave is only handed back to it, by one thread at a time.
unsafe impl Send for Inner {}
// SAFETY: as above: `turn` is held for each call.
unsafe impl Sync for Inner {}

impl fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (v{})", self.functions.called, self.functions.version)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let calls = self.functions.calls;
        if calls.has_contexts() {
            self.say_failed("finalize", None, calls.finalize(self.context));
        }
    }
}

impl Inner {
    /// Makes a call when no other is under way.
    fn call<T>(&self, function: &str, device: usize, call: impl FnOnce(&Calls) -> Outcome<T>) -> Result<T> {
        let outcome = {
            let _turn = self.turn.lock();
            call(&self.functions.calls)
        };
        outcome.map_err(|code| self.failed(function, Some(device), code))
    }

    fn failed(&self, function: &str, device: Option<usize>, code: c_int) -> Error {
        let device = device.and_then(|device| self.devices.get(device));
        self.functions.failed(function, device.map_or("", |device| &device.name), code)
    }

    /// What fails at an end has nobody to hear of it but the log.
    fn say_failed(&self, function: &str, device: Option<usize>, outcome: Outcome) {
        if let Err(code) = outcome {
            telemetry::warn(self.failed(function, device, code).text());
        }
    }

    fn close(&self, function: &str, device: usize, call: impl FnOnce(&Calls) -> Outcome) {
        let outcome = {
            let _turn = self.turn.lock();
            call(&self.functions.calls)
        };
        self.say_failed(function, Some(device), outcome);
    }
}

impl Session for Used {
    fn devices(&self) -> &[Properties] {
        &self.0.devices
    }

    fn listen(&self, device: usize) -> Result<(Box<Handle>, Box<dyn Listener>)> {
        let mut handle = Box::new([0; HANDLE_BYTES]);
        let context = self.0.context;
        let made =
            self.0.call("listen", device, |calls| calls.listen(context, device as c_int, &mut handle))?;
        Ok((handle, Box::new(Listening { inner: self.0.clone(), device, comm: made })))
    }

    fn connect(&self, device: usize, handle: &mut Handle) -> Result<Option<Box<dyn Outlet>>> {
        let context = self.0.context;
        let made = self.0.call("connect", device, |calls| calls.connect(context, device as c_int, handle))?;
        let comm = || Comm { inner: self.0.clone(), device, comm: made, is_send: true };
        Ok((!made.is_null()).then(|| Box::new(comm()) as Box<dyn Outlet>))
    }
}

struct Listening {
    inner: Arc<Inner>,
    device: usize,
    comm: Opaque,
}

// SAFETY: as for `Inner`.
unsafe impl Send for Listening {}

impl fmt::Debug for Listening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl Listener for Listening {
    fn accept(&mut self) -> Result<Option<Box<dyn Inlet>>> {
        let made = self.inner.call("accept", self.device, |calls| calls.accept(self.comm))?;
        let comm = || Comm { inner: self.inner.clone(), device: self.device, comm: made, is_send: false };
        Ok((!made.is_null()).then(|| Box::new(comm()) as Box<dyn Inlet>))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.inner.close("closeListen", self.device, |calls| calls.close_listen(self.comm));
    }
}

/// One direction.
struct Comm {
    inner: Arc<Inner>,
    device: usize,
    comm: Opaque,
    is_send: bool,
}

// SAFETY: as for `Inner`.
unsafe impl Send for Comm {}

impl fmt::Debug for Comm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl Comm {
    fn request(
        &self,
        function: &str,
        call: impl FnOnce(&Calls) -> Outcome<Opaque>,
    ) -> Result<Option<Request>> {
        let request = self.inner.call(function, self.device, call)?;
        Ok((!request.is_null()).then_some(Request(request as usize)))
    }
}

impl Communication for Comm {
    fn register(&mut self, start: usize, bytes: usize) -> Result<Registration> {
        let made = self.inner.call("regMr", self.device, |calls| calls.register(self.comm, start, bytes))?;
        Ok(Registration(made as usize))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let given = registration.0 as Opaque;
        self.inner.call("deregMr", self.device, |calls| calls.deregister(self.comm, given))
    }

    fn test(&mut self, request: Request, sizes: &mut [i32]) -> Result<bool> {
        let request = request.0 as Opaque;
        self.inner.call("test", self.device, |calls| calls.test(request, sizes))
    }
}

impl Outlet for Comm {
    fn send(&mut self, piece: Piece, registration: Registration) -> Result<Option<Request>> {
        self.request("isend", |calls| calls.send(self.comm, piece, registration.0 as Opaque))
    }
}

impl Inlet for Comm {
    fn receive(&mut self, pieces: &[Piece], registration: Registration) -> Result<Option<Request>> {
        self.request("irecv", |calls| calls.receive(self.comm, pieces, registration.0 as Opaque))
    }

    fn flush(&mut self, pieces: &[Piece], registration: Registration) -> Result<Option<Request>> {
        self.request("iflush", |calls| calls.flush(self.comm, pieces, registration.0 as Opaque))
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.is_send {
            self.inner.close("closeSend", self.device, |calls| calls.close_send(self.comm));
        } else {
            self.inner.close("closeRecv", self.device, |calls| calls.close_receive(self.comm));
        }
    }
}
