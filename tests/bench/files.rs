//! JSON, CSV and the picture.

use std::time::Duration;

use serde_json::Value;

use crate::runs::*;
use crate::support;

#[test]
fn files_hold_what_the_table_shows() {
    let directory = scratch("machines");
    let (first, csv) = (directory.join("out.json"), directory.join("out.csv"));
    let mut command = on_shim("reduce -b 4 -e 64 -f 4 -d all -o all -r all -g 2 -n 2 -S");
    command.envs([("SHIM_CALL_US", "50"), ("SHIM_PRINT", "1"), ("NCCL_DEBUG", "INFO")]);
    let output = support::run(command.arg("-J").arg(&first).arg("--csv").arg(&csv));
    let rows = rows(&output.stdout);
    let document = json(&first);
    let results = document["results"].as_array().unwrap();
    // 4, 16, 64 bytes; 12 types; 6 operators; 2 roots.
    assert_eq!((rows.len(), results.len()), (3 * 12 * 6 * 2, 3 * 12 * 6 * 2));
    let lines = std::fs::read_to_string(&csv).unwrap();
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 2 * results.len());
    for ((row, result), line) in rows.iter().zip(results).zip(lines[1..].chunks(2)) {
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        assert_eq!(row[0], result["size"].to_string());
        assert_eq!(row[1], result["count"].to_string());
        assert_eq!(
            [&row[2], &row[3], &row[4]].map(String::as_str),
            [
                result["type"].as_str().unwrap(),
                result["redop"].as_str().unwrap(),
                result["root"].as_str().unwrap()
            ]
        );
        assert_eq!(line[0][2], row[0]);
        let time = result["out_of_place"]["time"].as_f64().unwrap();
        assert!((row[5].parse::<f64>().unwrap() - time).abs() <= 0.051, "{row:?} {time}");
        assert!((line[0][8].parse::<f64>().unwrap() - time).abs() < 1e-6);
        assert!(result["out_of_place"]["nwrong"].is_null() && row[8] == "N/A");
    }
    assert_eq!(document["version"], 3);
    assert_eq!(document["nccl_version"], 23007);
    assert_eq!(document["accl_bench"]["status"], "complete");
    assert!(document["accl_bench"]["library_path"].as_str().unwrap().ends_with("libshim.so"));
    assert!(document["args"].as_array().unwrap().len() > 5 && document["end_time"].is_string());
    assert!(document["env"].as_array().unwrap().contains(&Value::from("NCCL_DEBUG=INFO")));
    // What the library printed is not in the table.
    assert!(
        text(&output.stderr).contains("shim: operation") && !text(&output.stdout).contains("shim: operation")
    );
    // A second run takes another name.
    support::run(on_shim("reduce -b 4 -e 4 -n 1").arg("-J").arg(&first).arg("--csv").arg(&csv));
    assert_eq!(json(&directory.join("out.json.1"))["results"].as_array().unwrap().len(), 1);
    assert!(directory.join("out.csv.1").is_file());
    assert_eq!(json(&first), document);
}

#[test]
fn interrupted_half_way_all_is_kept_and_parses_at_any_point() {
    let directory = scratch("interrupted");
    let (file, csv) = (directory.join("out.json"), directory.join("out.csv"));
    let mut command = on_shim("all_reduce -b 4 -e 64 -i 4 -g 2 -n 5 -N 0");
    let child = spawn(command.arg("-J").arg(&file).arg("--csv").arg(&csv));
    // Parses each time, or is not there.
    assert_eq!(ranks_of_running(&file).len(), 2);
    signal(child.id(), "-INT");
    let (output, took) = within(Duration::from_secs(20), child);
    assert_eq!(code(&output), 130, "{}", text(&output.stderr));
    assert!(took < Duration::from_secs(5));
    let document = json(&file);
    assert_eq!(document["accl_bench"]["status"], "interrupted");
    let results = document["results"].as_array().unwrap().len();
    assert!(results > 0 && rows(&output.stdout).len() == results);
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 1 + 2 * results);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2, "temporary files are left");
}

#[test]
fn a_picture_is_drawn() {
    let file = scratch("picture").join("out.svg");
    let mut command = on_shim("all_reduce -b 1K -e 1M -f 4 -g 2 -n 2 -d float,half");
    support::run(command.env("SHIM_CALL_US", "100").arg("--plot").arg(&file));
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<polyline").count(), 8);
    for word in ["all_reduce, 2 ranks", "Bus bandwidth", "KiB", "MB/s", "µs", "half sum, in place"] {
        assert!(picture.contains(word), "no {word} in the picture");
    }
}
