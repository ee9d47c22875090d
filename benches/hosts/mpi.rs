//! The same loop by MPI: Open MPI and MPICH, each in an environment of its own from PyPI (made in target/mpi, once), by TCP between
//! the same two namespaces.
//!
//! MPI starts ranks on other hosts by a remote shell. Ours is a script that enters the namespace, gives the host a name, a /dev/shm
//! and an /etc/hosts of its own, so that MPI takes it for another machine.

use super::{Host, OPERATIONS, TASK, median, on_both};
use crate::namespaces::Net;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Bytes of the large side: what an allreduce has, an allgather gets, a reducescatter gives.
const SIZES: [usize; 11] =
    [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const PEERS: [&str; 2] = ["openmpi", "mpich"];

/// A loop is so many samples, each of so many calls.
fn samples_and_calls(bytes: usize) -> (usize, usize) {
    match bytes {
        0..=65_536 => (100, 50),
        65_537..=1_048_576 => (40, 10),
        _ => (9, 1),
    }
}

/// One case, in a process of ours: prints the median time of a call, where the slowest host counts.
pub(crate) fn ours(host: &Host, task: &str) {
    let mut words = task.split_whitespace().skip(1);
    let operation = words.next().unwrap();
    let bytes: usize = words.next().unwrap().parse().unwrap();
    let (samples, calls) = samples_and_calls(bytes);
    let (send, mut recv) = (vec![1.0f32; bytes.max(8) / 4], vec![0.0f32; bytes.max(8) / 4]);
    let count_bytes = if operation == "allreduce" { bytes } else { bytes / 2 };
    let mut times = Vec::new();
    for sample in 0..samples + samples / 10 + 1 {
        host.meet();
        let begin = Instant::now();
        (0..calls).for_each(|_| host.operate(operation, count_bytes, &send, &mut recv));
        let time = host.slowest(begin.elapsed().as_secs_f64() * 1e6 / calls as f64);
        if sample > samples / 10 {
            times.push(time);
        }
    }
    if host.rank == 0 {
        std::fs::write(result_file(), median(&mut times).to_string()).unwrap();
    }
}

fn result_file() -> PathBuf {
    std::env::temp_dir().join("accl-bench-hosts-result")
}

/// Prints microseconds of all for each case, medians of `rounds`, and best of the others / ours.
pub(crate) fn compare(net: &Net, rounds: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/mpi");
    std::fs::create_dir_all(&folder).unwrap();
    let shell = remote_shell(net, &folder);
    let loops = PEERS.map(|peer| build(peer, &folder));
    println!(
        "# two hosts on one cable; bytes of the large side, µs of ours, {}, best / ours",
        PEERS.join(", ")
    );
    let (mut logarithms, mut lowest) = (Vec::new(), f64::INFINITY);
    for operation in OPERATIONS {
        for bytes in SIZES {
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..rounds {
                assert!(on_both(net, &format!("case {operation} {bytes}")), "{TASK}: {operation} {bytes}");
                times[0].push(std::fs::read_to_string(result_file()).unwrap().parse().unwrap());
                for (peer, exe) in loops.iter().enumerate() {
                    times[1 + peer].extend(run(PEERS[peer], exe, &shell, operation, bytes));
                }
            }
            let [ours, one, other] =
                times.map(|mut times| if times.is_empty() { f64::NAN } else { median(&mut times) });
            let ratio = one.min(other) / ours;
            println!("{operation:14}{bytes:>10}{ours:>12.1}{one:>12.1}{other:>12.1}{ratio:>8.2}");
            logarithms.push(ratio.ln());
            lowest = lowest.min(ratio);
        }
    }
    let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
    println!("# geometric mean {mean:.2}, lowest {lowest:.2}");
}

/// The script that MPI starts its ranks with: HOST COMMAND.
fn remote_shell(net: &Net, folder: &Path) -> PathBuf {
    let (hosts, script) = (folder.join("hosts"), folder.join("rsh"));
    std::fs::write(&hosts, "127.0.0.1 localhost\n10.9.0.1 host0\n10.9.0.2 host1\n").unwrap();
    let text = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\n\
         case $host in host0) space={};; *) space={};; esac\n\
         exec ip netns exec $space unshare --uts --ipc --mount sh -c \"echo $host > /proc/sys/kernel/hostname; \
         mount -t tmpfs shm /dev/shm; mount --bind {} /etc/hosts; $*\"\n",
        net.name(0),
        net.name(1),
        hosts.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    script
}

/// The loop, built with what the peer brings.
fn build(peer: &str, folder: &Path) -> PathBuf {
    let (home, exe) = (folder.join(peer), folder.join(format!("loop-{peer}")));
    let done = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    if !home.join("bin/mpicc").exists() {
        done(Command::new("python3").args(["-m", "venv"]).arg(&home));
        done(Command::new(home.join("bin/pip")).args(["install", "-q", peer]));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/hosts/mpi.c");
    let path = format!("{}/bin:{}", home.display(), std::env::var("PATH").unwrap_or_default());
    done(Command::new(home.join("bin/mpicc")).env("PATH", path).arg("-O2").arg(source).arg("-o").arg(&exe));
    exe
}

/// One loop; none, and a line that says so, if it fails.
fn run(peer: &str, exe: &Path, shell: &Path, operation: &str, bytes: usize) -> Option<f64> {
    let home = exe.parent().unwrap().join(peer);
    let (samples, calls) = samples_and_calls(bytes);
    let (shell, exe, bin) = (shell.display(), exe.display(), home.join("bin"));
    let launch = if peer == "openmpi" {
        format!(
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; mpirun --prtemca plm_ssh_agent {shell} \
             --host host0:1,host1:1 -n 2 --map-by node --bind-to none --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0"
        )
    } else {
        format!(
            "export FI_PROVIDER=tcp FI_TCP_IFACE=eth0; mpiexec -launcher ssh -launcher-exec {shell} -hosts host0:1,host1:1 -n 2"
        )
    };
    let line =
        format!("export PATH={}:$PATH; {launch} {exe} {operation} {bytes} {samples} {calls}", bin.display());
    let output = Command::new("timeout").args(["60", &shell.to_string(), "host0", &line]).output().unwrap();
    let time = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
    if time.is_none() {
        eprintln!("{peer} {operation} {bytes}: {}", String::from_utf8_lossy(&output.stderr));
    }
    time
}
