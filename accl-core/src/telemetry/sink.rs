//! Where log lines go: standard output, or a file of this process.

use crate::os::{network, process};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

/// A place for lines, and the path that it was made of.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    path: Option<String>,
    target: Target,
}

#[derive(Clone, Debug)]
enum Target {
    Output,
    Errors,
    File(Arc<File>),
}

impl Sink {
    /// Standard output.
    pub(super) fn output() -> Self {
        Self { path: None, target: Target::Output }
    }

    /// The place that a pattern names: `before` if that is the same. A file is emptied when it is opened; later lines are
    /// appended, also behind those of other processes.
    pub(super) fn of(pattern: &str, before: Option<Self>) -> io::Result<Self> {
        let path = expand(pattern, host(), process::id());
        if let Some(before) = before.filter(|before| before.path.as_ref() == Some(&path)) {
            return Ok(before);
        }
        let target = match path.as_str() {
            "/dev/stdout" => Target::Output,
            "/dev/stderr" => Target::Errors,
            path => {
                let file = File::options().append(true).create(true).open(path)?;
                // Devices and pipes have nothing to empty.
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                Target::File(Arc::new(file))
            }
        };
        Ok(Self { path: Some(path), target })
    }

    /// Writes a line in one call, so that it is not torn. What cannot be written is lost: a log must not stop a job.
    pub(super) fn write(&self, line: &str) {
        let _ = match &self.target {
            // Beside the buffer of this library's own standard output, which nobody would flush.
            Target::Output => write_all(io::stdout().as_fd(), line.as_bytes()),
            Target::Errors => write_all(io::stderr().as_fd(), line.as_bytes()),
            Target::File(file) => file.as_ref().write_all(line.as_bytes()),
        };
    }
}

fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to.as_fd(), bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// This host's name up to its first dot.
pub(super) fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| network::host_name().split('.').next().unwrap_or_default().to_string())
}

/// %h is the host, %p the process, %% a percent sign; all else stays.
fn expand(pattern: &str, host: &str, pid: u32) -> String {
    let mut path = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            path.push(letter);
            continue;
        }
        match letters.next() {
            Some('h') => path.push_str(host),
            Some('p') => path.push_str(&pid.to_string()),
            Some('%') | None => path.push('%'),
            Some(other) => path.extend(['%', other]),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_host_and_process() {
        assert_eq!(expand("/tmp/%h.%p.log", "node1", 12), "/tmp/node1.12.log");
        assert_eq!(expand("100%% %x%", "node1", 12), "100% %x%");
    }

    #[test]
    fn a_file_is_emptied_once_and_kept_open() {
        let path = std::env::temp_dir().join(format!("accl-sink-{}", std::process::id()));
        std::fs::write(&path, "of before\n").unwrap();
        let pattern = path.display().to_string().replace(&std::process::id().to_string(), "%p");
        let first = Sink::of(&pattern, None).unwrap();
        first.write("one\n");
        Sink::of(&pattern, Some(first)).unwrap().write("two\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        std::fs::remove_file(path).unwrap();
        assert!(Sink::of("/nowhere/at/all", None).is_err());
    }
}
