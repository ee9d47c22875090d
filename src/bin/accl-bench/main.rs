//! `accl-bench`: the bandwidth and correctness test for NCCL-compatible libraries in host memory.
//!
//! Roles. The *hub* starts or meets the ranks, prints and writes files; it never calls the library. *Ranks* open
//! the library, measure and verify; each is a thread, of processes started by the hub ([`start`]) or by a launcher
//! ([`meet`]). They talk over sockets ([`message`]) and, where we started them, wait for each other in a shared page
//! ([`page`]).

mod args;
mod buffer;
mod calls;
mod csv;
mod datatype;
mod failure;
mod help;
mod hosts;
mod hub;
mod json;
mod launch;
mod library;
mod link;
mod machine;
mod measure;
mod meet;
mod message;
mod page;
mod pattern;
mod plot;
mod progress;
mod rank;
mod report;
mod row;
mod sizes;
mod split;
mod start;
mod stats;
mod table;
mod test;
mod tune;
mod verify;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;

use crate::args::{Arguments, Settings};
use crate::datatype::{DataType, Operator};
use crate::failure::{Exit, Failure, Outcome};
use crate::hub::Hub;
use crate::launch::{Launch, Meeting};
use crate::library::Library;
use crate::link::{Link, Socket};
use crate::message::{Hello, ToHub};
use crate::page::Page;
use crate::progress::{Progress, Watched};
use crate::rank::Seat;
use crate::report::Report;
use crate::start::Assignment;
use crate::test::Test;

fn main() -> ExitCode {
    let args = Arguments::parse();
    if args.list {
        list();
        return ExitCode::SUCCESS;
    }
    match run(args) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            eprintln!("accl-bench: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

fn list() {
    let names = |names: Vec<&str>| names.join(" ");
    println!("tests:     {}", names(Test::ALL.map(Test::name).to_vec()));
    println!("types:     {}", names(DataType::ALL.map(DataType::name).to_vec()));
    println!("operators: {}", names(Operator::ALL.map(Operator::name).to_vec()));
}

fn run(args: Arguments) -> Outcome<Exit> {
    if let Some(names) = &args.hosts {
        let given: Vec<_> = std::env::args().skip(1).collect();
        return hosts::run(names, &args, &given);
    }
    if args.test.as_deref() == Some("tune") {
        return tune::run(&args);
    }
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let settings = Settings::new(args, &program)?;
    if let Some(assignment) = start::assignment()? {
        return be_ranks(assignment, &settings);
    }
    let parent = std::os::unix::process::parent_id();
    match launch::detect(&|name| std::env::var(name).ok(), parent)? {
        Launch::Person => be_hub(settings),
        Launch::Joined { rank, size, meeting, job } => join(settings, (rank, size), &meeting, &job),
        Launch::Lonely(seen) => {
            let Some(_held) = meet::first_of_copies(parent) else {
                eprintln!(
                    "accl-bench: {seen}: cannot join, and another copy runs alone; this one does nothing"
                );
                return Ok(Exit::Good);
            };
            eprintln!(
                "accl-bench: a launcher seems to be at work, but there is {seen}: this copy runs alone"
            );
            be_hub(settings)
        }
    }
}

fn limit(settings: &Settings) -> Option<Duration> {
    settings.args.timeout.map(Duration::from_secs_f64)
}

fn system(what: &str) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(Exit::Died, format!("{what}: {error}"))
}

/// Started by a person: starts the ranks.
fn be_hub(settings: Settings) -> Outcome<Exit> {
    let out = std::io::stdout().as_fd().try_clone_to_owned().map_err(system("stdout"))?;
    let (processes, threads) = (settings.args.ngpus, settings.args.nthreads);
    let limit = limit(&settings);
    let report = Report::new(settings, File::from(out))?;
    hub::catch_signals();
    let events = hub::events();
    let started = start::start(processes, threads, &events.0)?;
    let hub = Hub::new(started.connections, events, Some(started.processes), limit, report);
    Ok(hub.map_err(system("cannot listen to the ranks"))?.run())
}

/// A process that the hub started.
fn be_ranks(assignment: Assignment, settings: &Settings) -> Outcome<Exit> {
    let Assignment { first, ranks, page, sockets } = assignment;
    let sockets = sockets.into_iter().map(Socket::Unix).collect();
    let place = Place {
        first,
        ranks,
        neighbours: ranks,
        job: String::new(),
        page: Some(Arc::new(page)),
        leave: true,
    };
    let code = sit_down(&place, sockets, settings)?;
    // SAFETY: Ends the process without waiting for threads of the library.
    unsafe { libc::_exit(code) }
}

/// Started by a launcher: rank 0's process is also the hub.
fn join(settings: Settings, (process, size): (usize, usize), meeting: &Meeting, job: &str) -> Outcome<Exit> {
    let threads = settings.args.nthreads * settings.args.ngpus;
    let ranks = threads * size;
    // Each joins with as much memory as its host must give to all: exact on one host, cautious on several.
    let neighbours = match meeting {
        Meeting::Local(_) => ranks,
        Meeting::Tcp { .. } => threads,
    };
    let place = Place {
        first: process * threads,
        ranks,
        neighbours,
        job: job.to_string(),
        page: None,
        leave: process != 0,
    };
    let connect = || (0..threads).map(|_| meet::connect(meeting)).collect::<Outcome<Vec<_>>>();
    if process != 0 {
        let code = sit_down(&place, connect()?, &settings)?;
        // SAFETY: Ends the process without waiting for threads of the library.
        unsafe { libc::_exit(code) }
    }
    let out = private_stdout().map_err(system("stdout"))?;
    let listener = meet::Listener::open(meeting)?;
    let limit = limit(&settings);
    let report = Report::new(settings.clone(), out)?;
    hub::catch_signals();
    let sockets = connect()?;
    let own = std::thread::Builder::new().name("bench-ranks".into()).spawn(move || {
        if let Err(failure) = sit_down(&place, sockets, &settings) {
            eprintln!("accl-bench: {failure}");
        }
    });
    own.map_err(system("cannot start a thread"))?;
    let (hellos, connections) = listener.gather(ranks, job)?;
    drop(listener);
    let events = hub::events();
    for (rank, hello) in hellos.into_iter().enumerate() {
        // Into the same channel as all that follows.
        let _ = events.0.send(hub::Event::Said(rank, ToHub::Hello(hello)));
    }
    let hub = Hub::new(connections, events, None, limit, report);
    let exit = hub.map_err(system("cannot listen to the ranks"))?.run();
    // SAFETY: Ends the process without waiting for threads of the library.
    unsafe { libc::_exit(exit as i32) }
}

/// Keeps stdout for the table: what the library prints in this process goes to stderr.
fn private_stdout() -> std::io::Result<File> {
    let kept = std::io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: Only takes numbers.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(File::from(kept))
}

/// The ranks of this process.
struct Place {
    first: usize,
    ranks: usize,
    neighbours: usize,
    job: String,
    page: Option<Arc<Page>>,
    /// Whether this process leaves as soon as the hub says so.
    leave: bool,
}

/// Runs the ranks of this process, a thread each, and returns the code to leave with.
fn sit_down(place: &Place, sockets: Vec<Socket>, settings: &Settings) -> Outcome<i32> {
    let link = |socket| Link::new(socket, place.leave).map(Arc::new);
    let links: Vec<Arc<Link>> = sockets
        .into_iter()
        .map(link)
        .collect::<Result<_, _>>()
        .map_err(system("cannot listen to the hub"))?;
    for (local, link) in links.iter().enumerate() {
        link.send(&ToHub::Hello(Hello {
            job: place.job.clone(),
            rank: place.first + local,
            pid: std::process::id(),
            host: machine::host(),
            processor: machine::processor(),
            device: if place.page.is_some() { place.first + local } else { local },
        }));
    }
    let library = match Library::open(settings.args.lib.as_deref()) {
        Ok(library) => Arc::new(library),
        Err(failure) => {
            links.iter().for_each(|link| link.send(&ToHub::Failed(failure.clone())));
            return Ok(links[0].wait_for_stop());
        }
    };
    let seats: Vec<Seat> = links
        .iter()
        .enumerate()
        .map(|(local, link)| Seat {
            rank: place.first + local,
            ranks: place.ranks,
            neighbours: place.neighbours,
            link: Arc::clone(link),
            page: place.page.clone(),
            progress: Arc::new(Progress::default()),
        })
        .collect();
    if let Some(limit) = limit(settings) {
        let watched = seats.iter().map(|seat| Watched {
            rank: seat.rank,
            progress: Arc::clone(&seat.progress),
            link: Arc::clone(&seat.link),
        });
        progress::watch(Arc::clone(&library), watched.collect(), limit)
            .map_err(system("cannot watch the ranks"))?;
    }
    std::thread::scope(|scope| {
        for seat in &seats {
            let library = &library;
            scope.spawn(move || rank::run(seat, settings, library));
        }
    });
    Ok(links[0].wait_for_stop())
}
