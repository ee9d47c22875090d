//! `accl topo`: which hosts and ranks there are, and by what each pair of ranks is connected.
//!
//! Each rank asks the library for its own view; the views are gathered with a collective, so that what is printed is what
//! works. Without a launcher the ranks are processes of this program: they get the unique id on standard input.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::launch::{Launch, Meeting, detect};
use crate::library::{Comm, Library, UniqueId};

/// `ncclUint8`.
const BYTES: c_int = 1;
/// Pairs that are named for one way; more are counted.
const MOST_PAIRS: usize = 16;

/// What one rank says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct View {
    rank: usize,
    ranks: usize,
    host: String,
    host_key: String,
    pid: u32,
    port: u16,
    interfaces: Vec<Told>,
    /// Ports for RDMA.
    #[serde(default)]
    rdma: Vec<String>,
    peers: Vec<Peer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) interface: String,
    pub(crate) address: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Peer {
    rank: usize,
    transport: String,
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
}

#[derive(Debug, Serialize)]
struct Host<'a> {
    name: &'a str,
    interfaces: &'a [Told],
    rdma: &'a [String],
    ranks: Vec<Seat>,
}

#[derive(Debug, Serialize)]
struct Seat {
    rank: usize,
    pid: u32,
}

#[derive(Debug, Serialize)]
struct Pair<'a> {
    from: usize,
    #[serde(flatten)]
    to: ToPeer<'a>,
}

#[derive(Debug, Serialize)]
struct ToPeer<'a> {
    to: usize,
    transport: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Map<'a> {
    ranks: usize,
    hosts: Vec<Host<'a>>,
    pairs: Vec<Pair<'a>>,
}

/// How the program was asked.
#[derive(Clone, Debug)]
pub(crate) struct Options<'a> {
    pub(crate) ranks: usize,
    pub(crate) json: bool,
    pub(crate) library: Option<&'a Path>,
}

/// Starts the ranks, or joins those of a launcher.
pub(crate) fn run(options: &Options<'_>) -> Outcome<()> {
    let parent = std::os::unix::process::parent_id();
    match detect(&|name| std::env::var(name).ok(), parent)? {
        Launch::Person => start(options),
        Launch::Lonely(seen) => Err(Failure::usage(format!("{seen}: too little to join a launcher's ranks"))),
        Launch::Joined { rank, size, meeting: Meeting::Tcp { host, port }, .. } => {
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            // SAFETY: no other thread runs yet.
            unsafe { std::env::set_var("ACCL_COMM_ID", format!("{host}:{port}")) };
            let library = Library::open(options.library)?;
            be_rank(&library, (rank, size), unique_id(&library)?, options.json)
        }
        Launch::Joined { .. } => {
            Err(Failure::usage("set ACCL_ROOT=host:port, a free port of rank 0's host, for all ranks"))
        }
    }
}

/// Starts the ranks as processes of this program.
fn start(options: &Options<'_>) -> Outcome<()> {
    let library = Library::open(options.library)?;
    let id = unique_id(&library)?;
    let program = std::env::current_exe().map_err(|error| system("where this program is", &error))?;
    let mut children = Vec::new();
    for rank in 0..options.ranks {
        let mut command = Command::new(&program);
        command.args(["topo-rank", &rank.to_string(), &options.ranks.to_string()]);
        if options.json {
            command.arg("--json");
        }
        if let Some(path) = options.library {
            command.arg("--lib").arg(path);
        }
        let child =
            command.stdin(Stdio::piped()).spawn().map_err(|error| system("cannot start a rank", &error));
        let told = child.and_then(|mut child| {
            let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&id.0));
            children.push(child);
            written.map_err(|error| system("a rank ended at once", &error))
        });
        if let Err(failure) = told {
            end(&mut children);
            return Err(failure);
        }
    }
    let failed = children.iter_mut().filter_map(|child| child.wait().ok()).any(|status| !status.success());
    if failed { Err(Failure::usage("a rank failed, as said above")) } else { Ok(()) }
}

fn end(children: &mut [Child]) {
    for child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A process that [`start`] started.
pub(crate) fn be_started_rank(rank: usize, ranks: usize, options: &Options<'_>) -> Outcome<()> {
    let mut id = UniqueId([0; 128]);
    std::io::stdin().read_exact(&mut id.0).map_err(|error| system("no unique id came", &error))?;
    be_rank(&Library::open(options.library)?, (rank, ranks), id, options.json)
}

fn unique_id(library: &Library) -> Outcome<UniqueId> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: writes one id.
    library.check("ncclGetUniqueId", unsafe { library.functions.get_unique_id.need()?(&raw mut id) })?;
    Ok(id)
}

fn be_rank(library: &Library, (rank, ranks): (usize, usize), id: UniqueId, json: bool) -> Outcome<()> {
    let mut comm: Comm = std::ptr::null_mut();
    let init = library.functions.comm_init_rank.need()?;
    // SAFETY: writes one handle.
    let code = unsafe { init(&raw mut comm, ranks as c_int, id, rank as c_int) };
    library.check("ncclCommInitRank", code)?;
    // What the first gathering connects is what the second one tells.
    gather(library, comm, rank, ranks, &describe(library, comm)?)?;
    let texts = gather(library, comm, rank, ranks, &describe(library, comm)?)?;
    if rank == 0 {
        let views: Result<Vec<View>, _> = texts.iter().map(|text| serde_json::from_slice(text)).collect();
        let views = views.map_err(|error| Failure::usage(format!("a view that is no JSON: {error}")))?;
        println!("{}", print(&views, json));
    }
    // SAFETY: a valid handle, used for the last time.
    library.check("ncclCommDestroy", unsafe { library.functions.comm_destroy.need()?(comm) })
}

/// What the library says of a rank, or with a null handle of this process.
pub(crate) fn describe(library: &Library, comm: Comm) -> Outcome<Vec<u8>> {
    let mut room = vec![0u8; 8 << 20];
    let call = library.functions.describe.need()?;
    // SAFETY: there is room for as many bytes as said.
    let code = unsafe { call(comm, room.as_mut_ptr().cast(), room.len()) };
    library.check("acclDescribe", code)?;
    room.truncate(room.iter().position(|byte| *byte == 0).unwrap_or(0));
    Ok(room)
}

/// Everybody's text, in the order of ranks.
fn gather(library: &Library, comm: Comm, rank: usize, ranks: usize, own: &[u8]) -> Outcome<Vec<Vec<u8>>> {
    let call = library.functions.all_gather.need()?;
    let all = |own: &[u8]| -> Outcome<Vec<u8>> {
        let mut all = vec![0u8; own.len() * ranks];
        let (from, to) = (own.as_ptr().cast::<c_void>(), all.as_mut_ptr().cast::<c_void>());
        // SAFETY: the buffers have the sizes that the call is told; it is complete on return.
        let code = unsafe { call(from, to, own.len(), BYTES, comm, std::ptr::null_mut()) };
        library
            .check("ncclAllGather", code)
            .map_err(|failure| Failure::new(failure.code, format!("rank {rank}: {failure}")))?;
        Ok(all)
    };
    let lengths = all(&(own.len() as u64).to_le_bytes())?;
    let lengths: Vec<usize> = lengths
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()) as usize)
        .collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut padded = own.to_vec();
    padded.resize(longest, 0);
    let texts = all(&padded)?;
    Ok(texts.chunks(longest.max(1)).zip(lengths).map(|(text, length)| text[..length].to_vec()).collect())
}

fn print(views: &[View], json: bool) -> String {
    let map = map(views);
    if json { serde_json::to_string_pretty(&map).unwrap_or_default() } else { tree(&map) }
}

fn map(views: &[View]) -> Map<'_> {
    let mut hosts: Vec<(&str, Host<'_>)> = Vec::new();
    for view in views {
        let seat = Seat { rank: view.rank, pid: view.pid };
        match hosts.iter_mut().find(|(key, _)| *key == view.host_key) {
            Some((_, host)) => host.ranks.push(seat),
            None => {
                let host = Host {
                    name: &view.host,
                    interfaces: &view.interfaces,
                    rdma: &view.rdma,
                    ranks: vec![seat],
                };
                hosts.push((&view.host_key, host));
            }
        }
    }
    let pairs = views.iter().flat_map(|view| {
        view.peers.iter().map(|peer| Pair {
            from: view.rank,
            to: ToPeer {
                to: peer.rank,
                transport: &peer.transport,
                reason: &peer.reason,
                address: peer.address.as_deref(),
                interface: peer.interface.as_deref(),
            },
        })
    });
    Map {
        ranks: views.len(),
        hosts: hosts.into_iter().map(|(_, host)| host).collect(),
        pairs: pairs.collect(),
    }
}

fn tree(map: &Map<'_>) -> String {
    let mut text = format!("{} ranks on {} hosts", map.ranks, map.hosts.len());
    for host in &map.hosts {
        let _ = write!(text, "\n├─ host {}", host.name);
        for told in host.interfaces {
            let _ = write!(text, "\n│  ├─ {} over {}", told.address, told.interface);
        }
        for port in host.rdma {
            let _ = write!(text, "\n│  ├─ RDMA by {port}");
        }
        let mut processes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for seat in &host.ranks {
            processes.entry(seat.pid).or_default().push(seat.rank.to_string());
        }
        for (pid, ranks) in processes {
            let _ = write!(text, "\n│  ├─ process {pid}: rank {}", ranks.join(", "));
        }
    }
    let mut ways: BTreeMap<(&str, &str, String), Vec<String>> = BTreeMap::new();
    for Pair { from, to } in &map.pairs {
        let via = match (to.interface, to.address) {
            (Some(interface), Some(address)) => format!(" over {interface} to {address}"),
            _ => String::new(),
        };
        ways.entry((to.transport, to.reason, via)).or_default().push(format!("{from}→{}", to.to));
    }
    text += "\n└─ transports";
    for ((transport, reason, via), pairs) in ways {
        let more = pairs.len().saturating_sub(MOST_PAIRS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let pairs = pairs.into_iter().take(MOST_PAIRS).collect::<Vec<_>>().join(" ");
        let _ = write!(text, "\n   ├─ {transport}{via} ({reason}): {pairs}{more}");
    }
    text
}

fn system(what: &str, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_by_host_and_pairs_by_way() {
        let view = |rank: usize, host: &str, transports: [&str; 2]| {
            let others = (0..3).filter(|other| *other != rank).zip(transports);
            let peers = others.map(|(rank, transport)| Peer {
                rank,
                transport: transport.into(),
                reason: "why".into(),
                address: (transport == "tcp").then(|| "10.0.0.9".into()),
                interface: (transport == "tcp").then(|| "eth0".into()),
            });
            let peers = peers.collect();
            let (host_key, host) = (host.to_string(), host.to_string());
            View {
                rank,
                ranks: 3,
                host,
                host_key,
                pid: 7 + rank as u32,
                port: 1,
                interfaces: Vec::new(),
                rdma: Vec::new(),
                peers,
            }
        };
        let views = [
            view(0, "a", ["threads", "tcp"]),
            view(1, "a", ["threads", "tcp"]),
            view(2, "b", ["tcp", "tcp"]),
        ];
        let text = print(&views, false);
        assert!(text.starts_with("3 ranks on 2 hosts\n├─ host a\n│  ├─ process 7: rank 0"), "{text}");
        assert!(text.contains("tcp over eth0 to 10.0.0.9 (why): 0→2 1→2 2→0 2→1"), "{text}");
        assert!(text.contains("threads (why): 0→1 1→0"), "{text}");
    }
}
