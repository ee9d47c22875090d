//! The command line: nccl-tests' flags with their names and defaults, and ours.

use std::path::PathBuf;

use clap::{ArgAction, Parser};

use crate::datatype::{DataType, Operator};
use crate::failure::{Failure, Outcome};
use crate::sizes::{Step, parse_size, sizes};
use crate::test::Test;

/// Measures and checks the collective operations of an NCCL-compatible library, in host memory.
#[derive(Parser, Clone, Debug)]
#[command(name = "accl-bench", version, disable_help_flag = true, disable_version_flag = true, after_long_help = crate::help::AFTER)]
#[command(after_help = "--help explains every column, unit, formula, exit code and variable.")]
pub(crate) struct Arguments {
    /// The test, with or without _perf; not needed when the program is called by such a name. Or: tune.
    pub(crate) test: Option<String>,

    /// Print help (-h: in short).
    #[arg(short = 'h', long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Print the version of this program.
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
    /// List tests, types and operators.
    #[arg(long)]
    pub(crate) list: bool,
    /// The library to measure; without it libnccl.so.2 beside this program, in ../lib, or where the loader finds it.
    #[arg(long, value_name = "PATH")]
    pub(crate) lib: Option<PathBuf>,

    /// Threads per process; each is a rank.
    #[arg(short = 't', long, default_value_t = 1, value_name = "N")]
    pub(crate) nthreads: usize,
    /// Rank processes to start here; under a launcher more threads per process. ranks = processes x t x g.
    #[arg(short = 'g', long, default_value_t = 1, value_name = "N")]
    pub(crate) ngpus: usize,
    /// Print the commands that would start -g ranks on each of these hosts; the first may have a port: a:47500,b,c.
    #[arg(long, value_name = "NAMES")]
    pub(crate) hosts: Option<String>,
    /// The remote shell in these commands.
    #[arg(long, default_value = "ssh", value_name = "COMMAND")]
    pub(crate) rsh: String,
    /// Smallest size, bytes or with K, M, G (powers of 1024).
    #[arg(short = 'b', long, default_value = "32M", value_parser = parse_size, value_name = "SIZE")]
    pub(crate) minbytes: usize,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "32M", value_parser = parse_size, value_name = "SIZE")]
    pub(crate) maxbytes: usize,
    /// Add this from size to size.
    #[arg(short = 'i', long, default_value = "1M", value_parser = parse_size, value_name = "SIZE")]
    pub(crate) stepbytes: usize,
    /// Multiply by this from size to size, instead of adding; 1.2 is possible.
    #[arg(short = 'f', long, value_name = "FACTOR")]
    pub(crate) stepfactor: Option<f64>,
    /// Timed iterations.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    pub(crate) iters: usize,
    /// Iterations before the timed ones.
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 1, value_name = "N")]
    pub(crate) warmup_iters: usize,
    /// Operations in one group per iteration.
    #[arg(short = 'm', long = "agg_iters", default_value_t = 1, value_name = "N")]
    pub(crate) agg_iters: usize,
    /// Repeat everything; 0: until interrupted.
    #[arg(short = 'N', long = "run_cycles", default_value_t = 1, value_name = "N")]
    pub(crate) run_cycles: usize,
    /// Accepted; threads always create their communicators in parallel here.
    #[arg(short = 'p', long = "parallel_init", default_value_t = 0, value_name = "0/1")]
    pub(crate) parallel_init: u8,
    /// Verification passes per size and placement; 0: none.
    #[arg(short = 'c', long, default_value_t = 1, value_name = "N", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) check: usize,
    /// sum prod min max avg mulsum all; several with commas.
    #[arg(short = 'o', long, default_value = "sum", value_name = "OP")]
    pub(crate) op: String,
    /// int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2 all; several with commas.
    #[arg(short = 'd', long, default_value = "float", value_name = "TYPE")]
    pub(crate) datatype: String,
    /// Root of rooted operations, or all.
    #[arg(short = 'r', long, default_value = "0", value_name = "RANK")]
    pub(crate) root: String,
    /// 1: wait and barrier after each operation; 2: wait only; 3: wait and barrier after each group.
    #[arg(short = 'z', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3), num_args = 0..=1, default_missing_value = "1")]
    pub(crate) blocking: u8,
    /// 1: the NULL stream, the default here; 0: a host stream, where the library has them.
    #[arg(short = 'y', long = "stream_null", value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0/1")]
    pub(crate) stream_null: Option<u8>,
    /// Seconds that one iteration may take; then the run is aborted.
    #[arg(short = 'T', long, value_name = "SECONDS")]
    pub(crate) timeout: Option<f64>,
    /// Graph launches: there are none in host memory; only 0.
    #[arg(short = 'G', long, default_value_t = 0, value_name = "N")]
    pub(crate) cudagraph: u32,
    /// Report CPU time in place of elapsed time.
    #[arg(short = 'C', long = "report_cputime", default_value_t = 0, value_name = "0/1", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) report_cputime: u8,
    /// Add a column with the time of day.
    #[arg(short = 'S', long = "report_timestamps", default_value_t = 0, value_name = "0/1", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) report_timestamps: u8,
    /// The time reported, over the ranks: 0 rank 0's, 1 average, 2 min, 3 max.
    #[arg(short = 'a', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(crate) average: u8,
    /// 1: ncclCommRegister the buffers; 2: windows.
    #[arg(short = 'R', long = "local_register", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2), num_args = 0..=1, default_missing_value = "1")]
    pub(crate) local_register: u8,
    /// CTAPolicy of the communicator's configuration.
    #[arg(short = 'x', long = "cta_policy", value_name = "N")]
    pub(crate) cta_policy: Option<i32>,
    /// Device kernels: there are none in host memory; only 0.
    #[arg(short = 'D', long = "device_implementation", default_value_t = 0, value_name = "N")]
    pub(crate) device_implementation: u32,
    /// Goes with -D; only 0, or nccl-tests' default 16.
    #[arg(short = 'V', long = "device_cta_count", default_value_t = 0, value_name = "N")]
    pub(crate) device_cta_count: u32,
    /// Write results as JSON, version 3 of nccl-tests' form; an existing file is kept, and .N appended to the name.
    #[arg(short = 'J', long = "output_file", value_name = "FILE")]
    pub(crate) output_file: Option<PathBuf>,
    /// Time each iteration: columns i_min i_max i_p99 i_cv% i_p50, and the ranks compared.
    #[arg(short = 'I', long = "per_iter_timing", default_value_t = 0, value_name = "0/1", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) per_iter_timing: u8,
    /// With -I: leave out so many leading iterations.
    #[arg(short = 'K', long = "per_iter_skip", default_value_t = 0, value_name = "N")]
    pub(crate) per_iter_skip: usize,
    /// Report resident memory of each rank's process.
    #[arg(short = 'M', long, default_value_t = 0, value_name = "0/1", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) memory: u8,
    /// Index of the first element, to misalign the buffers.
    #[arg(short = 'u', long, default_value_t = 0, value_name = "N")]
    pub(crate) unalign: usize,

    /// Write results as CSV, one line per size and placement.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Draw time and bus bandwidth over size.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Take buffers from ncclMemAlloc instead of plain memory.
    #[arg(long)]
    pub(crate) mem_alloc: bool,
    /// Under each row: the way that the library chooses for it, predicted and measured time.
    #[arg(long)]
    pub(crate) explain: bool,
    /// With tune: write to this file instead of the cache of this boot.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) output: Option<PathBuf>,
    /// With tune: measure and print, write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Leave out the closing comparison with a memory copy.
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

/// A checked command line.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) test: Test,
    pub(crate) args: Arguments,
    pub(crate) step: Step,
    pub(crate) sizes: Vec<usize>,
    pub(crate) kinds: Vec<DataType>,
    /// One None for tests that do not reduce.
    pub(crate) ops: Vec<Option<Operator>>,
    /// None: every rank.
    pub(crate) root: Option<usize>,
    pub(crate) environment: Environment,
}

/// nccl-tests' variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Environment {
    pub(crate) split: Option<crate::split::Split>,
    pub(crate) min_bandwidth: Option<f64>,
    pub(crate) spread: f64,
}

impl Settings {
    pub(crate) fn new(args: Arguments, program: &str) -> Outcome<Self> {
        let named = Test::parse(program).filter(|_| args.test.is_none());
        let test = match (&args.test, named) {
            (_, Some(test)) => test,
            (Some(name), None) => Test::parse(name)
                .ok_or_else(|| Failure::usage(format!("there is no test \"{name}\"; --list shows all")))?,
            (None, None) => return Err(Failure::usage("which test? --list shows all, --help explains")),
        };
        if args.output.is_some() || args.dry_run {
            return Err(Failure::usage(
                "--output and --dry-run go with tune; files of results are -J, --csv, --plot",
            ));
        }
        check_numbers(&args)?;
        refuse_devices(&args)?;
        let step = match args.stepfactor {
            Some(factor) if factor > 1.0 && factor.is_finite() => Step::Factor(factor),
            Some(factor) => return Err(Failure::usage(format!("-f {factor}: a factor must be more than 1"))),
            None => Step::Bytes(args.stepbytes),
        };
        if args.minbytes > args.maxbytes {
            let text = format!("-b {} is more than -e {}: no size to measure", args.minbytes, args.maxbytes);
            return Err(Failure::usage(text));
        }
        if step == Step::Bytes(0) && args.minbytes < args.maxbytes {
            return Err(Failure::usage("-i 0: the sizes would never end"));
        }
        if test == Test::Hypercube && args.agg_iters > 1 {
            let text = "-m: the steps of hypercube need each other's results and cannot share a group";
            return Err(Failure::usage(text));
        }
        let all_ops = || names(&args.op, Operator::parse, &Operator::ALL, "operator", "-o");
        let ops = if test.reduces() { all_ops()?.into_iter().map(Some).collect() } else { vec![None] };
        let kinds = names(&args.datatype, DataType::parse, &DataType::ALL, "type", "-d")?;
        let root = match args.root.as_str() {
            "all" => None,
            text => Some(text.parse().map_err(|_| Failure::usage(format!("-r {text}: a rank, or all")))?),
        };
        let count = if step == Step::Bytes(0) { vec![args.minbytes] } else { vec![] };
        let sizes = if count.is_empty() { sizes(args.minbytes, args.maxbytes, step) } else { count };
        Ok(Self { test, step, sizes, kinds, ops, root, environment: Environment::read()?, args })
    }

    pub(crate) fn per_iteration(&self) -> bool {
        self.args.per_iter_timing != 0
    }

    /// The roots of one pass through the sizes; −1 where there is none.
    pub(crate) fn roots(&self, ranks: usize) -> Vec<i32> {
        match self.root {
            _ if !self.test.rooted() => vec![-1],
            Some(root) => vec![root as i32],
            None => (0..ranks as i32).collect(),
        }
    }
}

fn check_numbers(args: &Arguments) -> Outcome<()> {
    for (flag, value) in
        [("-t", args.nthreads), ("-g", args.ngpus), ("-n", args.iters), ("-m", args.agg_iters)]
    {
        if value == 0 || value > 1_000_000_000 {
            return Err(Failure::usage(format!("{flag} {value}: at least 1")));
        }
    }
    if args.nthreads.saturating_mul(args.ngpus) > 1024 {
        let text = format!("-t {} times -g {}: more than 1024 ranks in one place", args.nthreads, args.ngpus);
        return Err(Failure::usage(text));
    }
    if args.timeout.is_some_and(|seconds| !(seconds > 0.0 && seconds < 1e9)) {
        return Err(Failure::usage("-T: seconds, more than 0"));
    }
    if args.per_iteration_skips_all() {
        return Err(Failure::usage(format!(
            "-K {}: nothing is left of -n {}",
            args.per_iter_skip, args.iters
        )));
    }
    Ok(())
}

/// What only makes sense with a device is refused, not ignored: its numbers would mean something else.
fn refuse_devices(args: &Arguments) -> Outcome<()> {
    let refuse = |flag: &str, what: &str| {
        Err(Failure::usage(format!("{flag}: {what} are of devices; this program measures host memory")))
    };
    if args.cudagraph != 0 {
        return refuse("-G", "graphs");
    }
    if args.device_implementation != 0 {
        return refuse("-D", "kernels that communicate");
    }
    if !matches!(args.device_cta_count, 0 | 16) {
        return refuse("-V", "thread arrays");
    }
    Ok(())
}

impl Arguments {
    fn per_iteration_skips_all(&self) -> bool {
        self.per_iter_timing != 0 && self.per_iter_skip >= self.iters
    }
}

/// One or several names with commas, or all.
fn names<T: Copy>(
    text: &str,
    parse: fn(&str) -> Option<T>,
    all: &[T],
    what: &str,
    flag: &str,
) -> Outcome<Vec<T>> {
    if text == "all" {
        return Ok(all.to_vec());
    }
    let one = |name| {
        parse(name).ok_or_else(|| Failure::usage(format!("{flag} {name}: no such {what}; --list shows all")))
    };
    text.split(',').map(one).collect()
}

impl Environment {
    fn read() -> Outcome<Self> {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        for name in ["MATRIX_FILE", "MATRIX_SCALE", "PRINT_SUMMARY"] {
            let name = format!("NCCL_TESTS_ALLTOALLV_{name}");
            if get(&name).is_some() {
                return Err(Failure::usage(format!(
                    "{name} is not supported; NCCL_TESTS_ALLTOALLV_SPREAD is"
                )));
            }
        }
        let number = |name: &str| {
            let parse = |text: String| match text.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
                _ => Err(Failure::usage(format!("{name}={text}: a number, not negative"))),
            };
            get(name).map(parse).transpose()
        };
        let spread = number("NCCL_TESTS_ALLTOALLV_SPREAD")?.unwrap_or(0.0);
        if spread > 1.0 {
            let text = format!("NCCL_TESTS_ALLTOALLV_SPREAD={spread}: a share, from 0 to 1");
            return Err(Failure::usage(text));
        }
        let masked = get("NCCL_TESTS_SPLIT_MASK").map(|value| format!("&{value}"));
        let split = get("NCCL_TESTS_SPLIT").or(masked);
        let split = split.map(|text| text.parse().map_err(Failure::usage)).transpose()?;
        Ok(Self { split, min_bandwidth: number("NCCL_TESTS_MIN_BW")?, spread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Outcome<Settings> {
        let words = std::iter::once("accl-bench").chain(line.split_whitespace());
        Settings::new(Arguments::try_parse_from(words).expect("words that clap takes"), "accl-bench")
    }

    #[test]
    fn the_usual_line() {
        let settings = settings("all_reduce_perf -b 8 -e 128M -f 2 -g 2").unwrap();
        assert_eq!(settings.test, Test::AllReduce);
        assert_eq!(settings.sizes.len(), 25);
        assert_eq!(settings.kinds, [DataType::Float32]);
        assert_eq!(settings.ops, [Some(Operator::Sum)]);
    }

    #[test]
    fn all_of_everything() {
        let settings = settings("reduce -d all -o all -r all").unwrap();
        assert_eq!((settings.kinds.len(), settings.ops.len()), (12, 6));
        assert_eq!(settings.roots(3), [0, 1, 2]);
        assert_eq!(settings.sizes, [32 << 20]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "nothing",
            "all_reduce -g 0",
            "all_reduce -f 1",
            "all_reduce -b 2M -e 1M",
            "all_reduce -G 1",
            "all_reduce -D 1",
            "all_reduce -V 8",
            "all_reduce -d float99",
            "all_reduce -o xor",
            "broadcast -r x",
            "all_reduce -b 1 -e 2 -i 0",
            "hypercube -m 2",
            "all_reduce -T 0",
            "all_reduce -I -K 20",
            "all_reduce -g 999999999999",
            "all_reduce --dry-run",
            "all_reduce --output x",
        ] {
            assert_eq!(settings(line).unwrap_err().code, crate::failure::Exit::Usage, "{line}");
        }
    }

    #[test]
    fn flags_with_an_optional_value() {
        assert!(settings("all_reduce -I").unwrap().per_iteration());
        assert!(settings("all_reduce -I 1 -n 5").unwrap().per_iteration());
        assert!(!settings("all_reduce -I 0").unwrap().per_iteration());
    }
}
