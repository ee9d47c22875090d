//! The environment, in one place, until the core's table of settings takes over.

/// The setting `name` (without prefix): ours beats PCCL's beats NCCL's.
pub(crate) fn setting(name: &str) -> Option<String> {
    ["ACCL_", "PCCL_", "NCCL_"].iter().find_map(|prefix| std::env::var(format!("{prefix}{name}")).ok())
}
