//! `--hosts a,b`: the commands that would start the ranks on several hosts. They are printed, not run: who has the keys
//! to other machines is not ours to know.

use crate::args::Arguments;
use crate::failure::{Exit, Failure, Outcome};

/// The port where rank 0's process waits for the others, unless the first host's name has one.
const PORT: u16 = 47_500;

/// Prints one command for each host's processes.
pub(crate) fn run(hosts: &str, args: &Arguments, given: &[String]) -> Outcome<Exit> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::usage(format!("--hosts: this program's own path is not known: {error}")))?;
    for line in commands(hosts, &args.rsh, args.ngpus, &program.to_string_lossy(), given)? {
        println!("{line}");
    }
    Ok(Exit::Good)
}

/// `processes` on each host; the first host may have a port behind a colon.
fn commands(
    hosts: &str,
    rsh: &str,
    processes: usize,
    program: &str,
    given: &[String],
) -> Outcome<Vec<String>> {
    let mut names: Vec<&str> = hosts.split(',').map(str::trim).collect();
    if names.iter().any(|name| name.is_empty()) {
        return Err(Failure::usage(format!("--hosts {hosts}: names with commas between them were expected")));
    }
    let mut port = PORT;
    if let Some((name, text)) = names[0].split_once(':') {
        port = text.parse().map_err(|_| Failure::usage(format!("--hosts {}: no port", names[0])))?;
        names[0] = name;
    }
    let world = names.len() * processes;
    let arguments = ours(given);
    let root = format!("{}:{port}", names[0]);
    Ok((0..world)
        .map(|rank| {
            let start =
                format!("env ACCL_RANK={rank} ACCL_WORLD={world} ACCL_ROOT={root} {program}{arguments}");
            format!("{rsh} {} {} &", names[rank / processes], quoted(&start))
        })
        .chain(["wait".to_string()])
        .collect())
}

/// The arguments without those that are about starting; quoted for a shell.
fn ours(given: &[String]) -> String {
    let mut text = String::new();
    let mut skips = false;
    for argument in given {
        let takes = ["--hosts", "--rsh", "-g", "--ngpus"];
        let joined = takes.iter().any(|name| {
            argument.starts_with(&format!("{name}="))
                || (*name == "-g"
                    && argument.starts_with("-g")
                    && argument != "-g"
                    && !argument.starts_with("--"))
        });
        if skips || joined {
            skips = false;
        } else if takes.contains(&argument.as_str()) {
            skips = true;
        } else {
            text.push(' ');
            text.push_str(&quoted(argument));
        }
    }
    text
}

/// One word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(String::from).collect()
    }

    #[test]
    fn each_rank_has_a_command_that_names_its_host() {
        let given = words("all_reduce -g 2 --hosts a:99,b -b 8 --rsh=ssh -e 1M");
        let lines = commands("a:99,b", "ssh", 2, "/x/accl-bench", &given).unwrap();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[0],
            "ssh a 'env ACCL_RANK=0 ACCL_WORLD=4 ACCL_ROOT=a:99 /x/accl-bench all_reduce -b 8 -e 1M' &"
        );
        assert!(lines[2].starts_with("ssh b 'env ACCL_RANK=2 ACCL_WORLD=4 ACCL_ROOT=a:99 "));
        assert_eq!(lines[4], "wait");
    }

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("-b"), "-b");
        assert_eq!(ours(&words("a -g4 --ngpus 3 b")), " a b");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert!(commands("a,,b", "ssh", 1, "x", &[]).is_err());
        assert!(commands("a:port", "ssh", 1, "x", &[]).is_err());
    }
}
