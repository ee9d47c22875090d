//! Which old records go when a new one is made.

use super::*;
use crate::sync::prim::AtomicUsize;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

/// Whose a file is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// This process's, which keeps it up.
    Live,
    /// This process's, of a communicator that has ended.
    Ended,
    /// That of a process which had this process's number before.
    Reused,
    /// That of a process which never came to give it its name.
    HalfMade,
    /// That of an earlier boot.
    OtherBoot,
    /// That of a process in another PID namespace that lives, and has the file open; and of one that does not.
    Elsewhere { open: bool },
    /// None of ours.
    Foreign,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Live,
        Self::Ended,
        Self::Reused,
        Self::HalfMade,
        Self::OtherBoot,
        Self::Elsewhere { open: true },
        Self::Elsewhere { open: false },
        Self::Foreign,
    ];

    fn is_kept_up(self) -> bool {
        matches!(self, Self::Live | Self::Foreign | Self::Elsewhere { open: true })
    }

    fn name(self, here: &Head, number: usize) -> String {
        let mut head = here.clone();
        match self {
            Self::Reused | Self::HalfMade => head.start += 1,
            Self::OtherBoot => head.boot += 1,
            Self::Elsewhere { .. } => head.pid_namespace += 1,
            Self::Foreign => return format!("notes-{number}.rec"),
            Self::Live | Self::Ended => {}
        }
        head.communicator = number as u64;
        let extension = match self {
            Self::Ended => "end",
            Self::HalfMade => "new",
            _ => "rec",
        };
        Path::new(&name_of(&head)).with_extension(extension).to_string_lossy().into_owned()
    }
}

fn here() -> Head {
    let pid = process::id();
    let start = process::look_at(pid).unwrap().start;
    Head { ranks: 1, pid, start, boot: 7, pid_namespace: 9, ..Head::default() }
}

/// Makes files in a new directory, the first one the oldest, sweeps, and returns what was there and what is left.
fn swept(kinds: &[Kind], here: &Head) -> (Vec<String>, BTreeSet<String>) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("accl-records-{}-{number}", process::id()));
    let opened = PrivateDirectory::open(&directory, true).unwrap();
    let (mut names, mut writers) = (Vec::new(), Vec::new());
    for (age, kind) in kinds.iter().enumerate() {
        let name = kind.name(here, age);
        let file = File::create(directory.join(&name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + age as u64)).unwrap();
        if matches!(kind, Kind::Elsewhere { open: true }) {
            writers.push(file);
        }
        names.push(name);
    }
    let place = Place { name: name_of(here), directory: directory.clone(), opened };
    sweep(&place, here);
    drop(writers);
    let left = std::fs::read_dir(&directory).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    std::fs::remove_dir_all(directory).unwrap();
    (names, left)
}

/// The rule in other words: of the files that nobody keeps up, the last [`KEPT`] stay.
fn to_be_left(kinds: &[Kind], names: &[String]) -> BTreeSet<String> {
    let mut room = KEPT;
    let mut left = BTreeSet::new();
    for (kind, name) in kinds.iter().zip(names).rev() {
        if kind.is_kept_up() {
            left.insert(name.clone());
        } else if room > 0 {
            room -= 1;
            left.insert(name.clone());
        }
    }
    left
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_oldest_that_nobody_keeps_up_go(kinds in prop::collection::vec(prop::sample::select(&Kind::ALL[..]), 0..400)) {
        let (names, left) = swept(&kinds, &here());
        prop_assert_eq!(left, to_be_left(&kinds, &names));
    }
}

#[test]
fn each_kind_alone_is_swept_beyond_the_limit_or_never() {
    for kind in Kind::ALL {
        for count in [KEPT, KEPT + 1, KEPT + 10] {
            let (names, left) = swept(&vec![kind; count], &here());
            let gone = if kind.is_kept_up() { 0 } else { count - KEPT };
            assert_eq!(left, names[gone..].iter().cloned().collect(), "{count} of {kind:?}");
        }
    }
}

#[test]
fn those_of_the_living_take_no_room_from_the_dead() {
    let kinds: Vec<_> = [Kind::Live, Kind::Reused].into_iter().cycle().take(2 * KEPT).collect();
    assert_eq!(swept(&kinds, &here()).1.len(), 2 * KEPT);
}

/// Where it cannot be told who lives, nothing goes.
#[test]
fn nothing_goes_without_start_times() {
    let kinds = [Kind::Reused; KEPT + 10];
    assert_eq!(swept(&kinds, &Head { start: 0, ..here() }).1.len(), KEPT + 10);
}
