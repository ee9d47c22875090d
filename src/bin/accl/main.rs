//! `accl`: the small tool beside the library.

mod doctor;
mod env;
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
mod log;
mod run;
mod status;
mod topo;
mod torch;

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
    /// Run a command, and all that it starts, with this library in the place of libnccl.so.2.
    ///
    /// The library is loaded before all others (LD_PRELOAD), and named to programs that open it by a path (VLLM_NCCL_SO_PATH,
    /// SGLANG_NCCL_SO_PATH). A line on standard error says so.
    Run {
        /// The library, as for topo.
        #[arg(long, value_name = "PATH")]
        lib: Option<PathBuf>,
        /// Say nothing.
        #[arg(short, long)]
        quiet: bool,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Copy the shared libraries and headers to PREFIX/lib and PREFIX/include; or put the library into a Python environment.
    Install {
        /// Where to; directories are made as needed, and files of an earlier installation are replaced.
        #[arg(long, value_name = "DIR", required_unless_present = "torch")]
        prefix: Option<PathBuf>,
        /// A Python program: the library takes the place of the libnccl.so.2 that its packages bring (nvidia-nccl, as PyTorch
        /// needs it), which is kept.
        #[arg(long, value_name = "PYTHON", conflicts_with_all = ["prefix", "from"])]
        torch: Option<PathBuf>,
        /// Put the file back that --torch has replaced.
        #[arg(long, requires = "torch")]
        undo: bool,
        /// The library for --torch, as for topo.
        #[arg(long, value_name = "PATH", requires = "torch")]
        lib: Option<PathBuf>,
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
    /// Print every setting, its value, and who has set it: the environment, the line of a file, or nobody.
    ///
    /// Values are those that a communicator would get which a process with this environment makes. Names that look like misspelt
    /// settings are pointed out. Exit code 1: a value would be refused.
    Env {
        /// Print JSON: settings with name, value, default, origin and help; errors; warnings.
        #[arg(long)]
        json: bool,
    },
    /// Show all communicators of this user on this host: what each rank does, and who keeps whom waiting.
    ///
    /// Reads the flight recorder's files and nothing else: no job notices it, and it works after the job's end. Exit code 0: healthy;
    /// 1: something stands still for longer than --patience, or a process is stopped; 2: a rank is dead, or an operation has failed;
    /// 3: nothing was found. Communicators whose processes have all ended count only if no other is there.
    Status {
        /// Look once a second, until interrupted.
        #[arg(long)]
        watch: bool,
        /// Print JSON: code, communicators, errors.
        #[arg(long)]
        json: bool,
        /// After how many seconds of waiting a rank is said to stand still.
        #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
        patience: f64,
        /// Where the files are; without it where the library puts them (ACCL_RECORDER_DIR).
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Say who is at fault where a job stands still or has ended, from the flight recorder's files of one or many hosts.
    ///
    /// Three lines for each communicator, then details. The exit code is that of status.
    Explain {
        /// Files, or directories with files, perhaps copied from several hosts; without any, those of this host.
        paths: Vec<PathBuf>,
        /// Only records of these processes of this host.
        #[arg(long, value_delimiter = ',', conflicts_with = "paths")]
        pids: Vec<u32>,
        /// Print JSON, as status.
        #[arg(long)]
        json: bool,
    },
    /// Change what processes log that run now: the level, and the subsystems.
    ///
    /// Seen by each process with its next operation, or within a tenth of a second where it waits. Lines go where NCCL_DEBUG_FILE
    /// said when the process began, else to its standard output. Exit code 1: some could not be asked, which is said; 3: no process was found.
    Log {
        /// VERSION, WARN, INFO or TRACE, as in NCCL_DEBUG; or "settings": what the process's own settings say.
        level: String,
        /// The subsystems, as in NCCL_DEBUG_SUBSYS.
        #[arg(long, value_name = "LIST", default_value = "INIT,ENV,BOOTSTRAP")]
        subsys: String,
        /// Processes of this host; without it, all of this user that have communicators.
        #[arg(long, value_delimiter = ',')]
        pids: Vec<u32>,
        /// Where the recorder's files are, as for status.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
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
        Task::Run { lib, quiet, command } => run::run(lib.as_deref(), quiet, &command),
        Task::Install { torch: Some(python), undo: true, .. } => torch::undo(&python),
        Task::Install { torch: Some(python), lib, .. } => torch::install(&python, lib.as_deref()),
        Task::Install { prefix, from, .. } => install::install(&prefix.unwrap_or_default(), from),
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
        Task::Env { json } => match env::run(json) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Task::Status { watch, json, patience, dir } => {
            let patience = std::time::Duration::try_from_secs_f64(patience);
            let patience = patience.map_err(|error| format!("--patience: {error}"));
            let options = patience.map(|patience| status::Options { directory: dir, watch, json, patience });
            match options.and_then(|options| status::status(&options)) {
                Ok(code) => return ExitCode::from(code),
                Err(error) => Err(error),
            }
        }
        Task::Explain { paths, pids, json } => match status::explain(&paths, &pids, json) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Task::Log { level, subsys, pids, dir } => match log::change(&level, &subsys, &pids, dir.as_deref()) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
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
