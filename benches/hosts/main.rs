//! How fast operations between two hosts are: against a plain connection, and against MPI.
//!
//! `cargo bench --bench hosts` makes two network namespaces on one cable and a process in each (needs root), and
//! measures in turn: a two-way stream of as many bytes as an operation has to send each way, and the operation. Prints
//! microseconds for both (medians) and stream / operation: 1 is the speed of the stream.
//!
//! `cargo bench --bench hosts -- shaped [CABLES]` does so behind a cable of 1 Gbit/s, or several (the stream uses the first one), and
//! prints how much of one cable the operation's bytes take.
//!
//! `cargo bench --bench hosts -- mpi [ROUNDS]` runs the same operations by Open MPI and MPICH, over TCP in the same namespaces
//! (see `mpi.rs`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod host;
mod mpi;
// Made for tests, which need more of it.
#[allow(dead_code)]
#[path = "../../tests/net/namespaces.rs"]
mod namespaces;

use host::Host;
use namespaces::Net;
use std::time::Instant;

const RANK: &str = "HOSTS_RANK";
/// What a process is to do: `stream`, `shaped`, or one case of `mpi.rs`.
const TASK: &str = "HOSTS_TASK";
/// Bytes each way.
const SIZES: [usize; 8] = [8, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20];
const SHAPED_SIZES: [usize; 2] = [4 << 20, 64 << 20];
/// The link of `shaped`, both ways.
const SHAPED_BITS_PER_S: f64 = 1e9;
const OPERATIONS: [&str; 3] = ["allreduce", "allgather", "reducescatter"];

fn against_stream(mut host: Host, shaped: bool) {
    for operation in OPERATIONS {
        for bytes in if shaped { &SHAPED_SIZES[..] } else { &SIZES } {
            let bytes = *bytes;
            let repeats = if shaped { 1 } else { (8 << 20) / bytes.clamp(8 << 10, 8 << 20) };
            let rounds = if shaped {
                5
            } else if bytes > 1 << 20 {
                7
            } else {
                21
            };
            let (send, mut recv) = (vec![1.0f32; bytes / 2], vec![0.0f32; bytes / 2]);
            let (out, mut back) = (vec![1u8; bytes], vec![0u8; bytes]);
            let (mut plain, mut ours) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                host.meet();
                let begin = Instant::now();
                (0..repeats).for_each(|_| host.exchange(&out, &mut back));
                plain.push(begin.elapsed().as_secs_f64() * 1e6 / repeats as f64);
                host.meet();
                let begin = Instant::now();
                (0..repeats).for_each(|_| host.operate(operation, bytes, &send, &mut recv));
                ours.push(begin.elapsed().as_secs_f64() * 1e6 / repeats as f64);
            }
            if host.rank == 0 {
                let (plain, ours) = (median(&mut plain), median(&mut ours));
                print!("{operation:14}{bytes:>10}{plain:>12.1}{ours:>12.1}{:>8.2}", plain / ours);
                let of_link = bytes as f64 * 8.0 / (ours * 1e-6) / SHAPED_BITS_PER_S;
                println!("{}", if shaped { format!("{of_link:>8.3} of the link") } else { String::new() });
            }
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Runs a process on each host that does `task`; true if both succeed.
fn on_both(net: &Net, task: &str) -> bool {
    let start = |host: usize| {
        let mut command = net.command(host);
        let core = host % std::thread::available_parallelism().map_or(1, usize::from);
        command.args(["taskset", "-c", &core.to_string()]).arg(std::env::current_exe().unwrap());
        command.env(RANK, host.to_string()).env(TASK, task);
        command.spawn().unwrap()
    };
    let mut hosts = [start(0), start(1)];
    let ended = hosts.each_mut().map(|host| host.wait().unwrap().success());
    ended == [true, true]
}

/// Adds cables, and slows all of them down.
fn shape(net: &Net, cables: usize) {
    for cable in 0..cables {
        let name = format!("eth{cable}");
        if cable > 0 {
            let [one, other] = [1, 2].map(|host| format!("10.{}.0.{host}/24", 9 + cable));
            net.cable((0, &name, &[&one]), (1, &name, &[&other]));
        }
        (0..2).for_each(|host| net.shape(host, &name, "1gbit"));
    }
}

fn main() {
    let task = std::env::var(TASK).unwrap_or_default();
    if let Ok(rank) = std::env::var(RANK) {
        let host = Host::join(rank.parse().unwrap());
        return if task.starts_with("case") {
            mpi::ours(&host, &task)
        } else {
            against_stream(host, task == "shaped")
        };
    }
    let arguments: Vec<_> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let Some(net) = Net::two() else { return };
    // Not all systems are set to what is best here, and we choose for ourselves: what we compare with should not suffer from that.
    (0..2).for_each(|host| net.write(host, "net/ipv4/tcp_congestion_control", "reno"));
    match arguments.first().map(String::as_str) {
        Some("mpi") => {
            return mpi::compare(&net, arguments.get(1).map_or(3, |rounds| rounds.parse().unwrap()));
        }
        Some("shaped") => shape(&net, arguments.get(1).map_or(1, |cables| cables.parse().unwrap())),
        _ => {}
    }
    let task = arguments.first().map_or("stream", String::as_str);
    println!(
        "# two hosts on one cable; bytes each way, µs of the stream, µs of the operation, stream / operation"
    );
    assert!(on_both(&net, task));
}
