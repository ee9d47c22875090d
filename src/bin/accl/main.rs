//! `accl`: the small tool beside the library.

mod install;

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
    /// Print the version of this tool.
    Version,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Task::Install { prefix, from } => install::install(&prefix, from),
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
