//! The life of one rank: meet, make the communicator, go through all cases, leave.

use std::sync::Arc;

use crate::args::Settings;
use crate::buffer::{Buffer, GUARD_BYTES};
use crate::datatype::{DataType, Operator};
use crate::failure::{Exit, Failure, Outcome};
use crate::library::{Comm, Config, Library, Stream, UniqueId};
use crate::link::Link;
use crate::measure::{Case, Measure};
use crate::message::{CaseReport, Memory, Opened, ToHub};
use crate::page::Page;
use crate::progress::Progress;
use crate::test::Test;
use crate::{machine, sizes};

/// Where a rank sits: its place among the others, and the ways to them.
#[allow(missing_debug_implementations, reason = "holds a link")]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// How many ranks, this one included, take memory from this host.
    pub(crate) neighbours: usize,
    pub(crate) link: Arc<Link>,
    /// None when ranks were not started by us: then barriers go over the link.
    pub(crate) page: Option<Arc<Page>>,
    pub(crate) progress: Arc<Progress>,
}

impl Seat {
    pub(crate) fn barrier(&self) -> Outcome<()> {
        match &self.page {
            Some(page) => page.barrier(),
            None => drop(self.link.share(String::new())?),
        }
        Ok(())
    }
}

/// Runs the rank and reports how it went; the hub decides what follows.
pub(crate) fn run(seat: &Seat, settings: &Settings, library: &Library) {
    match live(seat, settings, library) {
        Ok(()) => seat.link.send(&ToHub::Done),
        // After an abort the watchdog has said all, and the call's own error is but its echo.
        Err(_) if seat.progress.aborted() => {}
        Err(failure) => {
            let text = format!("rank {}: {failure}", seat.rank);
            seat.link.send(&ToHub::Failed(Failure::new(failure.code, text)));
        }
    }
}

fn live(seat: &Seat, settings: &Settings, library: &Library) -> Outcome<()> {
    check_ranks(seat, settings)?;
    let mut memory = Memory { before: machine::resident_bytes(), ..Memory::default() };
    let world = connect(seat, settings, library)?;
    seat.progress.set_comm(world.handle);
    memory.after_init = machine::resident_bytes();
    let group = world.split(seat, settings, library)?;
    // With a group of its own, operations run there, and that is what a time limit aborts.
    let working = group.as_ref().unwrap_or(&world);
    seat.progress.set_comm(working.handle);
    let stream = make_stream(seat, settings, library)?;
    seat.link.send(&ToHub::Opened(Opened {
        version: library.version,
        path: library.path.clone(),
        group: working.group,
        group_ranks: working.ranks,
        stream: if stream.is_null() { "NULL" } else { "host" }.into(),
    }));
    let (send, recv) = allocate(seat, settings, library, working.ranks)?;
    let handles = register(seat, settings, library, working, [&send, &recv])?;
    let mut measure =
        Measure { seat, settings, library, comm: working.handle, stream, send, recv, group: working };
    all_cases(&mut measure)?;
    memory.after_run = machine::resident_bytes();
    if settings.args.memory != 0 {
        seat.link.send(&ToHub::Memory(memory));
    }
    seat.barrier()?;
    deregister(settings, library, working, handles)?;
    if !stream.is_null() {
        let destroy = library.functions.stream_destroy.need()?;
        // SAFETY: Made by this library, used by nobody any more.
        library.check("acclStreamDestroy", unsafe { destroy(stream) })?;
    }
    seat.progress.set_comm(std::ptr::null_mut());
    let destroy = library.functions.comm_destroy.need()?;
    for comm in group.iter().chain([&world]) {
        // SAFETY: Made by this library, used by nobody any more.
        library.check("ncclCommDestroy", unsafe { destroy(comm.handle) })?;
    }
    Ok(())
}

fn check_ranks(seat: &Seat, settings: &Settings) -> Outcome<()> {
    if settings.test == Test::Hypercube && !seat.ranks.is_power_of_two() {
        return Err(Failure::usage(format!("hypercube needs a power of two ranks, not {}", seat.ranks)));
    }
    match settings.root {
        Some(root) if root >= seat.ranks => {
            Err(Failure::usage(format!("-r {root}: the ranks are 0 to {}", seat.ranks - 1)))
        }
        _ => Ok(()),
    }
}

/// A communicator, and who this rank is in it.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) handle: Comm,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Its colour; 0 for the one of all.
    pub(crate) group: i32,
}

/// Rank 0 makes the id, all join, and the library must agree about who we are.
fn connect(seat: &Seat, settings: &Settings, library: &Library) -> Outcome<Group> {
    let mut id = UniqueId([0; 128]);
    let mut text = String::new();
    if seat.rank == 0 {
        let make = library.functions.get_unique_id.need()?;
        // SAFETY: Writes 128 bytes.
        library.check("ncclGetUniqueId", unsafe { make(&mut id) })?;
        text = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let texts = seat.link.share(text)?;
    let digits = texts.first().map(String::as_str).unwrap_or_default();
    for (byte, at) in id.0.iter_mut().zip((0..).step_by(2)) {
        let digit_pair = digits.get(at..at + 2);
        *byte = digit_pair
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or_else(|| Failure::new(Exit::Died, "rank 0 sent no unique id"))?;
    }
    let mut handle: Comm = std::ptr::null_mut();
    let (ranks, rank) = (seat.ranks as i32, seat.rank as i32);
    seat.progress.set_calling(true);
    let (name, code) = match settings.args.cta_policy {
        None => {
            let init = library.functions.comm_init_rank.need()?;
            // SAFETY: Writes one handle.
            ("ncclCommInitRank", unsafe { init(&mut handle, ranks, id, rank) })
        }
        Some(policy) => {
            let init = library.functions.comm_init_rank_config.need()?;
            let mut config = Config::with_cta_policy(policy);
            // SAFETY: Writes one handle, reads the configuration during the call.
            ("ncclCommInitRankConfig", unsafe { init(&mut handle, ranks, id, rank, &mut config) })
        }
    };
    seat.progress.set_calling(false);
    library.check(name, code)?;
    let world = Group::of(library, handle, 0)?;
    if (world.rank, world.ranks) != (seat.rank, seat.ranks) {
        let text = format!(
            "the communicator says rank {} of {}, but we are rank {} of {}",
            world.rank, world.ranks, seat.rank, seat.ranks
        );
        return Err(Failure::new(Exit::Call, text));
    }
    Ok(world)
}

impl Group {
    fn of(library: &Library, handle: Comm, group: i32) -> Outcome<Self> {
        let (mut rank, mut ranks) = (0, 0);
        let ask_rank = library.functions.comm_user_rank.need()?;
        let ask_ranks = library.functions.comm_count.need()?;
        // SAFETY: A live communicator; each writes one integer.
        library.check("ncclCommUserRank", unsafe { ask_rank(handle, &mut rank) })?;
        // SAFETY: As above.
        library.check("ncclCommCount", unsafe { ask_ranks(handle, &mut ranks) })?;
        if rank < 0 || ranks < 1 {
            return Err(Failure::new(Exit::Call, format!("the communicator says rank {rank} of {ranks}")));
        }
        Ok(Self { handle, rank: rank as usize, ranks: ranks as usize, group })
    }

    /// The group that NCCL_TESTS_SPLIT asks for, if it does.
    fn split(&self, seat: &Seat, settings: &Settings, library: &Library) -> Outcome<Option<Self>> {
        let Some(split) = settings.environment.split else { return Ok(None) };
        let color = split.color(seat.rank);
        let call = library.functions.comm_split.need()?;
        let mut handle: Comm = std::ptr::null_mut();
        seat.progress.set_calling(true);
        // SAFETY: A live communicator; writes one handle; no configuration.
        let code = unsafe { call(self.handle, color, seat.rank as i32, &mut handle, std::ptr::null_mut()) };
        seat.progress.set_calling(false);
        library.check("ncclCommSplit", code)?;
        let group = Self::of(library, handle, color)?;
        if settings.test == Test::Hypercube && !group.ranks.is_power_of_two() {
            return Err(Failure::usage(format!("hypercube needs a power of two ranks, not {}", group.ranks)));
        }
        if settings.root.is_some_and(|root| settings.test.rooted() && root >= group.ranks) {
            return Err(Failure::usage(format!("-r: group {color} has only {} ranks", group.ranks)));
        }
        Ok(Some(group))
    }
}

fn make_stream(seat: &Seat, settings: &Settings, library: &Library) -> Outcome<Stream> {
    let mut stream = std::ptr::null_mut();
    if settings.args.stream_null != Some(0) {
        return Ok(stream);
    }
    let Some(create) = library.functions.stream_create.pointer else {
        let text = "-y 0: the library has no acclStreamCreate; going on with the NULL stream";
        seat.link.send(&ToHub::Note(text.into()));
        return Ok(stream);
    };
    // SAFETY: Writes one handle.
    library.check("acclStreamCreate", unsafe { create(&mut stream) })?;
    Ok(stream)
}

/// The largest buffers that any case needs. Refused in words before the machine would swap or kill.
fn allocate(seat: &Seat, settings: &Settings, library: &Library, ranks: usize) -> Outcome<(Buffer, Buffer)> {
    let (mut send_bytes, mut both_bytes, mut shift_bytes) = (0, 0, 0);
    for &kind in &settings.kinds {
        let counts = settings.test.counts(settings.args.maxbytes, kind, ranks);
        send_bytes = send_bytes.max(counts.send_elems * kind.bytes());
        both_bytes = both_bytes.max(counts.send_elems.max(counts.recv_elems) * kind.bytes());
        shift_bytes = shift_bytes.max(settings.args.unalign.saturating_mul(kind.bytes()));
    }
    let extra = shift_bytes.saturating_add(2 * GUARD_BYTES);
    let one_rank = send_bytes.saturating_add(both_bytes).saturating_add(extra.saturating_mul(2));
    let needed = one_rank.saturating_mul(seat.neighbours);
    let available = machine::available_bytes().unwrap_or(usize::MAX);
    // Everybody looks before anybody takes.
    seat.barrier()?;
    if needed > available {
        let text = format!(
            "-e {}: {} ranks on this host need {} of memory, and {} are available",
            sizes::human(settings.args.maxbytes),
            seat.neighbours,
            sizes::human(needed),
            sizes::human(available)
        );
        return Err(Failure::usage(text));
    }
    seat.barrier()?;
    let from = settings.args.mem_alloc.then_some(library);
    Ok((Buffer::new(send_bytes, shift_bytes, from)?, Buffer::new(both_bytes, shift_bytes, from)?))
}

/// What ncclCommRegister or ncclCommWindowRegister gave for each buffer.
type Handles = Vec<*mut std::ffi::c_void>;

fn register(
    seat: &Seat,
    settings: &Settings,
    library: &Library,
    group: &Group,
    buffers: [&Buffer; 2],
) -> Outcome<Handles> {
    let mut handles = Vec::new();
    for (address, bytes) in buffers.map(Buffer::whole) {
        let mut handle = std::ptr::null_mut();
        match settings.args.local_register {
            0 => return Ok(handles),
            1 => {
                let call = library.functions.comm_register.need()?;
                // SAFETY: A live communicator, memory that outlives it; writes one handle.
                let code = unsafe { call(group.handle, address, bytes, &mut handle) };
                library.check("ncclCommRegister", code)?;
            }
            _ => {
                const SYMMETRIC: i32 = 1;
                let call = library.functions.window_register.need()?;
                // SAFETY: As above.
                let code = unsafe { call(group.handle, address, bytes, &mut handle, SYMMETRIC) };
                library.check("ncclCommWindowRegister", code)?;
                if handle.is_null() {
                    let text = "-R 2: the library offers no windows here; going on with plain buffers";
                    seat.link.send(&ToHub::Note(text.into()));
                }
            }
        }
        handles.push(handle);
    }
    Ok(handles)
}

fn deregister(settings: &Settings, library: &Library, group: &Group, handles: Handles) -> Outcome<()> {
    for handle in handles.into_iter().filter(|handle| !handle.is_null()) {
        let (name, function) = match settings.args.local_register {
            1 => ("ncclCommDeregister", library.functions.comm_deregister.need()?),
            _ => ("ncclCommWindowDeregister", library.functions.window_deregister.need()?),
        };
        // SAFETY: The handle is from this communicator, and given back once.
        library.check(name, unsafe { function(group.handle, handle) })?;
    }
    Ok(())
}

/// Types and operators the library is too old for are left out when all were asked for.
fn offered(measure: &Measure<'_>, since: i32, name: &str, several: bool) -> bool {
    let missing = several && measure.library.version < since;
    if missing {
        let text = format!("{name} is left out: the library is version {}", measure.library.version);
        measure.seat.link.send(&ToHub::Note(text));
    }
    !missing
}

fn all_cases(measure: &mut Measure<'_>) -> Outcome<()> {
    let cycles = measure.settings.args.run_cycles;
    let mut number = 0;
    let mut cycle = 0;
    let mut first = true;
    while cycles == 0 || cycle < cycles {
        cycle += 1;
        for &kind in &measure.settings.kinds {
            if !offered(measure, kind.since(), kind.name(), measure.settings.kinds.len() > 1) {
                continue;
            }
            for &op in &measure.settings.ops {
                let since = op.map_or(0, Operator::since);
                if !offered(measure, since, op.map_or("", Operator::name), measure.settings.ops.len() > 1) {
                    continue;
                }
                for root in measure.settings.roots(measure.group.ranks) {
                    one_series(measure, (kind, op, root), &mut number, &mut first)?;
                }
            }
        }
    }
    Ok(())
}

/// All sizes of one type, operator and root.
fn one_series(
    measure: &mut Measure<'_>,
    (kind, op, root): (DataType, Option<Operator>, i32),
    number: &mut usize,
    first: &mut bool,
) -> Outcome<()> {
    let settings = measure.settings;
    let operator = measure.make_operator(kind, op)?;
    let case = |bytes| Case::new(settings, measure.group.ranks, bytes, (kind, op, root), operator);
    let largest = case(settings.args.maxbytes);
    let smallest = case(settings.args.minbytes);
    if std::mem::take(first) {
        measure.first_call(&smallest)?;
    }
    // As nccl-tests: the largest size first, then the smallest.
    for case in [&largest, &smallest] {
        measure.warm_up(case)?;
    }
    for &bytes in &settings.sizes {
        let case = Case::new(settings, measure.group.ranks, bytes, (kind, op, root), operator);
        let report = CaseReport {
            number: *number,
            size_bytes: case.size_bytes(),
            count_elems: case.counts.param_elems,
            kind: kind.name().into(),
            op: op.map_or("none", Operator::name).into(),
            root,
            out_of_place: measure.placement(&case, false, *number)?,
            in_place: match settings.test.in_place() {
                true => Some(measure.placement(&case, true, *number)?),
                false => None,
            },
            explained: if settings.args.explain { measure.explained(&case)? } else { None },
        };
        measure.seat.link.send(&ToHub::Case(Box::new(report)));
        *number += 1;
    }
    measure.drop_operator(op, operator)
}
