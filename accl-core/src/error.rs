//! The one error type of the library: a closed, small kind and a text.
//!
//! The kinds map one to one to the result codes of the C faces. The text says what happened, what was needed,
//! what there was, and what to do; its first line alone must be enough.

use rustix::io::Errno;
use rustix::process::Resource;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// Why something failed; the category that C callers see as a code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// A call of the device driver failed.
    Device,
    /// The operating system refused: memory, descriptors, sockets, files.
    System,
    /// A broken invariant of ours.
    Internal,
    /// A bad argument of one call.
    InvalidArgument,
    /// Legal arguments in an illegal situation.
    InvalidUsage,
    /// A peer is gone or unreachable.
    Remote,
    /// Not an error: a non-blocking operation is still running.
    InProgress,
    /// A time limit passed.
    Timeout,
}

impl ErrorKind {
    /// All kinds; a kind's code is its place here, counted from 1.
    pub(crate) const ALL: [Self; 8] = [
        Self::Device,
        Self::System,
        Self::Internal,
        Self::InvalidArgument,
        Self::InvalidUsage,
        Self::Remote,
        Self::InProgress,
        Self::Timeout,
    ];

    /// The kind as it stands in messages and in shared memory.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Device => 1,
            Self::System => 2,
            Self::Internal => 3,
            Self::InvalidArgument => 4,
            Self::InvalidUsage => 5,
            Self::Remote => 6,
            Self::InProgress => 7,
            Self::Timeout => 8,
        }
    }

    /// The kind of a code that somebody else has written.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// A failure with its text. Cloning is cheap: every waiter of a communicator gets the same one.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    text: Arc<str>,
    /// Where in the sources it was made, for the log.
    place: &'static Location<'static>,
}

/// Where it was made does not make a failure another one.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.text) == (other.kind, &other.text)
    }
}

impl Eq for Error {}

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind`; `text` as the module's rule says.
    #[track_caller]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: Arc::from(text.into()), place: Location::caller() }
    }

    /// A bad argument.
    #[track_caller]
    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, text)
    }

    /// An illegal situation.
    #[track_caller]
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidUsage, text)
    }

    /// A broken invariant.
    #[track_caller]
    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, text)
    }

    /// A peer is gone.
    #[track_caller]
    pub fn remote(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Remote, text)
    }

    /// The operating system refused `what`. Where a limit of the process is the reason, the text says which and how high it is.
    #[track_caller]
    pub fn system(what: impl fmt::Display, refusal: impl Refusal) -> Self {
        let limit = refusal.number().map_or_else(String::new, limit_behind);
        Self::new(ErrorKind::System, format!("{what}: {refusal}{limit}"))
    }

    /// A thread could not be started; `what` it is for.
    #[track_caller]
    pub fn thread(what: impl fmt::Display, refusal: impl fmt::Display) -> Self {
        let most = soft_limit(Resource::Nproc);
        let limit = format!(
            "; this user may have {most} threads (ulimit -u), and each process needs up to three of the library's, twelve more that connect \
             it with other hosts, and one for each rank of a group; a container may permit less (pids.max); addresses may be few, too (ulimit -v)"
        );
        Self::system(format_args!("cannot start {what}"), format!("{refusal}{limit}"))
    }

    /// The category.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where in the sources it was made.
    pub fn place(&self) -> &'static Location<'static> {
        self.place
    }

    /// The same kind with `context` before the text.
    #[must_use]
    pub fn within(&self, context: impl fmt::Display) -> Self {
        Self { text: Arc::from(format!("{context}: {}", self.text)), ..self.clone() }
    }
}

/// The system's reason, in words and, if it gave one, as its number.
pub trait Refusal: fmt::Display {
    /// The error number.
    fn number(&self) -> Option<Errno> {
        None
    }
}

impl Refusal for std::io::Error {
    fn number(&self) -> Option<Errno> {
        Errno::from_io_error(self)
    }
}

impl Refusal for Errno {
    fn number(&self) -> Option<Errno> {
        Some(*self)
    }
}

impl<T: Refusal + ?Sized> Refusal for &T {
    fn number(&self) -> Option<Errno> {
        (**self).number()
    }
}

impl Refusal for str {}
impl Refusal for String {}

/// Which limit of the process may be behind an error number, how high it is, and what is needed.
fn limit_behind(number: Errno) -> String {
    match number {
        Errno::MFILE => format!(
            "; this process may have {} open files (ulimit -n), and needs about 64, two for each other process of its host, and one \
             for each connection with other hosts",
            soft_limit(Resource::Nofile)
        ),
        Errno::NOMEM => format!(
            "; this process may have {} KiB of addresses (ulimit -v), and a communicator needs up to 262144 of them; a container \
             may permit less memory (memory.max)",
            rustix::process::getrlimit(Resource::As)
                .current
                .map_or_else(|| "any number of".to_string(), |most| (most / 1024).to_string())
        ),
        _ => String::new(),
    }
}

fn soft_limit(resource: Resource) -> String {
    rustix::process::getrlimit(resource)
        .current
        .map_or_else(|| "any number of".to_string(), |most| most.to_string())
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.kind, self.text)
    }
}

impl std::error::Error for Error {}
