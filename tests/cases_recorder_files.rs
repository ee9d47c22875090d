//! The flight recorder's files while others read them, beside those of other jobs, from several hosts, and before other users.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "support/status.rs"]
mod asked;
mod support;

use asked::{accl, answer, answer_when, scratch, status, status_when};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;
use support::api::{Comm, INT32, SUCCESS, SUM};
use support::cluster::{Cluster, Ended, Rank, Scenario, work};

const SCENARIOS: [(&str, Scenario); 4] = [("churn", churn), ("stay", stay), ("apart", apart), ("sums", sums)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Where a test tells its ranks to stop, and they tell it their process numbers.
fn stop(directory: &Path) -> PathBuf {
    directory.join("stop")
}

fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts ranks whose records go to `records`, and whose argument is `signals`.
fn start(ranks: usize, scenario: &'static str, records: &Path, signals: &Path) -> JoinHandle<Vec<Ended>> {
    let cluster = Cluster::new(ranks, 1).env("ACCL_RECORDER_DIR", records.display());
    let cluster = cluster.argument(signals.display());
    std::thread::spawn(move || cluster.run_to_end(scenario))
}

/// Tells a job to stop, and returns the exit codes.
fn end(job: JoinHandle<Vec<Ended>>, signals: &Path) -> Vec<Option<i32>> {
    std::fs::write(stop(signals), "").unwrap();
    let ended = job.join().unwrap();
    for one in &ended {
        eprint!("{}", one.stderr);
    }
    ended.iter().map(|one| one.code).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Makes and ends communicators until it is told to stop; all ranks hear of that in the same round.
fn churn(rank: Rank) {
    let (api, world) = (rank.api, rank.join());
    for round in 1.. {
        let mut child: Comm = std::ptr::null_mut();
        api.ok(unsafe {
            (api.ncclCommSplit)(world, 0, rank.rank as i32, &raw mut child, std::ptr::null_mut())
        });
        assert_eq!(api.sum(round, child), round * rank.ranks as i32);
        api.destroy(child);
        if api.sum(i32::from(stop(Path::new(rank.argument)).exists()), world) > 0 {
            break;
        }
    }
    api.destroy(world);
}

/// One client that asks again and again; every other time it is killed before, while or after it answers.
/// Returns the most operations that a rank was seen to have done.
fn client(number: u64, directory: &Path) -> u64 {
    let mut most = 0;
    for round in 0..200 {
        let mut command = accl(&["status", "--json", "--patience", "60", "--dir"], &[directory]);
        let mut asked = command.stdout(Stdio::piped()).spawn().unwrap();
        if round % 2 == 1 {
            std::thread::sleep(Duration::from_micros((round * 7 + number * 3) % 32 * 300));
            asked.kill().unwrap();
            asked.wait().unwrap();
            continue;
        }
        let (code, found) = answer(&asked.wait_with_output().unwrap());
        assert_eq!(found["errors"], json!([]), "{found}");
        let communicators = found["communicators"].as_array().unwrap();
        assert_eq!(code, if communicators.is_empty() { 3 } else { 0 }, "{found}");
        for communicator in communicators {
            assert_eq!(
                (&communicator["condition"], &communicator["size"]),
                (&"healthy".into(), &4.into()),
                "{found}"
            );
            let ranks = communicator["ranks"].as_array().unwrap();
            most = ranks
                .iter()
                .map(|rank| rank["collectives"]["completed"].as_u64().unwrap())
                .fold(most, u64::max);
        }
    }
    most
}

/// C69: clients that ask as fast as they can, and are killed meanwhile, get valid answers and do no harm.
#[test]
fn status_cannot_hurt() {
    let (directory, signals) = (scratch("churn"), scratch("churn-signals"));
    let job = start(4, "churn", &directory, &signals);
    status_when(&directory, |found| found["ranks"].as_array().is_some_and(|ranks| ranks.len() == 4));
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let directory = directory.clone();
            std::thread::spawn(move || client(number, &directory))
        })
        .collect();
    let seen: Vec<_> = clients.into_iter().map(JoinHandle::join).collect();
    assert_eq!(end(job, &signals), [Some(0); 4]);
    for most in seen {
        assert!(most.unwrap() > 0, "the job was seen at work");
    }
    assert_eq!(names(&directory), [""; 0], "a job that ends well leaves nothing");
    std::fs::remove_dir(directory).unwrap();
    std::fs::remove_dir_all(signals).unwrap();
}

/// Calls until it is told to stop; if a call fails, it waits for that.
fn stay(rank: Rank) {
    let (api, signals) = (rank.api, Path::new(rank.argument));
    let comm = rank.join();
    std::fs::write(signals.join(rank.rank.to_string()), std::process::id().to_string()).unwrap();
    let mut stops = [0];
    while api.all_reduce(&[i32::from(stop(signals).exists())], &mut stops, INT32, SUM, comm) == SUCCESS {
        if stops[0] > 0 {
            return api.destroy(comm);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    wait_for(&stop(signals));
}

fn numbers_of(communicator: &Value, what: &str) -> Vec<u64> {
    let ranks = communicator["ranks"].as_array().into_iter().flatten();
    ranks.map(|rank| rank[what].as_u64().unwrap()).collect()
}

/// What the ranks of [`stay`] say of themselves.
fn pids(signals: &Path, ranks: usize) -> Vec<u64> {
    let read = |rank: usize| std::fs::read_to_string(signals.join(rank.to_string())).unwrap();
    (0..ranks).map(|rank| read(rank).parse().unwrap()).collect()
}

/// True once both jobs have records and have told their process numbers.
fn are_seen(found: &Value, signals: &[&Path; 2]) -> bool {
    let mut sizes: Vec<_> =
        found["communicators"].as_array().unwrap().iter().map(|one| numbers_of(one, "rank").len()).collect();
    sizes.sort_unstable();
    let told = |at: &Path, ranks: usize| {
        (0..ranks).all(|rank| at.join(rank.to_string()).metadata().is_ok_and(|file| file.len() > 0))
    };
    sizes == [2, 3] && told(signals[0], 2) && told(signals[1], 3)
}

#[test]
fn two_jobs_of_one_user_are_told_apart() {
    let (directory, two, three) = (scratch("two"), scratch("two-of-2"), scratch("two-of-3"));
    let jobs = (start(2, "stay", &directory, &two), start(3, "stay", &directory, &three));
    let (code, found) = answer_when(|| status(&directory), |found| are_seen(found, &[&two, &three]));
    assert_eq!((code, &found["errors"]), (0, &json!([])), "{found}");
    let both = found["communicators"].as_array().unwrap();
    assert_ne!(both[0]["communicator"], both[1]["communicator"]);
    for one in both {
        let ranks = one["size"].as_u64().unwrap();
        assert_eq!((&one["condition"], &one["unseen"]), (&"healthy".into(), &json!([])), "{found}");
        assert_eq!(numbers_of(one, "rank"), (0..ranks).collect::<Vec<_>>());
        assert_eq!(numbers_of(one, "pid"), pids(if ranks == 2 { &two } else { &three }, ranks as usize));
    }
    unsafe { libc::kill(pids(&three, 3)[1] as i32, libc::SIGKILL) };
    let is_broken = |found: &Value| found["communicators"][0]["condition"] == "broken";
    let (code, found) = answer_when(|| status(&directory), is_broken);
    let (broken, healthy) = (&found["communicators"][0], &found["communicators"][1]);
    assert_eq!((code, &broken["size"], &healthy["size"]), (2, &3.into(), &2.into()), "{found}");
    assert_eq!((&broken["culprits"], &broken["ranks"][1]["process"]), (&json!([1]), &"dead".into()));
    assert_eq!((&healthy["condition"], &healthy["culprits"]), (&"healthy".into(), &json!([])), "{found}");
    assert!(broken["verdict"].as_str().unwrap().starts_with("rank 1 ended"), "{found}");
    // The other job does not notice, and the records of the broken one outlive both.
    assert_eq!(end(jobs.1, &three), [Some(0), None, Some(0)]);
    let (code, found) = status(&directory);
    assert_eq!((code, &found["communicators"][1]["over"]), (0, &true.into()), "{found}");
    assert_eq!(end(jobs.0, &two), [Some(0); 2]);
    let (code, found) = status(&directory);
    assert_eq!((code, names(&directory).len()), (2, 3), "{found}");
    assert_eq!(
        (found["communicators"].as_array().unwrap().len(), numbers_of(&found["communicators"][0], "rank")),
        (1, vec![0, 1, 2])
    );
    for directory in [directory, two, three] {
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// Each host's ranks have a directory of their own, as hosts do. Rank 3 makes the second call when it is told to.
fn apart(rank: Rank) {
    let (api, place) = (rank.api, Path::new(rank.argument));
    // Before the library has read its settings, and while this process has no other thread that reads the environment.
    unsafe { std::env::set_var("ACCL_RECORDER_DIR", place.join(format!("host-{}", rank.rank % 2))) };
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 4);
    if rank.rank == 3 {
        wait_for(&stop(place));
    }
    let (mine, mut sums) = (vec![1; 100_000], vec![0; 100_000]);
    api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
    assert!(sums.iter().all(|sum| *sum == 4));
    api.destroy(comm);
}

/// Copies records as if they came from a host of this boot: the reader knows nothing of their processes.
fn copy(from: &Path, to: &Path, boot: u64) {
    std::fs::create_dir_all(to).unwrap();
    for name in names(from) {
        // A record that is not complete yet has another name meanwhile.
        let Ok(mut bytes) = std::fs::read(from.join(&name)) else { continue };
        bytes[56..64].copy_from_slice(&boot.to_le_bytes());
        std::fs::write(to.join(name), bytes).unwrap();
    }
}

#[test]
fn records_of_two_hosts_are_explained_together() {
    let place = scratch("hosts");
    let [first, second] = [0, 1].map(|host| place.join(format!("host-{host}")));
    let [copied, other] = [0, 1].map(|host| place.join(format!("copied-{host}")));
    let cluster = Cluster::new(4, 1).hosts(2).argument(place.display());
    let job = std::thread::spawn(move || cluster.run_to_end("apart"));
    wait_for(&first);
    wait_for(&second);
    let explain = |words: &[&str], paths: &[&Path]| accl(words, paths).output().unwrap();
    let ask = || {
        copy(&first, &copied, 1);
        copy(&second, &other, 2);
        answer(&explain(&["explain", "--json"], &[&copied, &other]))
    };
    let (code, found) = answer_when(ask, |found| found["communicators"][0]["condition"] == "still");
    let all = found["communicators"].as_array().unwrap();
    assert_eq!((code, all.len(), &found["errors"]), (1, 1, &json!([])), "{found}");
    assert_eq!((&all[0]["culprits"], &all[0]["unseen"]), (&json!([3]), &json!([])), "{found}");
    assert_eq!(numbers_of(&all[0], "rank"), [0, 1, 2, 3]);
    assert_eq!(all[0]["operation"]["number"], 2);
    let states = all[0]["ranks"].as_array().unwrap().iter().map(|rank| &rank["process"]);
    assert!(states.into_iter().all(|state| state == "of another host"), "{found}");
    let text = String::from_utf8(explain(&["explain"], &[&copied, &other]).stdout).unwrap();
    let verdict = "rank 3 has not called AllReduce(100000 × int32, sum) (collective #2)";
    assert!(text.contains(verdict) && text.contains("4 of 4 ranks have records"), "{text}");
    assert!(!text.contains("no record"), "{text}");
    // One host alone knows less, and says so.
    let text = String::from_utf8(explain(&["explain"], &[&copied]).stdout).unwrap();
    assert!(
        text.contains("2 of 4 ranks have records") && text.contains("ranks 1,3: no record here"),
        "{text}"
    );
    assert_eq!(end(job, &place), [Some(0); 4]);
    assert_eq!((names(&first), names(&second)), (vec![], vec![]));
    std::fs::remove_dir_all(place).unwrap();
}

/// Users that nobody else is. Each test has its own, whose records lie in one place.
const OTHERS: [u32; 2] = [64_321, 64_322];

/// False, and says so, if this test cannot be another user for a while.
fn can_be_another_user(user: u32, test: &str) -> bool {
    let refused = if unsafe { libc::geteuid() } != 0 {
        "it must run as root to become another user".to_string()
    } else {
        match accl(&["version"], &[]).uid(user).current_dir("/").output() {
            Ok(_) => return true,
            Err(error) => format!("user {user} cannot start accl: {error}"),
        }
    };
    eprintln!("SKIPPED: {test}: {refused}");
    false
}

/// C47: another user sees nothing of ours, whatever the directory's mode, and hurts nothing.
#[test]
fn another_user_sees_nothing() {
    let other = OTHERS[0];
    if !can_be_another_user(other, "another_user_sees_nothing") {
        return;
    }
    let (directory, signals) = (scratch("users"), scratch("users-signals"));
    let job = start(2, "stay", &directory, &signals);
    let seen = status_when(&directory, |found| numbers_of(found, "rank") == [0, 1]);
    assert_eq!((seen.0, &seen.1["condition"]), (0, &"healthy".into()));
    let as_other =
        |words: &[&str], paths: &[&Path]| accl(words, paths).uid(other).current_dir("/").output().unwrap();
    for words in [&["status", "--json", "--dir"][..], &["explain", "--json"]] {
        let refused = as_other(words, &[&directory]);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), &refused.stdout[..]), (Some(1), &b""[..]), "{text}");
        let named = format!("cannot read {}", directory.display());
        assert!(text.contains(&named) && text.contains("Permission denied"), "{text}");
    }
    // By itself it looks where that user's own files would be.
    let (code, found) = answer(&as_other(&["status", "--json"], &[]));
    assert_eq!((code, &found["communicators"], &found["errors"]), (3, &json!([]), &json!([])), "{found}");
    // The files are private, too.
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (code, found) = answer(&as_other(&["status", "--json", "--dir"], &[&directory]));
    assert_eq!((code, &found["communicators"]), (3, &json!([])), "{found}");
    let errors = found["errors"].as_array().unwrap();
    let named =
        |error: &Value| error.as_str().is_some_and(|text| text.contains("cannot open it: Permission denied"));
    assert_eq!((errors.len(), errors.iter().all(named)), (2, true), "{found}");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(end(job, &signals), [Some(0); 2]);
    assert_eq!(names(&directory), [""; 0]);
    std::fs::remove_dir(directory).unwrap();
    std::fs::remove_dir_all(signals).unwrap();
}

/// C47: jobs of two users at the same time, each with its records where it finds a place by itself.
#[test]
fn jobs_of_two_users_do_not_meet() {
    let other = OTHERS[1];
    if !can_be_another_user(other, "jobs_of_two_users_do_not_meet") {
        return;
    }
    let (ours, theirs) = (scratch("ours"), scratch("theirs"));
    std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut become_other = Command::new("setpriv");
    let user = other.to_string();
    become_other.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    let job = |cluster: Cluster, signals: &Path| {
        let cluster = cluster.argument(signals.display());
        std::thread::spawn(move || cluster.run_to_end("stay"))
    };
    let jobs = (job(Cluster::new(2, 1), &ours), job(Cluster::new(3, 1).by(&become_other), &theirs));
    let ask = |user: u32| {
        let mut command = accl(&["status", "--json", "--patience", "60"], &[]);
        answer(&command.uid(user).current_dir("/").output().unwrap())
    };
    let (code, found) =
        answer_when(|| ask(other), |found| numbers_of(&found["communicators"][0], "rank") == [0, 1, 2]);
    assert_eq!((code, found["communicators"].as_array().unwrap().len()), (0, 1), "{found}");
    let mut of_others = pids(&theirs, 3);
    assert_eq!(numbers_of(&found["communicators"][0], "pid"), of_others);
    // Other tests of this user may have jobs, too.
    let all_pids = |found: &Value| -> Vec<u64> {
        found["communicators"].as_array().unwrap().iter().flat_map(|one| numbers_of(one, "pid")).collect()
    };
    let are_ours = |found: &Value| {
        let told = (0..2).all(|rank| ours.join(rank.to_string()).metadata().is_ok_and(|file| file.len() > 0));
        told && pids(&ours, 2).iter().all(|pid| all_pids(found).contains(pid))
    };
    let (_, found) = answer_when(|| ask(0), are_ours);
    of_others.retain(|pid| all_pids(&found).contains(pid));
    assert_eq!(of_others, [0; 0], "{found}");
    assert_eq!(end(jobs.1, &theirs), [Some(0); 3]);
    assert_eq!(end(jobs.0, &ours), [Some(0); 2]);
    assert_eq!(ask(other).0, 3, "a job that ends well leaves no records");
    let _ = std::fs::remove_dir(format!("/dev/shm/accl-{other}"));
    for directory in [ours, theirs] {
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// C47: neither `/tmp` nor `/dev/shm` can be written to.
#[test]
fn nothing_needs_a_place_for_files() {
    let script = "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp && mount -t tmpfs -o ro none /dev/shm && exec \"$@\"";
    let mut within = Command::new("unshare");
    within.args(["--mount", "sh", "-c", script, "sh"]);
    let tried = Command::new("unshare").args(["--mount", "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: nothing_needs_a_place_for_files needs mount namespaces");
    }
    let cluster = Cluster::new(3, 2).by(&within).env("XDG_RUNTIME_DIR", "/nowhere");
    let cluster = cluster.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", "/dev/stderr");
    for text in cluster.run("sums") {
        assert_eq!(text.matches("no flight recorder").count(), 1, "{text}");
        assert!(text.contains("/dev/shm/accl-") && text.contains("Read-only file system"), "{text}");
    }
}

/// Small, staged and large sums.
fn sums(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    for count in [1, 5_000, 3_000_000] {
        let (mine, mut sums) = (vec![rank.rank as i32; count], vec![0; count]);
        api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
        let sum = (rank.ranks * (rank.ranks - 1) / 2) as i32;
        assert!(sums.iter().all(|one| *one == sum));
    }
    api.destroy(comm);
}
