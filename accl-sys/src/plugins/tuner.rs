//! Tuner plugins, versions 4 to 6: for each call they are shown what it should take by each algorithm, and change that as they know better; the
//! call goes by what is the cheapest then.
//!
//! A table of costs has a row for each algorithm of NCCL and a column for each protocol. One protocol serves all names here, and direct and
//! recursive doubling have no row: the library's own choice counts by what the model says, unless it is in the table.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::{from_mut, null_mut};
use std::sync::OnceLock;

use accl_core::Result;
use accl_core::comm::{Candidates, Communicator, Selection, Wish};
use accl_core::config::subsystem::TUNING;
use accl_core::telemetry::{self, log};
use accl_core::types::{Collective, DataType};
use libloading::os::unix::Library;
use parking_lot::Mutex;

use super::logger::{Logger, logger};
use crate::management::number;

/// NCCL's algorithms by their numbers, as the setting ALGO has their names.
const ALGORITHMS: [&str; 7] = ["tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"];
/// Its protocols: LL, LL128, Simple.
const PROTOCOLS: usize = 3;
/// What cannot be chosen.
const IGNORED: f32 = -1.0;
/// More than the constants of any version, which are numbers of double precision.
const CONSTANTS: usize = 512;

type Handle = *mut std::ffi::c_void;
/// Microseconds for each algorithm and protocol.
type Costs = [[f32; PROTOCOLS]; ALGORITHMS.len()];
type Init4 = unsafe extern "C" fn(usize, usize, Logger, *mut Handle) -> c_int;
type Init5 = unsafe extern "C" fn(*mut Handle, u64, usize, usize, Logger, *mut Domains, *mut f64) -> c_int;
type Ask =
    unsafe extern "C" fn(Handle, c_int, usize, c_int, *mut Costs, c_int, c_int, c_int, *mut c_int) -> c_int;
type End = unsafe extern "C" fn(Handle) -> c_int;

/// What a plugin exports, as far as it is used; `I` is the type of its first function. Version 6 goes on.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table<I> {
    name: *const c_char,
    init: Option<I>,
    ask: Option<Ask>,
    end: Option<End>,
}

/// Ranks that reach each other without a network: here, those of a host.
#[repr(C)]
struct Domains {
    count: c_int,
    least_ranks: c_int,
    most_ranks: c_int,
}

/// A plugin that is loaded, and what it knows of each communicator.
pub(super) struct Tuner {
    init: Init,
    ask: Ask,
    end: End,
    contexts: Mutex<BTreeMap<usize, Option<Context>>>,
    _library: Library,
}

#[derive(Clone, Copy)]
enum Init {
    Version4(Init4),
    Later(Init5),
}

struct Context {
    handle: Handle,
    /// Where the plugin finds, and may change, constants of a model that is not used here.
    _constants: Box<[f64]>,
    /// It has been warned of already.
    warned: bool,
}

// SAFETY: what a plugin gave is only handed back to it, whose functions any thread may call.
unsafe impl Send for Context {}

static TUNER: OnceLock<Option<Tuner>> = OnceLock::new();

/// The plugin, which is looked for once in a process.
pub(super) fn tuner() -> Option<&'static Tuner> {
    let find = || super::find("tuner", "TUNER_PLUGIN", "ncclTunerPlugin_v6, _v5 or _v4", Tuner::of);
    TUNER.get_or_init(find).as_ref()
}

/// The algorithm for a call of `count` elements that asks for this: the plugin's, if there is one and it chooses one that can serve.
/// Errors are those of [`Communicator::choose`].
pub(crate) fn choose(
    comm: &Communicator,
    kind: Collective,
    (count, data_type): (usize, DataType),
    wish: &Wish,
) -> Result<Selection> {
    match (tuner(), function(kind)) {
        (Some(tuner), Some(function)) if count > 0 && comm.ranks() > 1 => {
            let candidates = comm.candidates(kind, count, data_type, wish)?;
            let blocks = if matches!(kind, Collective::AllGather | Collective::ReduceScatter) {
                comm.ranks()
            } else {
                1
            };
            let bytes = count * data_type.size_bytes() * blocks;
            Ok(tuner.choose(comm, function, bytes, &candidates))
        }
        _ => comm.choose(kind, count, data_type, wish),
    }
}

/// Tells the plugin that a communicator has ended.
pub(super) fn forget(comm: &Communicator) {
    let Some(tuner) = tuner() else { return };
    let context = tuner.contexts.lock().remove(&comm.key());
    if let Some(Some(context)) = context {
        // SAFETY: the plugin's own context, which it hears of for the last time.
        unsafe { (tuner.end)(context.handle) };
    }
}

/// NCCL's number of an operation that has several algorithms, and its name.
fn function(kind: Collective) -> Option<(c_int, &'static str)> {
    match kind {
        Collective::Broadcast => Some((0, "Broadcast")),
        Collective::Reduce => Some((1, "Reduce")),
        Collective::AllGather => Some((2, "AllGather")),
        Collective::ReduceScatter => Some((3, "ReduceScatter")),
        Collective::AllReduce => Some((4, "AllReduce")),
        _ => None,
    }
}

impl Tuner {
    /// The newest version that the library has.
    fn of(library: Library) -> Option<Self> {
        // SAFETY: a symbol of this name is a table of this layout, in the library that is kept.
        let (later, fourth) = unsafe {
            let later = find::<Init5>(&library, c"ncclTunerPlugin_v6")
                .or_else(|| find::<Init5>(&library, c"ncclTunerPlugin_v5"));
            (later, find::<Init4>(&library, c"ncclTunerPlugin_v4"))
        };
        let found = match (later, fourth) {
            (Some(table), _) => (table.init.map(Init::Later), table.ask, table.end),
            (None, Some(table)) => (table.init.map(Init::Version4), table.ask, table.end),
            (None, None) => return None,
        };
        let (Some(init), Some(ask), Some(end)) = found else { return None };
        Some(Self { init, ask, end, contexts: Mutex::default(), _library: library })
    }

    /// Asks the plugin, and decides.
    fn choose(
        &self,
        comm: &Communicator,
        (function, name): (c_int, &str),
        bytes: usize,
        candidates: &Candidates,
    ) -> Selection {
        let usual = candidates.usual.selection;
        let shown = costs(candidates);
        let mut contexts = self.contexts.lock();
        let Some(context) = contexts.entry(comm.key()).or_insert_with(|| self.begin(comm)) else {
            return usual;
        };
        let (mut answered, mut channels) = (shown, 0);
        // SAFETY: the plugin's own context; the table is as large as is said, and lives until it returns.
        let code = unsafe {
            (self.ask)(
                context.handle,
                function,
                bytes,
                1,
                from_mut(&mut answered),
                ALGORITHMS.len() as c_int,
                PROTOCOLS as c_int,
                0,
                from_mut(&mut channels),
            )
        };
        let chosen = if code == 0 {
            decide(&shown, &answered, candidates)
        } else {
            Err(format!("has returned code {code}"))
        };
        match chosen {
            Ok(selection) => {
                let row = candidates.all.iter().find(|one| one.selection == selection);
                let algorithm = row.map_or(candidates.usual.name, |one| one.name);
                log::info(
                    TUNING,
                    format_args!("{name}: {bytes} Bytes -> Algo {algorithm} by the tuner plugin"),
                );
                selection
            }
            Err(why) => {
                if !std::mem::replace(&mut context.warned, true) {
                    telemetry::warn(&format!(
                        "the tuner plugin {why} for {name} of {bytes} bytes; the library chooses itself, and says so once for a communicator"
                    ));
                }
                usual
            }
        }
    }

    /// Tells the plugin of a communicator; none if it refuses.
    fn begin(&self, comm: &Communicator) -> Option<Context> {
        let identity = comm.identity().ok()?;
        let (ranks, hosts) = (comm.ranks(), identity.hosts);
        let (least, most) = identity.local_ranks;
        let mut domains =
            Domains { count: number(hosts), least_ranks: number(least), most_ranks: number(most) };
        let mut constants = vec![0.0; CONSTANTS].into_boxed_slice();
        let mut handle = null_mut();
        // SAFETY: the type is that of the version; all pointers live until it returns, the constants longer.
        let code = unsafe {
            match self.init {
                Init::Version4(init) => init(ranks, hosts, logger(), &raw mut handle),
                Init::Later(init) => init(
                    &raw mut handle,
                    identity.number,
                    ranks,
                    hosts,
                    logger(),
                    &raw mut domains,
                    constants.as_mut_ptr(),
                ),
            }
        };
        if code != 0 {
            telemetry::warn(&format!(
                "the tuner plugin has refused a communicator with code {code}; it is not asked for its calls"
            ));
            return None;
        }
        Some(Context { handle, _constants: constants, warned: false })
    }
}

/// What a plugin is shown: nothing is cheaper than the library's own choice, so that a table which comes back as it was changes nothing.
fn costs(candidates: &Candidates) -> Costs {
    ALGORITHMS.map(|name| {
        let found = candidates.all.iter().find(|one| one.name == name);
        let least_ns = candidates.usual.predicted_ns;
        [found.map_or(IGNORED, |one| (one.predicted_ns.max(least_ns) / 1000.0) as f32); PROTOCOLS]
    })
}

/// The cheapest of the table that came back, and of the library's own choice, which wins if nothing is cheaper; or what is wrong with it.
fn decide(
    shown: &Costs,
    answered: &Costs,
    candidates: &Candidates,
) -> std::result::Result<Selection, String> {
    let usual = &candidates.usual;
    let mut best = ((usual.predicted_ns / 1000.0) as f32, usual.selection);
    let cheapest =
        |row: &[f32; PROTOCOLS]| row.iter().copied().filter(|cost| *cost >= 0.0).min_by(f32::total_cmp);
    if let Some(row) = ALGORITHMS.iter().position(|name| *name == usual.name) {
        best.0 = cheapest(&answered[row]).unwrap_or(f32::INFINITY);
    }
    let mut impossible = None;
    for (name, (before, after)) in ALGORITHMS.iter().zip(shown.iter().zip(answered)) {
        if let Some(cost) = after.iter().find(|cost| !cost.is_finite() || **cost < 0.0 && **cost != IGNORED) {
            return Err(format!("has written the cost {cost} for {name}"));
        }
        let Some(cost) = cheapest(after).filter(|cost| *cost < best.0) else { continue };
        let found = candidates.all.iter().find(|one| one.name == *name);
        impossible = if before[0] == IGNORED { Some(*name) } else { None };
        best = (cost, found.map_or(usual.selection, |one| one.selection));
    }
    impossible.map_or(Ok(best.1), |name| Err(format!("has chosen {name}, which cannot serve,")))
}

/// # Safety
/// A symbol of this name is a table of this type.
unsafe fn find<I: Copy>(library: &Library, name: &CStr) -> Option<Table<I>> {
    // SAFETY: promised. The symbol's address is that of the table.
    let table = unsafe { library.get::<*const Table<I>>(name.to_bytes_with_nul()) }.ok()?;
    // SAFETY: promised, and the library is loaded.
    Some(unsafe { table.read() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use accl_core::comm::CommConfig;

    /// Of an AllReduce of 4 MiB between two ranks.
    fn candidates(wish: &str) -> Candidates {
        let ranks = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let algorithms = accl_core::config::AlgorithmRules::parse(wish).unwrap();
        let wish = Wish { algorithms, forced: true, ..Wish::default() };
        ranks[0].candidates(Collective::AllReduce, 1 << 20, DataType::Float32, &wish).unwrap()
    }

    fn decided(
        candidates: &Candidates,
        changes: &[(usize, usize, f32)],
    ) -> std::result::Result<String, String> {
        let shown = costs(candidates);
        let mut answered = shown;
        for (algorithm, protocol, cost) in changes {
            answered[*algorithm][*protocol] = *cost;
        }
        let selection = decide(&shown, &answered, candidates)?;
        let all = candidates.all.iter().chain([&candidates.usual]);
        Ok(all.filter(|one| one.selection == selection).map(|one| one.name).next().unwrap().to_string())
    }

    #[test]
    fn the_cheapest_serves() {
        let open = candidates("");
        let shown = costs(&open);
        assert!(shown[..2].iter().flatten().all(|cost| *cost > 0.0), "{shown:?}");
        assert!(shown[2..].iter().flatten().all(|cost| *cost == IGNORED), "{shown:?}");
        for (changes, expected) in [
            (&[][..], "direct"),
            (&[(1, 2, 0.0)], "ring"),
            (&[(0, 0, 0.0)], "tree"),
            (&[(0, 1, 0.0), (1, 2, 0.5)], "tree"),
            (&[(0, 2, 1e9), (1, 2, 1e9)], "direct"),
            (&[(0, 0, -1.0), (0, 1, -1.0), (0, 2, -1.0)], "direct"),
        ] {
            assert_eq!(decided(&open, changes).as_deref(), Ok(expected), "{changes:?}");
        }
        // Where the library's own choice is in the table, it can be made dearer.
        let two = candidates("ring,tree");
        let dear = [(1, 0, 1e9), (1, 1, 1e9), (1, 2, 1e9)];
        assert_eq!(decided(&two, &[]).as_deref(), Ok("ring"));
        assert_eq!(decided(&two, &dear).as_deref(), Ok("tree"));
        assert_eq!(decided(&two, &[(1, 0, -1.0), (1, 1, -1.0), (1, 2, -1.0)]).as_deref(), Ok("tree"));
    }

    #[test]
    fn nonsense_is_refused() {
        let open = candidates("");
        for (changes, words) in [
            ((1, 2, f32::NAN), "has written the cost NaN for ring"),
            ((0, 0, f32::INFINITY), "has written the cost inf for tree"),
            ((6, 1, -2.0), "has written the cost -2 for pat"),
            ((4, 2, 0.0), "has chosen nvls, which cannot serve,"),
        ] {
            assert_eq!(decided(&open, &[changes]), Err(words.to_string()));
        }
        // What cannot serve, and is not the cheapest, does not matter.
        assert_eq!(decided(&open, &[(4, 2, 5.0), (1, 2, 0.0)]).as_deref(), Ok("ring"));
        assert_eq!(
            decided(&candidates("tree"), &[(1, 2, 0.0)]).unwrap_err(),
            "has chosen ring, which cannot serve,"
        );
    }

    #[test]
    fn tables_are_laid_out_as_plugins_have_them() {
        assert_eq!((size_of::<Table<Init4>>(), std::mem::offset_of!(Table<Init5>, end)), (32, 24));
        assert_eq!((size_of::<Costs>(), size_of::<Domains>()), (7 * 3 * 4, 12));
    }
}
