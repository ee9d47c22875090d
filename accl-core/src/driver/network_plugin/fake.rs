//! A plugin for tests of this crate: communications within the process, which refuse requests now and then, end them late, and fail when they are
//! told to. It counts what it is asked for, and notes what is not as it should be.
//!
//! As with real ones, a receive of several messages ends when all of them have come, and so do their sends; messages of one request are told
//! apart by their tags; and what is to be flushed is not there before.
//!
//! # Safety
//! Copies stay within memory that was registered with the same fake, and whoever registers keeps it until the registration is given back.
#![allow(unsafe_code)]

use super::{
    Communication, Handle, Inlet, Listener, MOST_REQUESTS, Outlet, Piece, Properties, Registration, Request,
    Session,
};
use crate::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How often a connection is not there yet.
const LATE: u8 = 3;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) opened: usize,
    pub(crate) closed: usize,
    pub(crate) registered: usize,
    pub(crate) deregistered: usize,
    pub(crate) refused: usize,
    pub(crate) bytes: usize,
    pub(crate) groups: usize,
    pub(crate) flushes: usize,
}

/// The plugin, and its network.
#[derive(Clone, Debug)]
pub(crate) struct Fake(Arc<World>);

#[derive(Debug)]
struct World {
    devices: Vec<Properties>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    random: u64,
    next: usize,
    wires: BTreeMap<usize, Wire>,
    regions: BTreeMap<usize, (usize, usize)>,
    counts: Counts,
    /// The function that fails, after so many calls of it.
    fault: Option<(&'static str, u32)>,
    /// Sizes are those of other messages.
    lies: bool,
    /// No request ends any more.
    hangs: bool,
    wrong: Vec<String>,
}

/// One communication, between both of its ends.
#[derive(Debug, Default)]
struct Wire {
    knocks: u8,
    groups: VecDeque<Group>,
    requests: BTreeMap<usize, Task>,
    /// What has come and is to be flushed.
    hidden: VecDeque<Vec<(usize, Vec<u8>)>>,
}

#[derive(Debug)]
struct Group {
    request: usize,
    pieces: Vec<Piece>,
    /// By each piece: what has come, and the request of its send.
    came: Vec<Option<(Vec<u8>, usize)>>,
}

/// A request that has not been seen to end.
#[derive(Debug, Default)]
struct Task {
    is_ready: bool,
    is_send: bool,
    delay: u64,
    sizes: Vec<i32>,
    /// What a flush makes visible.
    hidden: Vec<(usize, Vec<u8>)>,
}

fn end(is_send: bool) -> &'static str {
    if is_send { "send" } else { "receive" }
}

impl Fake {
    pub(crate) fn new(seed: u64, most_receives: usize, forces_flush: bool) -> Self {
        let device = |index: usize| Properties {
            name: format!("fake{index}"),
            reaches_host: true,
            needs_device_code: false,
            forces_flush,
            most_receives,
            most_bytes: 1 << 30,
            speed_mbps: 1000,
        };
        Self::with((0..2).map(device).collect(), seed)
    }

    pub(crate) fn of(devices: Vec<Properties>) -> Self {
        Self::with(devices, 1)
    }

    fn with(devices: Vec<Properties>, seed: u64) -> Self {
        let state = State { random: seed | 1, ..State::default() };
        Self(Arc::new(World { devices, state: Mutex::new(state) }))
    }

    pub(crate) fn fail(&self, function: &'static str, after: u32) {
        self.0.state.lock().fault = Some((function, after));
    }

    pub(crate) fn lie(&self) {
        self.0.state.lock().lies = true;
    }

    pub(crate) fn hang(&self) {
        self.0.state.lock().hangs = true;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.state.lock().counts
    }

    /// What was not as it should be, so far.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.0.state.lock().wrong.clone()
    }

    pub(crate) fn session(&self) -> Arc<dyn Session> {
        Arc::new(self.clone())
    }
}

impl State {
    fn call(&mut self, function: &'static str) -> Result<()> {
        match &mut self.fault {
            Some((named, 0)) if *named == function => {
                Err(Error::new(ErrorKind::System, format!("the fake fails in {function}")))
            }
            Some((named, after)) if *named == function => {
                *after -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// True if a request is refused this time.
    fn refuses(&mut self, wire: usize, is_send: bool) -> bool {
        let under_way = self.wires[&wire].requests.values().filter(|task| task.is_send == is_send).count();
        if under_way > MOST_REQUESTS {
            self.wrong.push(format!("{under_way} requests to {}", end(is_send)));
        }
        let refuses = self.random(4) == 0;
        self.counts.refused += usize::from(refuses);
        refuses
    }

    fn check(&mut self, piece: &Piece, registration: Registration) {
        let region = self.regions.get(&registration.0);
        let (start, end) = (piece.start, piece.start + piece.bytes);
        if !region.is_some_and(|(from, bytes)| start >= *from && end <= from + bytes) {
            self.wrong.push(format!("{piece:?} is not within {region:?}"));
        }
    }

    fn close(&mut self, wire: usize, is_send: bool, own: usize) {
        self.counts.closed += 1;
        let open = self
            .wires
            .get(&wire)
            .map_or(0, |wire| wire.requests.values().filter(|task| task.is_send == is_send).count());
        if open > 0 {
            self.wrong.push(format!("closed with {open} requests to {}", end(is_send)));
        }
        if own > 0 {
            self.wrong.push(format!("closed with {own} registrations"));
        }
    }
}

fn copy(from: &[u8], to: usize) {
    // SAFETY: the place was checked to be within a registration, and holds as much (see the head of this file).
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
}

impl Session for Fake {
    fn devices(&self) -> &[Properties] {
        &self.0.devices
    }

    fn listen(&self, _device: usize) -> Result<(Box<Handle>, Box<dyn Listener>)> {
        let mut state = self.0.state.lock();
        state.call("listen")?;
        let wire = state.number();
        state.wires.insert(wire, Wire::default());
        state.counts.opened += 1;
        let mut handle: Box<Handle> = Box::new([0; _]);
        handle[..8].copy_from_slice(&wire.to_le_bytes());
        Ok((handle, Box::new(Listening { world: self.0.clone(), wire, asked: 0 })))
    }

    fn connect(&self, _device: usize, handle: &mut Handle) -> Result<Option<Box<dyn Outlet>>> {
        let mut state = self.0.state.lock();
        state.call("connect")?;
        // How far it is stands in the handle, as with some plugins.
        handle[100] += 1;
        if handle[100] <= LATE {
            return Ok(None);
        }
        let wire = handle.first_chunk().map_or(0, |number| usize::from_le_bytes(*number));
        let Some(found) = state.wires.get_mut(&wire) else {
            return Err(Error::new(ErrorKind::System, "nobody listens there"));
        };
        found.knocks += 1;
        state.counts.opened += 1;
        Ok(Some(Box::new(End { world: self.0.clone(), wire, is_send: true, registrations: 0 })))
    }
}

#[derive(Debug)]
struct Listening {
    world: Arc<World>,
    wire: usize,
    asked: u8,
}

impl Listener for Listening {
    fn accept(&mut self) -> Result<Option<Box<dyn Inlet>>> {
        let mut state = self.world.state.lock();
        state.call("accept")?;
        self.asked = self.asked.saturating_add(1);
        if self.asked <= LATE || state.wires[&self.wire].knocks == 0 {
            return Ok(None);
        }
        state.counts.opened += 1;
        let end = End { world: self.world.clone(), wire: self.wire, is_send: false, registrations: 0 };
        Ok(Some(Box::new(end)))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.world.state.lock().counts.closed += 1;
    }
}

#[derive(Debug)]
struct End {
    world: Arc<World>,
    wire: usize,
    is_send: bool,
    registrations: usize,
}

impl Drop for End {
    fn drop(&mut self) {
        self.world.state.lock().close(self.wire, self.is_send, self.registrations);
    }
}

impl Communication for End {
    fn register(&mut self, start: usize, bytes: usize) -> Result<Registration> {
        let mut state = self.world.state.lock();
        state.call("register")?;
        self.registrations += 1;
        state.counts.registered += 1;
        let number = state.number();
        state.regions.insert(number, (start, bytes));
        Ok(Registration(number))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let mut state = self.world.state.lock();
        self.registrations -= 1;
        state.counts.deregistered += 1;
        if state.regions.remove(&registration.0).is_none() {
            state.wrong.push("a registration was given back twice".to_string());
        }
        Ok(())
    }

    fn test(&mut self, request: Request, sizes: &mut [i32]) -> Result<bool> {
        let mut state = self.world.state.lock();
        state.call("test")?;
        let (lies, hangs) = (state.lies, state.hangs);
        let Some(task) = state.wires.get_mut(&self.wire).and_then(|wire| wire.requests.get_mut(&request.0))
        else {
            state.wrong.push("a request was asked for that had ended".to_string());
            return Ok(false);
        };
        if !task.is_ready || hangs {
            return Ok(false);
        }
        if task.delay > 0 {
            task.delay -= 1;
            return Ok(false);
        }
        let wire = state.wires.get_mut(&self.wire);
        let Some(task) = wire.and_then(|wire| wire.requests.remove(&request.0)) else { return Ok(false) };
        for (to, bytes) in &task.hidden {
            copy(bytes, *to);
        }
        for (place, size) in sizes.iter_mut().zip(&task.sizes) {
            *place = if lies { size + 1 } else { *size };
        }
        Ok(true)
    }
}

impl Outlet for End {
    fn send(&mut self, piece: Piece, registration: Registration) -> Result<Option<Request>> {
        let mut state = self.world.state.lock();
        state.call("send")?;
        state.check(&piece, registration);
        if state.refuses(self.wire, true) {
            return Ok(None);
        }
        let (number, delay) = (state.number(), state.random(4));
        let hides = self.world.devices[0].forces_flush;
        let Some(wire) = state.wires.get_mut(&self.wire) else { return Ok(None) };
        let Some(group) = wire.groups.front_mut() else { return Ok(None) };
        let place = group
            .pieces
            .iter()
            .zip(&group.came)
            .position(|(one, came)| came.is_none() && one.tag == piece.tag && one.bytes >= piece.bytes);
        let Some(place) = place else {
            state.wrong.push(format!("nobody receives {piece:?}"));
            return Ok(None);
        };
        // SAFETY: the piece was checked to be within a registration (see the head of this file).
        let bytes = unsafe { std::slice::from_raw_parts(piece.start as *const u8, piece.bytes) }.to_vec();
        group.came[place] = Some((bytes, number));
        let task = Task { is_send: true, delay, sizes: vec![piece.bytes as i32], ..Task::default() };
        wire.requests.insert(number, task);
        if group.came.iter().all(Option::is_some)
            && let Some(group) = wire.groups.pop_front()
        {
            let mut sizes = Vec::new();
            let mut hidden = Vec::new();
            for (piece, came) in group.pieces.iter().zip(group.came) {
                let (bytes, send) = came.unwrap_or_default();
                sizes.push(bytes.len() as i32);
                if let Some(task) = wire.requests.get_mut(&send) {
                    task.is_ready = true;
                }
                hidden.push((piece.start, bytes));
            }
            if let Some(task) = wire.requests.get_mut(&group.request) {
                (task.is_ready, task.sizes) = (true, sizes);
                if !hides {
                    task.hidden = std::mem::take(&mut hidden);
                }
            }
            // It stays hidden until a flush asks for it.
            if hides {
                wire.hidden.push_back(hidden);
            }
        }
        state.counts.bytes += piece.bytes;
        Ok(Some(Request(number)))
    }
}

impl Inlet for End {
    fn receive(&mut self, pieces: &[Piece], registration: Registration) -> Result<Option<Request>> {
        let mut state = self.world.state.lock();
        state.call("receive")?;
        pieces.iter().for_each(|piece| state.check(piece, registration));
        if state.refuses(self.wire, false) {
            return Ok(None);
        }
        let (number, delay) = (state.number(), state.random(4));
        state.counts.groups += usize::from(pieces.len() > 1);
        if pieces.len() > self.world.devices[0].most_receives {
            state.wrong.push(format!("{} receives in one request", pieces.len()));
        }
        let came = pieces.iter().map(|_| None).collect();
        if let Some(wire) = state.wires.get_mut(&self.wire) {
            wire.groups.push_back(Group { request: number, pieces: pieces.to_vec(), came });
            wire.requests.insert(number, Task { delay, ..Task::default() });
        }
        Ok(Some(Request(number)))
    }

    fn flush(&mut self, pieces: &[Piece], registration: Registration) -> Result<Option<Request>> {
        let mut state = self.world.state.lock();
        state.call("flush")?;
        pieces.iter().for_each(|piece| state.check(piece, registration));
        state.counts.flushes += 1;
        let (number, delay) = (state.number(), state.random(3));
        let Some(wire) = state.wires.get_mut(&self.wire) else { return Ok(None) };
        let is_it = |hidden: &Vec<(usize, Vec<u8>)>| {
            hidden.len() == pieces.len() && hidden.iter().zip(pieces).all(|(one, piece)| one.0 == piece.start)
        };
        let Some(hidden) = wire.hidden.pop_front().filter(is_it) else {
            state.wrong.push("a flush of what has not come".to_string());
            return Ok(None);
        };
        wire.requests.insert(number, Task { is_ready: true, delay, hidden, ..Task::default() });
        Ok(Some(Request(number)))
    }
}
