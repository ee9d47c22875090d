//! The JSON file: nccl-tests' version 3, with what we know beyond under "accl_bench" and "ranks_us".

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::args::Settings;
use crate::failure::{Failure, Outcome};
use crate::message::{Hello, Opened};
use crate::report::Facts;
use crate::row::{Placement, Row};
use crate::sizes::Step;

/// A file that is only ever replaced as a whole: readers see a complete document or none.
#[derive(Debug)]
pub(crate) struct JsonFile {
    path: PathBuf,
}

impl JsonFile {
    /// Takes `wanted`, or the first free of `wanted.1`, `wanted.2`, …, with a first content.
    pub(crate) fn create(wanted: &Path, content: &Value) -> Outcome<Self> {
        let refuse = |path: &Path, error: &std::io::Error| {
            Failure::usage(format!("cannot write {}: {error}", path.display()))
        };
        for path in candidates(wanted) {
            let temporary = write_beside(&path, content).map_err(|error| refuse(&path, &error))?;
            // A link fails where a file exists: two runs never take the same name.
            let linked = std::fs::hard_link(&temporary, &path);
            let _ = std::fs::remove_file(&temporary);
            match linked {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refuse(&path, &error)),
            }
        }
        Err(Failure::usage(format!("no free name beside {}", wanted.display())))
    }

    pub(crate) fn replace(&self, content: &Value) -> std::io::Result<()> {
        std::fs::rename(write_beside(&self.path, content)?, &self.path)
    }
}

/// `FILE`, `FILE.1`, `FILE.2`, …
pub(crate) fn candidates(wanted: &Path) -> impl Iterator<Item = PathBuf> {
    let numbered = |number: u32| {
        let mut name = wanted.as_os_str().to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    (0..10_000).map(numbered)
}

fn write_beside(path: &Path, content: &Value) -> std::io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(name);
    let mut file = std::fs::File::create(&temporary)?;
    serde_json::to_writer_pretty(&mut file, content)?;
    file.write_all(b"\n")?;
    Ok(temporary)
}

/// The whole document.
pub(crate) fn document(settings: &Settings, facts: &Facts, rows: &[Row]) -> Value {
    let opened = facts.opened.as_ref();
    json!({
        "version": 3,
        "start_time": facts.start_time,
        "args": std::env::args().collect::<Vec<_>>(),
        "env": environment(),
        "nccl_version": opened.map(|opened| opened.version),
        "config": config(settings, &facts.hellos, &facts.colors),
        "results": rows.iter().map(|row| result(settings, row)).collect::<Vec<_>>(),
        "out_of_bounds": { "count": facts.wrong, "okay": facts.wrong == 0 },
        "average_bus_bandwidth": { "bandwidth": facts.average_busbw, "okay": match facts.fast_enough {
            Some(okay) => json!(okay),
            None => json!("unchecked"),
        }},
        "end_time": facts.end_time,
        "accl_bench": beyond(facts, opened),
    })
}

/// What nccl-tests does not have.
fn beyond(facts: &Facts, opened: Option<&Opened>) -> Value {
    json!({
        "schema": 1,
        "program_version": env!("CARGO_PKG_VERSION"),
        "status": facts.status,
        "problem": facts.problem,
        "library_path": opened.map(|opened| &opened.path),
        "group_ranks": opened.map(|opened| opened.group_ranks),
        "host": { "name": crate::machine::host(), "processor": crate::machine::processor(),
                  "processors": std::thread::available_parallelism().map_or(0, usize::from) },
        "first_call_us": facts.first_call_us,
        "copy_gbps": facts.copy_gbps,
        "memory_bytes": facts.memory.iter().map(|memory| json!({
            "before": memory.before, "after_init": memory.after_init, "after_run": memory.after_run,
        })).collect::<Vec<_>>(),
    })
}

fn environment() -> Vec<String> {
    const OURS: [&str; 3] = ["NCCL_", "ACCL_", "PCCL_"];
    let relevant = |name: &str| OURS.iter().any(|prefix| name.starts_with(prefix)) && !name.contains("PSK");
    let mut lines: Vec<String> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
        .filter(|(name, _)| relevant(name))
        .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
        .collect();
    lines.sort();
    lines
}

fn config(settings: &Settings, hellos: &[Hello], colors: &[i32]) -> Value {
    let args = &settings.args;
    let device = |(hello, color): (&Hello, &i32)| {
        json!({
            "rank": hello.rank, "group": color, "pid": hello.pid, "hostname": hello.host,
            "device": hello.device, "device_hex": "host", "device_info": hello.processor,
        })
    };
    let mut config = json!({
        "nthreads": args.nthreads,
        "ngpus": args.ngpus,
        "minimum_bytes": args.minbytes,
        "maximum_bytes": args.maxbytes,
        "warmup_iters": args.warmup_iters,
        "iterations": args.iters,
        "aggregated_iterations": args.agg_iters,
        "validation": args.check,
        "graph": 0,
        "blocking_collectives": args.blocking,
        "per_iter_timing": args.per_iter_timing,
        "per_iter_skip": args.per_iter_skip,
        "parallel_init": args.parallel_init != 0,
        "average": args.average,
        "devices": hellos.iter().zip(colors).map(device).collect::<Vec<_>>(),
    });
    let (name, value) = match settings.step {
        Step::Factor(factor) => ("step_factor", json!(factor)),
        Step::Bytes(bytes) => ("step_bytes", json!(bytes)),
    };
    config[name] = value;
    config
}

fn result(settings: &Settings, row: &Row) -> Value {
    let mut result = json!({
        "size": row.size_bytes,
        "count": row.count_elems,
        "type": row.kind,
        "redop": row.op,
        "root": row.root.to_string(),
        "out_of_place": placement(settings, &row.out_of_place),
        "in_place": row.in_place.as_ref().map(|one| placement(settings, one)),
        "actual_iterations": settings.args.iters,
        "experiment_name": format!("{}_perf", settings.test.name()),
    });
    if let Some(explained) = &row.explained {
        result["explained"] = json!({ "way": explained.way, "predicted_us": explained.predicted_us });
    }
    if settings.args.report_timestamps != 0 {
        result["timestamp"] = json!(row.timestamp);
    }
    result
}

fn placement(settings: &Settings, one: &Placement) -> Value {
    let time = if settings.args.report_cputime != 0 { "cpu_time" } else { "time" };
    let mut value = json!({
        "alg_bw": one.algbw,
        "bus_bw": one.busbw,
        "nwrong": one.wrong,
        "ranks_us": one.ranks_us,
    });
    value[time] = json!(one.time_us);
    if let Some(spread) = &one.spread {
        let summary = &spread.summary;
        value["skipped_iterations"] = json!(spread.skipped);
        value["min"] = json!(summary.min);
        value["max"] = json!(summary.max);
        value["avg"] = json!(summary.avg);
        value["p50"] = json!(summary.p50);
        value["p95"] = json!(summary.p95);
        value["p99"] = json!(summary.p99);
        value["stdev"] = json!(summary.stdev);
        value["cv_pct"] = json!(summary.cv_pct);
        value["times_us"] = json!(spread.times_us);
        value["per_process_max_times_us"] =
            json!(spread.ranks.iter().map(|rank| rank.max).collect::<Vec<_>>());
        let rank =
            |rank: &crate::stats::Summary| json!({ "p50": rank.p50, "p99": rank.p99, "max": rank.max });
        value["ranks"] = json!(spread.ranks.iter().map(rank).collect::<Vec<_>>());
        value["slowest_rank"] = json!(spread.slowest().map(|(rank, _)| rank));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_taken_twice() {
        let directory = std::env::temp_dir().join(format!("accl-bench-json-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let wanted = directory.join("out.json");
        let first = JsonFile::create(&wanted, &json!(1)).unwrap();
        let second = JsonFile::create(&wanted, &json!(2)).unwrap();
        assert_eq!(second.path, directory.join("out.json.1"));
        first.replace(&json!({"a": 3})).unwrap();
        assert_eq!(std::fs::read_to_string(&wanted).unwrap(), "{\n  \"a\": 3\n}\n");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
        std::fs::remove_dir_all(directory).unwrap();
        assert!(JsonFile::create(Path::new("/nowhere/x.json"), &json!(1)).is_err());
    }
}
