//! `accl`: the small tool beside the library.

mod doctor;
#[path = "../accl-bench/failure.rs"]
#[allow(dead_code, reason = "accl-bench uses the rest")]
mod failure;
mod install;
#[path = "../accl-bench/launch.rs"]
#[allow(dead_code, reason = "accl-bench uses the rest")]
mod launch;
#[path = "../accl-bench/library.rs"]
#[allow(dead_code, reason = "accl-bench uses the rest")]
mod library;
mod topo;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tools for ACCL-P, the collective communication library.
#[derive(Parser, Debug)]
#[command(name = "accl", version)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Copy the shared libraries and headers to PREFIX/lib and PREFIX/include.
    Install {
        /// Where to; directories are made as needed, and files of an earlier installation are replaced.
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
        /// The directory with libaccl.so, libnccl.so and libpccl.so; without it, that of this program.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
    },
    /// Show hosts, ranks, interfaces, and by what each pair of ranks is connected, and why.
    ///
    /// Starts ranks on this host, or joins those of a launcher: mpirun, srun, torchrun, or ACCL_RANK and ACCL_WORLD, with
    /// ACCL_ROOT=host:port, a free port of rank 0's host. Rank 0 prints.
    Topo {
        /// Rank processes to start here.
        #[arg(short = 'g', long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
        ngpus: u16,
        /// Print JSON: ranks, hosts, pairs.
        #[arg(long)]
        json: bool,
        /// The library; without it libnccl.so.2 beside this program, in ../lib, or where the loader finds it.
        #[arg(long, value_name = "PATH")]
        lib: Option<PathBuf>,
    },
    /// Check limits, interfaces, ports, shared memory, cores and drivers, each with a remedy. Exit code 1: a failure.
    Doctor {
        /// Print JSON: state (ok, warn, fail), and the checks with name, state, found and remedy.
        #[arg(long)]
        json: bool,
        /// The library, as for topo.
        #[arg(long, value_name = "PATH")]
        lib: Option<PathBuf>,
    },
    /// A rank that topo has started; the unique id comes on standard input.
    #[command(hide = true)]
    TopoRank {
        rank: usize,
        ranks: usize,
        #[arg(long)]
        json: bool,
        #[arg(long)]
        lib: Option<PathBuf>,
    },
    /// Reads a word of a process that doctor runs in.
    #[command(hide = true)]
    DoctorProbe { pid: i32, address: usize },
    /// Print the version of this tool.
    Version,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Task::Install { prefix, from } => install::install(&prefix, from),
        Task::Topo { ngpus, json, lib } => {
            let options = topo::Options { ranks: usize::from(ngpus), json, library: lib.as_deref() };
            topo::run(&options).map_err(|failure| failure.to_string())
        }
        Task::TopoRank { rank, ranks, json, lib } => {
            let options = topo::Options { ranks, json, library: lib.as_deref() };
            topo::be_started_rank(rank, ranks, &options).map_err(|failure| failure.to_string())
        }
        Task::Doctor { json, lib } => match doctor::run(json, lib.as_deref()) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(failure) => Err(failure.to_string()),
        },
        Task::DoctorProbe { pid, address } => {
            return if doctor::probe(pid, address) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Task::Version => {
            println!("accl {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("accl: {error}");
            ExitCode::FAILURE
        }
    }
}
