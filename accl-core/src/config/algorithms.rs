//! The grammar of `NCCL_ALGO`: `list;operation:list;…`.
//!
//! A list is names separated by commas; `^` before it means "all but these". A list without an operation is
//! the rule for every operation that has none of its own. Names that NCCL knows and we do not have (NVLS, PAT,
//! …) are legal and name nothing; other names are an error (`abi/clients.md` §3.2).

use crate::error::{Error, Result};
use crate::types::Collective;

/// A set of algorithms, as names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AlgorithmRule {
    inverted: bool,
    names: Vec<String>,
}

/// The rules of one `ALGO` setting.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AlgorithmRules {
    general: Option<AlgorithmRule>,
    special: Vec<(Collective, AlgorithmRule)>,
}

/// What we have.
const OURS: [&str; 4] = ["direct", "ring", "tree", "rd"];
/// What NCCL has besides.
const FOREIGN: [&str; 6] = ["collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree", "pat"];

impl AlgorithmRules {
    /// Parses the setting; the empty text allows everything.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rules = Self::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once(':') {
                None => rules.general = Some(AlgorithmRule::parse(part)?),
                Some((operation, list)) => {
                    let kind = operation_of(operation.trim())?;
                    let rule = AlgorithmRule::parse(list)?;
                    rules.special.retain(|(other, _)| *other != kind);
                    rules.special.push((kind, rule));
                }
            }
        }
        Ok(rules)
    }

    /// True if `algorithm` (one of our names) may be used for `kind`.
    pub fn allow(&self, kind: Collective, algorithm: &str) -> bool {
        let special = self.special.iter().find(|(other, _)| *other == kind).map(|(_, rule)| rule);
        special.or(self.general.as_ref()).is_none_or(|rule| rule.allows(algorithm))
    }

    /// True if nothing is restricted for `kind`.
    pub fn is_open(&self, kind: Collective) -> bool {
        self.general.is_none() && !self.special.iter().any(|(other, _)| *other == kind)
    }
}

impl AlgorithmRule {
    fn parse(list: &str) -> Result<Self> {
        let list = list.trim();
        let (inverted, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
        let mut names = Vec::new();
        for name in
            list.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty())
        {
            let name = if name == "recursivedoubling" { "rd".to_string() } else { name };
            if !OURS.contains(&name.as_str()) && !FOREIGN.contains(&name.as_str()) {
                return Err(Error::argument(format!(
                    "unknown algorithm {name:?}; there are {}",
                    OURS.join(", ")
                )));
            }
            names.push(name);
        }
        Ok(Self { inverted, names })
    }

    fn allows(&self, algorithm: &str) -> bool {
        self.names.iter().any(|name| name == algorithm) != self.inverted
    }
}

/// Refuses a `PROTO` setting that NCCL would refuse. The same grammar; one protocol serves all names here.
pub(super) fn check_protocols(text: &str) -> Result<()> {
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let list = match part.split_once(':') {
            None => part,
            Some((operation, list)) => {
                operation_of(operation.trim())?;
                list
            }
        };
        let names =
            list.trim().trim_start_matches('^').split(',').map(|name| name.trim().to_ascii_lowercase());
        for name in names.filter(|name| !name.is_empty()) {
            if !["simple", "ll", "ll128"].contains(&name.as_str()) {
                return Err(Error::argument(format!(
                    "unknown protocol {name:?}; there are Simple, LL, LL128"
                )));
            }
        }
    }
    Ok(())
}

/// The operation that has this name in settings, in any case.
pub fn operation_of(name: &str) -> Result<Collective> {
    let lower = name.to_ascii_lowercase();
    [
        ("allreduce", Collective::AllReduce),
        ("reduce", Collective::Reduce),
        ("broadcast", Collective::Broadcast),
        ("bcast", Collective::Broadcast),
        ("allgather", Collective::AllGather),
        ("reducescatter", Collective::ReduceScatter),
        ("alltoall", Collective::AllToAll),
        ("gather", Collective::Gather),
        ("scatter", Collective::Scatter),
    ]
    .into_iter()
    .find_map(|(known, kind)| (known == lower).then_some(kind))
    .ok_or_else(|| Error::argument(format!("unknown operation {name:?}; there are allreduce, reduce, broadcast, allgather, reducescatter, alltoall, gather, scatter")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_that_users_write() {
        let rules = AlgorithmRules::parse("ring,tree;allreduce:tree").unwrap();
        assert!(rules.allow(Collective::AllGather, "ring") && rules.allow(Collective::AllGather, "tree"));
        assert!(!rules.allow(Collective::AllGather, "direct"));
        assert!(rules.allow(Collective::AllReduce, "tree") && !rules.allow(Collective::AllReduce, "ring"));

        let rules = AlgorithmRules::parse("^NVLS").unwrap();
        assert!(rules.allow(Collective::AllReduce, "direct"));

        let rules = AlgorithmRules::parse("broadcast:^Ring").unwrap();
        assert!(!rules.allow(Collective::Broadcast, "ring") && rules.allow(Collective::Reduce, "ring"));
        assert!(AlgorithmRules::parse("").unwrap().is_open(Collective::Reduce));
    }

    #[test]
    fn wrong_tokens_are_refused() {
        for text in ["rin", "alreduce:ring", "ring,,x", "^:ring"] {
            assert!(AlgorithmRules::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn protocols_are_checked() {
        for text in ["", "Simple", "^LL", "LL,LL128;allreduce:simple"] {
            assert!(check_protocols(text).is_ok(), "{text}");
        }
        for text in ["SimpleX", "foo:LL", "allreduce:LL256"] {
            assert!(check_protocols(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,60}") {
            let _ = AlgorithmRules::parse(&text);
        }
    }
}
