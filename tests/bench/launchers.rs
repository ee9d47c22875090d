//! One rank alone, and copies that a launcher has started.

use std::process::{Child, Output};
use std::time::Duration;

use crate::runs::*;
use crate::support;

#[test]
fn one_rank_has_no_bus_bandwidth() {
    let file = scratch("one").join("out.json");
    let output = support::run(on_shim("all_reduce -b 1K -e 1K -n 2").arg("-J").arg(&file));
    let row = &rows(&output.stdout)[0];
    assert_eq!((row[7].as_str(), row[11].as_str()), ("N/A", "N/A"));
    assert!(text(&output.stdout).contains("# Avg bus bandwidth    : N/A (one rank"));
    assert!(json(&file)["average_bus_bandwidth"]["bandwidth"].is_null());
}

#[test]
fn copies_that_a_launcher_starts_join() {
    let torch = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "47311"), ("TORCHELASTIC_RUN_ID", "test")];
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let launchers: [(&str, &str, Variables<'_>); 5] = [
        ("ACCL_RANK", "ACCL_WORLD", &[("ACCL_ROOT", "127.0.0.1:47312")]),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &[]),
        ("PMI_RANK", "PMI_SIZE", &[]),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &[]),
        ("RANK", "WORLD_SIZE", &torch),
    ];
    for (rank_name, size_name, more) in launchers {
        let children: Vec<Child> = (0..8)
            .rev()
            .map(|rank: usize| {
                let mut command = on_shim("all_gather -b 1K -e 4K -f 2 -n 2");
                command.env(rank_name, rank.to_string()).env(size_name, "8").envs(more.iter().copied());
                spawn(command.env("SHIM_CALL_US", "500"))
            })
            .collect();
        let outputs: Vec<Output> =
            children.into_iter().map(|child| within(Duration::from_secs(60), child).0).collect();
        for output in &outputs {
            assert_eq!(code(output), 0, "{rank_name}: {}", text(&output.stderr));
        }
        // The last to start is rank 0, and the only one with something to say.
        let (rank_0, others) = outputs.split_last().unwrap();
        assert_eq!(rows(&rank_0.stdout).len(), 3, "{}", text(&rank_0.stdout));
        assert!(text(&rank_0.stdout).contains("#  Rank  7 "));
        assert!(others.iter().all(|output| output.stdout.is_empty()));
    }
}

#[test]
fn copies_that_cannot_join_run_once_with_a_warning() {
    let children: Vec<Child> = (0..3)
        .map(|_| spawn(on_shim("all_reduce -b 1K -e 1K -n 20").env("OMPI_COMM_WORLD_SIZE", "8")))
        .collect();
    let outputs: Vec<Output> =
        children.into_iter().map(|child| within(Duration::from_secs(60), child).0).collect();
    assert!(
        outputs
            .iter()
            .all(|output| code(output) == 0 && text(&output.stderr).contains("OMPI_COMM_WORLD_SIZE=8"))
    );
    assert_eq!(outputs.iter().filter(|output| !rows(&output.stdout).is_empty()).count(), 1);
}
