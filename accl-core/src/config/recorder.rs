//! Where the flight recorder keeps its files: `RECORDER`, `RECORDER_DIR`.

use super::source::Source;
use crate::error::Result;
use crate::os::process;
use std::path::PathBuf;

/// What the settings say of the flight recorder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recorder {
    /// `RECORDER`: whether each communicator keeps a file.
    pub on: bool,
    /// `RECORDER_DIR`: the only directory that may be used, if one is named.
    pub directory: Option<PathBuf>,
}

impl Recorder {
    pub(super) fn from_source(source: &Source) -> Result<Self> {
        let directory = source.text("RECORDER_DIR");
        let directory = (!directory.is_empty()).then(|| PathBuf::from(directory));
        Ok(Self { on: source.switch("RECORDER")?, directory })
    }

    /// What this process's environment and files say.
    pub fn load() -> Result<Self> {
        Self::from_source(&Source::of_process()?)
    }

    /// The directories that may hold files, the first one that can be used first.
    pub fn directories(&self) -> Vec<PathBuf> {
        if let Some(directory) = &self.directory {
            return vec![directory.clone()];
        }
        let own = format!("accl-{}", process::user());
        let runtime =
            std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let parents = [Some(PathBuf::from("/dev/shm")), runtime, Some(PathBuf::from("/tmp"))];
        parents.into_iter().flatten().map(|parent| parent.join(&own)).collect()
    }
}
