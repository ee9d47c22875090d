//! Whether a launcher started this process, and what it tells: rank, size, and where the ranks can meet.

use crate::failure::{Failure, Outcome};

/// Where ranks that we did not start ourselves meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Rank 0 listens on this port; the others connect to this host.
    Tcp { host: String, port: u16 },
    /// One host: a socket with this name, in the kernel's own space of names.
    Local(String),
}

/// How this process came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Launch {
    /// By a person: we start the ranks.
    Person,
    /// By a launcher, as one of several.
    Joined { rank: usize, size: usize, meeting: Meeting, job: String },
    /// By a launcher that does not say enough to join; the text says what was seen.
    Lonely(String),
}

/// Rank and size variables of launchers, the surest first, and the launcher's name.
const LAUNCHERS: [(&str, &str, &str); 7] = [
    ("ACCL_RANK", "ACCL_WORLD", "the command line"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),
    ("PMI_RANK", "PMI_SIZE", "mpiexec"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
    ("SLURM_PROCID", "SLURM_NTASKS", "srun"),
    ("PMIX_RANK", "PMIX_SIZE", "prun"),
    ("RANK", "WORLD_SIZE", "torchrun"),
];

/// Reads the environment. `parent` is the process id of our parent: copies on one host share it.
pub(crate) fn detect(get: &dyn Fn(&str) -> Option<String>, parent: u32) -> Outcome<Launch> {
    let get = |name: &str| get(name).filter(|value| !value.is_empty());
    let mut half_seen = None;
    for (rank_name, size_name, launcher) in LAUNCHERS {
        let (rank, size) = (get(rank_name), get(size_name));
        let (Some(rank_text), Some(size_text)) = (&rank, &size) else {
            // A bare RANK or SLURM_NTASKS says little; a size of mpirun's says that there are others.
            if let (None, Some(size)) = (&rank, &size) {
                half_seen
                    .get_or_insert_with(|| format!("{size_name}={size} but no {rank_name} ({launcher})"));
            }
            continue;
        };
        let number = |name: &str, text: &str| {
            text.parse::<usize>().map_err(|_| Failure::usage(format!("{name}={text}: a number was expected")))
        };
        let (rank, size) = (number(rank_name, rank_text)?, number(size_name, size_text)?);
        if rank >= size {
            return Err(Failure::usage(format!("{rank_name}={rank} is not below {size_name}={size}")));
        }
        if size == 1 {
            return Ok(Launch::Person);
        }
        let named = job(&get);
        let meeting = meeting(&get, size, named.as_deref().unwrap_or(&format!("parent-{parent}")))?;
        // An address says enough; processes of several hosts have nothing else in common.
        let job = named.unwrap_or_else(|| "unnamed".into());
        return Ok(Launch::Joined { rank, size, meeting, job });
    }
    let several = |text: &String| !text.contains("=1 ");
    Ok(half_seen.filter(several).map_or(Launch::Person, Launch::Lonely))
}

/// A name that all copies of this job, and no others, can know, if the launcher gives one.
fn job(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let slurm = || Some(format!("{}.{}", get("SLURM_JOB_ID")?, get("SLURM_STEP_ID").unwrap_or_default()));
    get("OMPI_MCA_ess_base_jobid")
        .or_else(|| get("PMIX_NAMESPACE"))
        .or_else(slurm)
        .or_else(|| get("TORCHELASTIC_RUN_ID").filter(|id| id != "none"))
}

fn meeting(get: &dyn Fn(&str) -> Option<String>, size: usize, job: &str) -> Outcome<Meeting> {
    let rendezvous = ["ACCL_BENCH_RENDEZVOUS", "ACCL_ROOT"];
    if let Some((name, text)) = rendezvous.iter().find_map(|name| Some((name, get(name)?))) {
        let wrong = || Failure::usage(format!("{name}={text}: host:port of rank 0 was expected"));
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        return Ok(Meeting::Tcp { host, port: port.parse().map_err(|_| wrong())? });
    }
    if let (Some(host), Some(port)) = (get("MASTER_ADDR"), get("MASTER_PORT")) {
        let port: u16 = port.parse().map_err(|_| Failure::usage(format!("MASTER_PORT={port}: no port")))?;
        // torchrun's own store listens on MASTER_PORT.
        let port = if get("TORCHELASTIC_RUN_ID").is_some() { port.wrapping_add(1) } else { port };
        return Ok(Meeting::Tcp { host, port });
    }
    let elsewhere =
        |name: &str| get(name).and_then(|text| text.parse::<usize>().ok()).is_some_and(|local| local < size);
    let nodes = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
    let several_nodes = nodes.iter().find_map(|name| get(name)).is_some_and(|nodes| nodes != "1");
    if elsewhere("OMPI_COMM_WORLD_LOCAL_SIZE") || elsewhere("MPI_LOCALNRANKS") || several_nodes {
        let text = "the ranks are on several hosts; set ACCL_BENCH_RENDEZVOUS=host:port, a free port of rank 0's \
                    host, for all of them";
        return Err(Failure::usage(text));
    }
    // SAFETY: Always succeeds.
    let user = unsafe { libc::getuid() };
    Ok(Meeting::Local(format!("accl-bench-{user}-{job}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Outcome<Launch> {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
        };
        detect(&find, 77)
    }

    fn joined(launch: Launch) -> (usize, usize, Meeting) {
        match launch {
            Launch::Joined { rank, size, meeting, .. } => (rank, size, meeting),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nobody_or_one_rank_is_a_person() {
        assert_eq!(with(&[]), Ok(Launch::Person));
        assert_eq!(with(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(Launch::Person));
        assert_eq!(with(&[("RANK", "3")]), Ok(Launch::Person));
        assert_eq!(with(&[("WORLD_SIZE", "1")]), Ok(Launch::Person));
    }

    #[test]
    fn each_launcher_is_known() {
        for (rank, size, _) in LAUNCHERS {
            let (rank, size, meeting) = joined(with(&[(rank, "2"), (size, "8")]).unwrap());
            assert_eq!((rank, size), (2, 8));
            assert!(matches!(meeting, Meeting::Local(name) if name.ends_with("parent-77")));
        }
    }

    #[test]
    fn where_to_meet() {
        let torch = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
        let tcp = |port| Meeting::Tcp { host: "a".into(), port };
        assert_eq!(joined(with(&torch).unwrap()).2, tcp(29500));
        let agent = [&torch[..], &[("TORCHELASTIC_RUN_ID", "none")]].concat();
        assert_eq!(joined(with(&agent).unwrap()).2, tcp(29501));
        for name in ["ACCL_BENCH_RENDEZVOUS", "ACCL_ROOT"] {
            let named = [&torch[..], &[(name, "[::1]:5")]].concat();
            assert_eq!(joined(with(&named).unwrap()).2, Meeting::Tcp { host: "::1".into(), port: 5 });
        }
    }

    #[test]
    fn an_address_is_enough_whoever_the_parents_are() {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
        };
        assert_eq!(detect(&find, 1), detect(&find, 2));
    }

    #[test]
    fn several_hosts_need_an_address() {
        let hosts = [("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("SLURM_NNODES", "2")];
        assert!(with(&hosts).unwrap_err().text.contains("ACCL_BENCH_RENDEZVOUS"));
    }

    #[test]
    fn half_a_launcher_is_noticed() {
        assert!(matches!(with(&[("OMPI_COMM_WORLD_SIZE", "8")]), Ok(Launch::Lonely(_))));
        assert!(with(&[("RANK", "8"), ("WORLD_SIZE", "8")]).is_err());
    }
}
