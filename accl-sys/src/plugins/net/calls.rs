//! The functions of one network plugin, with the differences between versions taken out.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use accl_core::driver::network_plugin::{HANDLE_BYTES, Piece, Properties};
use libloading::os::unix::Library;

use super::tables::*;
use crate::plugins::logger::logger;

/// NCCL's number of host memory, for registrations, and the bit of it in what a device supports.
const POINTER_HOST: c_int = 1;
/// A device whose data needs no code on an accelerator.
const DEVICE_HOST: c_int = 0;
/// Most pieces of a request.
pub(super) const MOST_PIECES: usize = 32;
/// Old versions say no limit: this is theirs.
const OLD_MOST_BYTES: usize = 1 << 30;

/// A plugin's code, if it is not 0.
pub(super) type Outcome<T = ()> = Result<T, c_int>;

#[derive(Clone, Copy)]
enum Table {
    Version12(Table11),
    Version11(Table11),
    Version10(Table10),
    Version9(Table9),
    Version8(Table8),
}

/// What is the same in all versions, and complete.
#[derive(Clone, Copy)]
struct Common {
    devices: Devices,
    get_properties: GetProperties,
    accept: Accept,
    register: Register,
    deregister: OnComm,
    flush: Flush,
    test: Test,
    close_send: Close,
    close_receive: Close,
    close_listen: Close,
}

/// The functions.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    table: Table,
    common: Common,
}

// SAFETY: functions, which any thread may call.
unsafe impl Send for Calls {}
// SAFETY: as above.
unsafe impl Sync for Calls {}

fn checked(code: c_int) -> Outcome {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// A name that a plugin has given.
fn text(name: *const c_char) -> String {
    if name.is_null() {
        return "?".to_string();
    }
    // SAFETY: the interface has it end with a zero byte, and stay.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The library's table of this name.
///
/// # Safety
/// A symbol of this name is a `T`, in a library that stays loaded.
unsafe fn find<T: Copy>(library: &Library, name: &CStr) -> Option<T> {
    // SAFETY: promised.
    let table = unsafe { library.get::<*const T>(name.to_bytes_with_nul()) }.ok()?;
    // SAFETY: promised, and the library is loaded.
    Some(unsafe { table.read() })
}

impl<I, L, C, S, R> super::tables::Table<I, L, C, S, R> {
    /// What all versions need, if nothing of it is missing.
    fn common(&self) -> Option<Common> {
        let differing = self.init.is_some()
            && self.listen.is_some()
            && self.connect.is_some()
            && self.send.is_some()
            && self.receive.is_some();
        differing.then_some(())?;
        Some(Common {
            devices: self.devices?,
            get_properties: self.get_properties?,
            accept: self.accept?,
            register: self.register?,
            deregister: self.deregister?,
            flush: self.flush?,
            test: self.test?,
            close_send: self.close_send?,
            close_receive: self.close_receive?,
            close_listen: self.close_listen?,
        })
    }
}

impl Calls {
    /// The newest version that a library has, and what it calls itself; none if it has none that is complete.
    ///
    /// # Safety
    /// The library stays loaded, and its symbols are what they are named.
    pub(super) unsafe fn of(library: &Library) -> Option<(Self, u32, String)> {
        let made = |table, common: Option<Common>, version, name| {
            common.map(|common| (Self { table, common }, version, text(name)))
        };
        // SAFETY: promised; each symbol has the layout of its version.
        unsafe {
            if let Some(table) = find::<Table11>(library, c"ncclNetPlugin_v12") {
                return made(Table::Version12(table), table.table.common(), 12, table.table.name);
            }
            if let Some(table) = find::<Table11>(library, c"ncclNetPlugin_v11") {
                return made(Table::Version11(table), table.table.common(), 11, table.table.name);
            }
            if let Some(table) = find::<Table10>(library, c"ncclNetPlugin_v10") {
                return made(Table::Version10(table), table.common(), 10, table.name);
            }
            if let Some(table) = find::<Table9>(library, c"ncclNetPlugin_v9") {
                return made(Table::Version9(table), table.common(), 9, table.name);
            }
            let table = find::<Table8>(library, c"ncclNetPlugin_v8")?;
            made(Table::Version8(table), table.common(), 8, table.name)
        }
    }

    /// True if each communicator has a context of its own, which begins with its `init` and ends with `finalize`.
    pub(super) fn has_contexts(&self) -> bool {
        matches!(self.table, Table::Version12(_) | Table::Version11(_))
    }

    /// The context; NULL where there are none, and this is for the whole process.
    pub(super) fn init(&self, communicator: u64) -> Outcome<Opaque> {
        let (mut context, mut config) = (null_mut(), Config { traffic_class: -1 });
        // SAFETY: functions of the plugin, called as their versions say; what they fill in stays for the call.
        let code = unsafe {
            match self.table {
                Table::Version12(Table11 { table, .. }) | Table::Version11(Table11 { table, .. }) => table
                    .init
                    .map(|init| init(&raw mut context, communicator, &raw mut config, logger(), null_mut())),
                Table::Version10(table) => table.init.map(|init| init(logger(), null_mut())),
                Table::Version9(table) => table.init.map(|init| init(logger())),
                Table::Version8(table) => table.init.map(|init| init(logger())),
            }
        };
        checked(code.unwrap_or(-1)).map(|()| context)
    }

    pub(super) fn finalize(&self, context: Opaque) -> Outcome {
        match self.table {
            Table::Version12(Table11 { finalize: Some(finalize), .. })
            | Table::Version11(Table11 { finalize: Some(finalize), .. }) => {
                // SAFETY: the plugin's own context, which it hears of for the last time.
                checked(unsafe { finalize(context) })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn devices(&self) -> Outcome<c_int> {
        let mut count = 0;
        // SAFETY: it fills in a number.
        checked(unsafe { (self.common.devices)(&raw mut count) }).map(|()| count)
    }

    pub(super) fn properties(&self, device: c_int) -> Outcome<Properties> {
        match self.table {
            Table::Version12(_) => {
                let told: Properties12 = self.ask(device)?;
                Ok(read(told.name, told.pointer_support, told.device_type, told.most_receives, told.speed)
                    .with(told.forces_flush, told.most_bytes))
            }
            Table::Version11(_) => {
                let told: Properties11 = self.ask(device)?;
                Ok(read(told.name, told.pointer_support, told.device_type, told.most_receives, told.speed)
                    .with(told.forces_flush, told.most_bytes))
            }
            Table::Version10(_) | Table::Version9(_) => {
                let told: Properties9 = self.ask(device)?;
                Ok(read(told.name, told.pointer_support, told.device_type, told.most_receives, told.speed)
                    .with(told.forces_flush, told.most_bytes))
            }
            Table::Version8(_) => {
                let told: Properties8 = self.ask(device)?;
                Ok(read(told.name, told.pointer_support, told.device_type, told.most_receives, told.speed)
                    .with(0, OLD_MOST_BYTES))
            }
        }
    }

    /// What the plugin says of a device, in its version's struct.
    fn ask<T: Plain>(&self, device: c_int) -> Outcome<T> {
        let mut told = T::zeroed();
        // SAFETY: the struct is that of the plugin's version.
        checked(unsafe { (self.common.get_properties)(device, (&raw mut told).cast()) }).map(|()| told)
    }

    pub(super) fn listen(
        &self,
        context: Opaque,
        device: c_int,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Outcome<Opaque> {
        let mut made = null_mut();
        let handle = handle.as_mut_ptr().cast();
        // SAFETY: as in `init`; the handle has its full length.
        let code = unsafe {
            match self.table {
                Table::Version12(Table11 { table, .. }) | Table::Version11(Table11 { table, .. }) => {
                    table.listen.map(|listen| listen(context, device, handle, &raw mut made))
                }
                Table::Version10(table) => table.listen.map(|listen| listen(device, handle, &raw mut made)),
                Table::Version9(table) => table.listen.map(|listen| listen(device, handle, &raw mut made)),
                Table::Version8(table) => table.listen.map(|listen| listen(device, handle, &raw mut made)),
            }
        };
        checked(code.unwrap_or(-1)).map(|()| made)
    }

    /// NULL as long as there is no connection.
    pub(super) fn connect(
        &self,
        context: Opaque,
        device: c_int,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Outcome<Opaque> {
        let (mut made, mut on_device, mut config) = (null_mut(), null_mut(), Config { traffic_class: -1 });
        let (handle, made_at, device_at) = (handle.as_mut_ptr().cast(), &raw mut made, &raw mut on_device);
        // SAFETY: as in `listen`.
        let code = unsafe {
            match self.table {
                Table::Version12(Table11 { table, .. }) | Table::Version11(Table11 { table, .. }) => {
                    table.connect.map(|connect| connect(context, device, handle, made_at, device_at))
                }
                Table::Version10(table) => {
                    table.connect.map(|connect| connect(device, &raw mut config, handle, made_at, device_at))
                }
                Table::Version9(table) => {
                    table.connect.map(|connect| connect(device, handle, made_at, device_at))
                }
                Table::Version8(table) => {
                    table.connect.map(|connect| connect(device, handle, made_at, device_at))
                }
            }
        };
        checked(code.unwrap_or(-1)).map(|()| made)
    }

    /// NULL as long as nobody has connected.
    pub(super) fn accept(&self, listener: Opaque) -> Outcome<Opaque> {
        let (mut made, mut on_device) = (null_mut(), null_mut());
        // SAFETY: the plugin's own listener; it fills in what it makes.
        let code = unsafe { (self.common.accept)(listener, &raw mut made, &raw mut on_device) };
        checked(code).map(|()| made)
    }

    pub(super) fn register(&self, comm: Opaque, start: usize, bytes: usize) -> Outcome<Opaque> {
        let mut made = null_mut();
        // SAFETY: the plugin's own communication, and memory that its caller keeps.
        let code =
            unsafe { (self.common.register)(comm, start as Opaque, bytes, POINTER_HOST, &raw mut made) };
        checked(code).map(|()| made)
    }

    pub(super) fn deregister(&self, comm: Opaque, registration: Opaque) -> Outcome {
        // SAFETY: what the plugin has given, for the last time.
        checked(unsafe { (self.common.deregister)(comm, registration) })
    }

    /// NULL if that cannot begin now.
    pub(super) fn send(&self, comm: Opaque, piece: Piece, registration: Opaque) -> Outcome<Opaque> {
        let mut request = null_mut();
        let (start, out) = (piece.start as Opaque, &raw mut request);
        // SAFETY: memory that is registered with this communication, and stays until the request has ended.
        let code = unsafe {
            match self.table {
                Table::Version12(Table11 { table, .. }) | Table::Version11(Table11 { table, .. }) => table
                    .send
                    .map(|send| send(comm, start, piece.bytes, piece.tag, registration, null_mut(), out)),
                Table::Version10(table) => table
                    .send
                    .map(|send| send(comm, start, piece.bytes, piece.tag, registration, null_mut(), out)),
                Table::Version9(table) => {
                    table.send.map(|send| send(comm, start, piece.bytes, piece.tag, registration, out))
                }
                Table::Version8(table) => {
                    let bytes = int(piece.bytes);
                    table.send.map(|send| send(comm, start, bytes, piece.tag, registration, out))
                }
            }
        };
        checked(code.unwrap_or(-1)).map(|()| request)
    }

    /// NULL if that cannot begin now.
    pub(super) fn receive(&self, comm: Opaque, pieces: &[Piece], registration: Opaque) -> Outcome<Opaque> {
        let mut request = null_mut();
        let mut lists = Lists::of(pieces, registration);
        let (count, out) = (int(pieces.len()), &raw mut request);
        let (data, tags, registrations, profiles) = lists.pointers();
        let mut sizes = [0usize; MOST_PIECES];
        sizes.iter_mut().zip(pieces).for_each(|(size, piece)| *size = piece.bytes);
        let (sizes, short) = (sizes.as_mut_ptr(), lists.sizes.as_mut_ptr());
        // SAFETY: as in `send`; the lists have as many entries as are said.
        let code = unsafe {
            match self.table {
                Table::Version12(Table11 { table, .. }) | Table::Version11(Table11 { table, .. }) => table
                    .receive
                    .map(|receive| receive(comm, count, data, sizes, tags, registrations, profiles, out)),
                Table::Version10(table) => table
                    .receive
                    .map(|receive| receive(comm, count, data, sizes, tags, registrations, profiles, out)),
                Table::Version9(table) => {
                    table.receive.map(|receive| receive(comm, count, data, sizes, tags, registrations, out))
                }
                Table::Version8(table) => {
                    table.receive.map(|receive| receive(comm, count, data, short, tags, registrations, out))
                }
            }
        };
        checked(code.unwrap_or(-1)).map(|()| request)
    }

    /// NULL if there is nothing to wait for.
    pub(super) fn flush(&self, comm: Opaque, pieces: &[Piece], registration: Opaque) -> Outcome<Opaque> {
        let mut request = null_mut();
        let mut lists = Lists::of(pieces, registration);
        let (data, _, registrations, _) = lists.pointers();
        let sizes = lists.sizes.as_mut_ptr();
        // SAFETY: as in `receive`.
        let code = unsafe {
            (self.common.flush)(comm, int(pieces.len()), data, sizes, registrations, &raw mut request)
        };
        checked(code).map(|()| request)
    }

    /// True once the request has ended.
    pub(super) fn test(&self, request: Opaque, sizes: &mut [c_int]) -> Outcome<bool> {
        let mut done = 0;
        // SAFETY: a request that has not been seen to end; there is room for as many sizes as it has pieces.
        let code = unsafe { (self.common.test)(request, &raw mut done, sizes.as_mut_ptr()) };
        checked(code).map(|()| done != 0)
    }

    pub(super) fn close_send(&self, comm: Opaque) -> Outcome {
        // SAFETY: what the plugin has made, which it hears of for the last time.
        checked(unsafe { (self.common.close_send)(comm) })
    }

    pub(super) fn close_receive(&self, comm: Opaque) -> Outcome {
        // SAFETY: as in `close_send`.
        checked(unsafe { (self.common.close_receive)(comm) })
    }

    pub(super) fn close_listen(&self, comm: Opaque) -> Outcome {
        // SAFETY: as in `close_send`.
        checked(unsafe { (self.common.close_listen)(comm) })
    }
}

/// Sizes are those of segments, which are far below.
fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// What a request for several pieces is told of them.
struct Lists {
    data: [Opaque; MOST_PIECES],
    sizes: [c_int; MOST_PIECES],
    tags: [c_int; MOST_PIECES],
    registrations: [Opaque; MOST_PIECES],
    profiles: [Opaque; MOST_PIECES],
}

impl Lists {
    fn of(pieces: &[Piece], registration: Opaque) -> Self {
        let mut lists = Self {
            data: [null_mut(); MOST_PIECES],
            sizes: [0; MOST_PIECES],
            tags: [0; MOST_PIECES],
            registrations: [registration; MOST_PIECES],
            profiles: [null_mut(); MOST_PIECES],
        };
        for (at, piece) in pieces.iter().take(MOST_PIECES).enumerate() {
            (lists.data[at], lists.sizes[at], lists.tags[at]) =
                (piece.start as Opaque, int(piece.bytes), piece.tag);
        }
        lists
    }

    fn pointers(&mut self) -> (*mut Opaque, *mut c_int, *mut Opaque, *mut Opaque) {
        (
            self.data.as_mut_ptr(),
            self.tags.as_mut_ptr(),
            self.registrations.as_mut_ptr(),
            self.profiles.as_mut_ptr(),
        )
    }
}

/// What a device is like, from what all versions tell.
fn read(name: *mut c_char, pointers: c_int, kind: c_int, most_receives: c_int, speed: c_int) -> Properties {
    Properties {
        name: text(name),
        reaches_host: pointers & POINTER_HOST != 0,
        needs_device_code: kind != DEVICE_HOST,
        forces_flush: false,
        most_receives: usize::try_from(most_receives).unwrap_or(1).max(1),
        most_bytes: 0,
        speed_mbps: u32::try_from(speed).unwrap_or(0),
    }
}

trait With {
    fn with(self, forces_flush: c_int, most_bytes: usize) -> Self;
}

impl With for Properties {
    /// With what came later; 0 bytes is what a plugin says that does not know of the limit.
    fn with(self, forces_flush: c_int, most_bytes: usize) -> Self {
        let most_bytes = if most_bytes == 0 { OLD_MOST_BYTES } else { most_bytes };
        Self { forces_flush: forces_flush != 0, most_bytes, ..self }
    }
}

/// A struct of numbers and pointers, which may be all zero.
trait Plain: Copy {
    fn zeroed() -> Self;
}

impl<const PARTS: usize, END: Copy> Plain for super::tables::Properties<PARTS, END> {
    fn zeroed() -> Self {
        // SAFETY: numbers and pointers: zeros are values of theirs.
        unsafe { std::mem::zeroed() }
    }
}

impl Plain for Properties8 {
    fn zeroed() -> Self {
        // SAFETY: as above.
        unsafe { std::mem::zeroed() }
    }
}
