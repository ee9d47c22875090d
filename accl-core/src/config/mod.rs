//! Settings: one table gives name, default and documentation of each; one place reads them.
//!
//! A setting `X` is looked up as `ACCL_X`, then `PCCL_X`, then `NCCL_X`; for each, the environment beats the
//! configuration file ([`Source`]). Settings are read anew whenever a communicator is created, so that programs
//! which change their environment between two communicators (and say so in `NCCL_NO_CACHE`) get what they mean.
//! Names of NCCL that have no effect here are listed, too ([`ACCEPTED`]).

mod accepted;
mod algorithms;
mod driver;
mod log;
mod network;
mod parameters;
mod recorder;
mod source;
mod spelling;
mod table;
mod verbs;

pub use accepted::ACCEPTED;
pub use algorithms::{AlgorithmRule, AlgorithmRules, operation_of};
pub use driver::Driver;
pub use log::{LEVELS, Level, Log, subsystem, subsystems_of};
pub use network::{COMM_ID_BYTES, InterfaceRule, Network, Retries, RootAddress, Sockets, Stagger};
pub use parameters::{Parameter, Value};
pub use recorder::Recorder;
pub use source::{Origin, Source, cache_directory};
pub use table::{Kind, SETTINGS, Setting};
pub use verbs::{DeviceRule, PluginWish, Range, Verbs};

use crate::error::Result;
use std::time::Duration;

/// The settings of one communicator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `ALGO`: which algorithms may be used for which operation.
    pub algorithms: AlgorithmRules,
    /// `DETERMINISTIC`: results depend on the inputs in rank order only.
    pub deterministic: bool,
    /// `INIT_TIMEOUT`: how long a communicator waits for its ranks to come; `None` is for ever.
    pub init_timeout: Option<Duration>,
    /// `TIMEOUT`: how long an operation may stand still; `None` is for ever.
    pub timeout: Option<Duration>,
    /// `WARN_AFTER`: after how long a wait explains itself on standard error; `None` is never.
    pub warn_after: Option<Duration>,
    /// `CROSS_MEMORY`: read a peer process's memory directly where the kernel allows.
    pub cross_memory: bool,
    /// `EXCHANGE_BYTES`: up to how many bytes of contribution an operation takes the one-step path, if that is not
    /// left to the model.
    pub exchange_bytes: Option<usize>,
    /// `FLAT_BYTES`: up to how many bytes every rank folds all of an AllReduce; the same.
    pub flat_bytes: Option<usize>,
    /// `PASS_BYTES`: from how many bytes on data is copied through links, though it could be read; the same.
    pub pass_bytes: Option<usize>,
    /// `STAGE_BYTES`: from how many bytes on data goes through staging areas; the same.
    pub stage_bytes: Option<usize>,
    /// `STREAM_BYTES`: from how many bytes on results are stored past the caches; the same.
    pub stream_bytes: Option<usize>,
    /// `SEGMENT_BYTES`: how much a pipeline moves at once, rounded down to a power of two.
    pub segment_bytes: usize,
    /// `COMM_BLOCKING`: overrides a communicator's own choice.
    pub comm_blocking: Option<bool>,
    /// `LOCAL_REGISTER`: false makes registration do nothing.
    pub local_register: bool,
    /// `DEBUG` and those that begin so: what is logged, and where to.
    pub log: Log,
    /// `TUNE`: where the figures of the machine come from; `tune::machine` knows the grammar.
    pub tune: String,
    /// `RECORDER`, `RECORDER_DIR`: the flight recorder.
    pub recorder: Recorder,
    /// `DEVICE`, `DRIVER_LIB` and what else is about devices.
    pub driver: Driver,
    /// `SOCKET_IFNAME` and all others about networks.
    pub network: Network,
    /// What was set, and what to say of it.
    pub report: Report,
}

/// What the log tells of the settings.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Settings that somebody has set: the name with its prefix, the value, and where.
    pub given: Vec<(String, String, Origin)>,
    /// The same of names that have no effect here.
    pub without_effect: Vec<(String, String, Origin)>,
    /// What looks like a mistake, a sentence each.
    pub warnings: Vec<String>,
}

impl Report {
    fn of(source: &Source, complaints: Vec<String>) -> Self {
        let given = source.all().filter_map(|(_, value, origin)| {
            let name = origin.full_name()?.to_string();
            Some((name, value, origin))
        });
        let mut warnings = complaints;
        warnings.extend(source.hints());
        Self { given: given.collect(), without_effect: source.without_effect(), warnings }
    }
}

impl Settings {
    /// Reads everything from the environment and the configuration files.
    pub fn load() -> Result<Self> {
        Self::from_source(&Source::of_process()?)
    }

    /// Reads everything from `source`; a value that cannot be understood is refused with its name and origin.
    pub fn from_source(source: &Source) -> Result<Self> {
        algorithms::check_protocols(&source.text("PROTO"))
            .map_err(|error| source.explain("PROTO", &error))?;
        let (log, complaints) = Log::from_source(source);
        Ok(Self {
            algorithms: AlgorithmRules::parse(&source.text("ALGO"))
                .map_err(|error| source.explain("ALGO", &error))?,
            deterministic: source.switch("DETERMINISTIC")?,
            init_timeout: source.seconds("INIT_TIMEOUT")?,
            timeout: source.seconds("TIMEOUT")?,
            warn_after: source.seconds("WARN_AFTER")?,
            cross_memory: source.switch("CROSS_MEMORY")?,
            exchange_bytes: source.optional_bytes("EXCHANGE_BYTES")?,
            flat_bytes: source.optional_bytes("FLAT_BYTES")?,
            pass_bytes: source.optional_bytes("PASS_BYTES")?,
            stage_bytes: source.optional_bytes("STAGE_BYTES")?,
            stream_bytes: source.optional_bytes("STREAM_BYTES")?,
            segment_bytes: 1 << source.bytes("SEGMENT_BYTES")?.clamp(64, 1 << 30).ilog2(),
            comm_blocking: source.optional_switch("COMM_BLOCKING")?,
            local_register: source.switch("LOCAL_REGISTER")?,
            log,
            tune: source.text("TUNE"),
            recorder: Recorder::from_source(source)?,
            driver: Driver::from_source(source)?,
            network: Network::from_source(source)?,
            report: Report::of(source, complaints),
        })
    }
}

/// All that is wrong with the values of `source`, a sentence each: what would be refused, and what only looks like a mistake.
pub fn mistakes(source: &Source) -> (Vec<String>, Vec<String>) {
    // Each setting by itself, as reading them all ends at the first bad one.
    let refused = source.all().filter_map(|(setting, ..)| {
        let error = Settings::from_source(&source.only(setting.name)).err()?;
        Some(error.text().to_string())
    });
    (refused.collect(), Report::of(source, Log::from_source(source).1).warnings)
}

impl Log {
    /// The settings of the log alone: those can always be read.
    pub fn load() -> Result<Self> {
        Ok(Self::from_source(&Source::of_process()?).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_what_the_table_says() {
        let settings = Settings::from_source(&Source::of_pairs(&[])).unwrap();
        assert_eq!(settings.timeout, None);
        assert_eq!(settings.warn_after, Some(Duration::from_secs(10)));
        assert_eq!(settings.init_timeout, Some(Duration::from_secs(300)));
        assert!(settings.cross_memory);
        assert!(!settings.deterministic);
        assert_eq!(settings.comm_blocking, None);
    }

    #[test]
    fn our_prefix_beats_the_others() {
        let pairs = [("NCCL_TIMEOUT", "1"), ("PCCL_TIMEOUT", "2"), ("ACCL_TIMEOUT", "3.5")];
        for (from, expected) in [(0, 3.5), (1, 0.0)] {
            let settings = Settings::from_source(&Source::of_pairs(&pairs[..3 - from])).unwrap();
            let expected = if from == 0 { expected } else { 2.0 };
            assert_eq!(settings.timeout, Some(Duration::from_secs_f64(expected)));
        }
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let pairs = [("ACCL_TIMEOUT", "soon"), ("NCCL_SHM_DISABLE", "2"), ("NCCL_DEBUG", "INFOO")];
        let mut source = Source::of_pairs(&pairs);
        source.add_lines("f", "ACCL_TIMEOT=5");
        let (refused, doubtful) = mistakes(&source);
        assert_eq!(refused.len(), 2);
        assert!(refused[0].contains("NCCL_SHM_DISABLE=2 is not understood"), "{refused:?}");
        assert!(refused[1].contains("ACCL_TIMEOUT=soon is not understood"), "{refused:?}");
        assert!(doubtful[0].starts_with("NCCL_DEBUG=INFOO"), "{doubtful:?}");
        assert!(doubtful[1].ends_with("did you mean ACCL_TIMEOUT?"), "{doubtful:?}");
    }

    #[test]
    fn a_bad_value_is_refused_by_name() {
        let error = Settings::from_source(&Source::of_pairs(&[("ACCL_TIMEOUT", "soon")])).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
        assert!(error.text().contains("ACCL_TIMEOUT=soon"), "{error}");
    }
}
