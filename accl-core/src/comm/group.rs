//! Groups: what lies between start and end is carried out together, when the outermost group ends.
//!
//! Depth and contents belong to the thread. Any failure inside drops the whole group: its end returns the last
//! one, and nothing is carried out. A call outside of groups is a group of one, and takes no detour.

use super::{Communicator, Stream, estimate};
use crate::driver;
use crate::engine::{
    Call, HostStream, Job as EngineJob, OneSidedCall, Part, Seat, SelfCopy, Transfer, launch, launch_call,
    run, run_call, run_one_sided, submit, submit_call,
};
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Work of a thread of its own: a communicator that comes to be.
///
/// It is given the error for which its group was dropped, if it was: then it only cleans up, and returns that.
pub(super) type Job = Box<dyn FnOnce(Option<Error>) -> Result<()> + Send>;

/// One call.
#[derive(Debug)]
pub(super) enum Work {
    Collective(Call),
    Transfer(Transfer),
    OneSided(OneSidedCall),
}

#[derive(Debug)]
struct Pending {
    communicator: Communicator,
    work: Work,
    stream: Queue,
}

/// A [`Stream`] that is kept.
#[derive(Clone, Debug)]
enum Queue {
    None,
    Host(HostStream),
    Device(driver::Stream),
}

impl Queue {
    fn of(stream: Stream<'_>) -> Self {
        match stream {
            Stream::None => Self::None,
            Stream::Host(stream) => Self::Host(stream.clone()),
            Stream::Device(stream) => Self::Device(stream),
        }
    }
}

/// A job that begins when the group ends.
struct Deferred {
    job: Job,
    /// True if the group's end waits for it.
    waited: bool,
    /// The key of the communicator that it belongs to.
    key: usize,
}

#[derive(Default)]
struct Group {
    error: Option<Error>,
    calls: Vec<Pending>,
    jobs: Vec<Deferred>,
}

impl Group {
    fn drop_jobs(self, error: &Error) {
        for deferred in self.jobs {
            let _ = (deferred.job)(Some(error.clone()));
        }
    }
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
    /// How many groups are open, one inside the other; apart, so that calls outside of groups look at nothing else.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// How many groups this thread has open, one inside the other.
pub fn depth() -> usize {
    DEPTH.get()
}

/// Opens a group, inside the one that is open if there is one.
pub fn start() {
    DEPTH.set(DEPTH.get() + 1);
}

/// Ends the innermost group; the outermost one is carried out.
pub fn end() -> Result<()> {
    let Some(group) = close()? else { return Ok(()) };
    run_all(in_line(group.jobs))?;
    let mut calls = group.calls;
    let outcome = carry_out(&mut calls);
    give_back(calls);
    outcome
}

/// Ends the innermost group; the outermost one is not carried out, and nothing is left of it. How long it should have taken, in
/// nanoseconds (`estimate`); none for a group inside another one, whose calls belong to that.
pub fn simulate() -> Result<Option<f64>> {
    let Some(group) = close()? else { return Ok(None) };
    if !group.jobs.is_empty() {
        let error = Error::usage(
            "the group makes, splits or ends communicators, and only the time of data calls can be estimated; end it with \
             ncclGroupEnd. The group was dropped",
        );
        group.drop_jobs(&error);
        return Err(error);
    }
    estimate::group_ns(&sort_out(group.calls)?).map(Some)
}

/// Ends the innermost group. The outermost one is returned, or the error for which it is dropped.
fn close() -> Result<Option<Group>> {
    let Some(depth) = DEPTH.get().checked_sub(1) else {
        return Err(Error::usage(
            "ncclGroupEnd without ncclGroupStart; every end needs its start on the same thread",
        ));
    };
    DEPTH.set(depth);
    if depth > 0 {
        return Ok(None);
    }
    // A thread that ends has no variables left, and no calls in its groups.
    let mut group = GROUP.try_with(RefCell::take).unwrap_or_default();
    match group.error.take() {
        Some(error) => {
            group.drop_jobs(&error);
            Err(error)
        }
        None => Ok(Some(group)),
    }
}

/// The next group of this thread has the same memory for its calls, so that a group of few allocates nothing.
fn give_back(mut calls: Vec<Pending>) {
    const KEPT: usize = 64;
    calls.clear();
    calls.shrink_to(KEPT);
    let _ = GROUP.try_with(|group| {
        let kept = &mut group.borrow_mut().calls;
        if kept.capacity() == 0 {
            *kept = calls;
        }
    });
}

/// Jobs of one communicator follow each other: its ranks meet in each, and so must come to them in the same order.
fn in_line(jobs: Vec<Deferred>) -> Vec<Deferred> {
    let mut lines: Vec<Deferred> = Vec::new();
    for next in jobs {
        let same = |line: &Deferred| line.key == next.key && line.waited == next.waited;
        let Some(at) = lines.iter().position(same) else {
            lines.push(next);
            continue;
        };
        let Deferred { job: first, waited, key } = lines.remove(at);
        let job = move |dropped: Option<Error>| {
            let outcome = first(dropped.clone());
            let failure = dropped.or_else(|| outcome.as_ref().err().cloned());
            let then = (next.job)(failure);
            outcome.and(then)
        };
        lines.insert(at, Deferred { job: Box::new(job), waited, key });
    }
    lines
}

/// Runs a group's jobs, and waits for those that its end waits for.
fn run_all(jobs: Vec<Deferred>) -> Result<()> {
    let mut waited_jobs = Vec::new();
    let mut failure = None;
    for Deferred { job, waited, .. } in jobs {
        match &failure {
            Some(error) => drop(job(Some(Error::clone(error)))),
            None if waited => waited_jobs.push(job),
            None => failure = spawn("accl-init", job).err(),
        }
    }
    let Some(error) = failure else { return run_jobs(waited_jobs) };
    waited_jobs.into_iter().for_each(|job| drop(job(Some(error.clone()))));
    Err(error)
}

/// Remembers a failure of a call inside a group; outside of groups it does nothing.
pub fn fail(error: &Error) {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.error = Some(error.clone()));
    }
}

/// How many jobs of the communicator this thread's open group keeps: nobody may wait for them here.
pub(super) fn kept(communicator: &Communicator) -> usize {
    // Asked first: a program may call when this thread's variables are gone, while it ends.
    if !is_open() {
        return 0;
    }
    let key = communicator.key();
    GROUP.with_borrow(|group| group.jobs.iter().filter(|deferred| deferred.key == key).count())
}

/// True if there are some.
pub(super) fn keeps(communicator: &Communicator) -> bool {
    kept(communicator) > 0
}

/// True inside a group.
#[inline]
pub(super) fn is_open() -> bool {
    DEPTH.get() > 0
}

/// Carries a call out, or keeps it until the group ends.
#[inline]
pub(super) fn perform(communicator: &Communicator, work: Work, stream: Stream<'_>) -> Result<()> {
    match (work, stream) {
        (Work::Collective(call), Stream::None) if !is_open() => run_call(&communicator.joined()?.seat, &call),
        (work, stream) => perform_otherwise(communicator, work, stream),
    }
}

/// The same for all but lone calls without a stream, which are not to pay for the rest.
#[inline(never)]
fn perform_otherwise(communicator: &Communicator, work: Work, stream: Stream<'_>) -> Result<()> {
    if communicator.checks_pointers() {
        communicator.check_pointers(&work)?;
    }
    match (work, stream) {
        (Work::Collective(call), Stream::Host(stream)) if !is_open() => {
            submit_call(stream, &communicator.joined()?.seat, &call)
        }
        (Work::Collective(call), Stream::Device(stream)) if !is_open() => {
            launch_call(stream, &communicator.joined()?.seat, &call)
        }
        (Work::OneSided(call), Stream::None) if !is_open() => run_one_sided(&call),
        (work, stream) => {
            let pending = Pending { communicator: communicator.clone(), work, stream: Queue::of(stream) };
            if is_open() {
                GROUP.with_borrow_mut(|group| group.calls.push(pending));
                return Ok(());
            }
            carry_out(&mut vec![pending])
        }
    }
}

/// Keeps a job until the open group ends (which waits for it if `waited`), or starts it in the background.
pub(super) fn defer_or_spawn(communicator: &Communicator, waited: bool, name: &str, job: Job) -> Result<()> {
    let key = communicator.key();
    let mut job = Some(job);
    if is_open() {
        GROUP.with_borrow_mut(|group| group.jobs.extend(job.take().map(|job| Deferred { job, waited, key })));
    }
    job.map_or(Ok(()), |job| spawn(name, job))
}

/// Runs a job in the background. Without a thread it is dropped, with the error that is returned, too.
pub(super) fn spawn(name: &str, job: Job) -> Result<()> {
    let kept = Arc::new(Mutex::new(Some(job)));
    let taken = kept.clone();
    let body = move || {
        let job = taken.lock().take();
        if let Some(job) = job {
            drop(job(None));
        }
    };
    std::thread::Builder::new().name(name.to_string()).spawn(body).map(|_| ()).map_err(|error| {
        let error = Error::thread("a thread for a non-blocking call", error);
        let job = kept.lock().take();
        if let Some(job) = job {
            drop(job(Some(error.clone())));
        }
        error
    })
}

/// Runs jobs at the same time and waits for all of them; the first failure is returned. None begins before all
/// have a thread: ranks that join would wait for the one that has none.
pub(super) fn run_jobs(jobs: Vec<Job>) -> Result<()> {
    if jobs.len() <= 1 {
        return jobs.into_iter().try_for_each(|job| job(None));
    }
    let slots: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let gate = Gate::default();
    let take = |slot: &Mutex<Option<Job>>, dropped: Option<Error>| {
        let job = slot.lock().take();
        job.map_or(Ok(()), |job| job(dropped))
    };
    let (take, gate) = (&take, &gate);
    std::thread::scope(|scope| {
        let start = |slot| {
            let body = move || take(slot, gate.wait());
            std::thread::Builder::new().name("accl-init".to_string()).spawn_scoped(scope, body)
        };
        let started: std::io::Result<Vec<_>> = slots.iter().map(start).collect();
        let failure =
            started.as_ref().err().map(|error| Error::thread("a thread for a rank of a group", error));
        gate.open(failure.clone());
        if let Some(error) = failure {
            slots.iter().for_each(|slot| drop(take(slot, Some(error.clone()))));
            return Err(error);
        }
        let panicked = |_| Err(Error::internal("a thread of a group panicked"));
        let threads = started.into_iter().flatten();
        let outcomes: Vec<_> = threads.map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        outcomes.into_iter().collect()
    })
}

/// Where threads wait for the word to begin, or for the reason not to.
#[derive(Default)]
struct Gate {
    word: Mutex<Option<Option<Error>>>,
    given: Condvar,
}

impl Gate {
    fn open(&self, failure: Option<Error>) {
        *self.word.lock() = Some(failure);
        self.given.notify_all();
    }

    fn wait(&self) -> Option<Error> {
        let mut word = self.word.lock();
        loop {
            match &*word {
                Some(failure) => return failure.clone(),
                None => self.given.wait(&mut word),
            }
        }
    }
}

/// What a group asks of one rank.
pub(super) struct Share {
    pub(super) communicator: Communicator,
    pub(super) part: Part,
}

fn carry_out(calls: &mut Vec<Pending>) -> Result<()> {
    match &calls[..] {
        [] => return Ok(()),
        // What frameworks do: a group around each call.
        [Pending { communicator, work: Work::Collective(call), stream: Queue::Host(stream) }] => {
            return submit_call(stream, &communicator.joined()?.seat, call);
        }
        [Pending { communicator, work: Work::Collective(call), stream: Queue::Device(stream) }] => {
            return launch_call(*stream, &communicator.joined()?.seat, call);
        }
        _ => {}
    }
    let on_device = |pending: &Pending| matches!(pending.stream, Queue::Device(_));
    if calls.iter().any(on_device) {
        let device = calls.extract_if(.., |pending| on_device(pending)).collect();
        carry_out_on_device(device)?;
    }
    carry_out_in_host_memory(calls)
}

/// Each communicator's calls are a launch of their own: they meet on the device.
fn carry_out_on_device(calls: Vec<Pending>) -> Result<()> {
    let mut streams: Vec<(usize, Vec<driver::Stream>)> = Vec::new();
    for pending in &calls {
        let Queue::Device(stream) = pending.stream else { continue };
        let key = pending.communicator.key();
        match streams.iter_mut().find(|(of, _)| *of == key) {
            Some((_, streams)) if streams.contains(&stream) => {}
            Some((_, streams)) => streams.push(stream),
            None => streams.push((key, vec![stream])),
        }
    }
    for share in sort_out(calls)? {
        let key = share.communicator.key();
        let of = |(known, streams): &(usize, Vec<_>)| (*known == key).then(|| streams.clone());
        launch(&streams.iter().find_map(of).unwrap_or_default(), share.part)?;
    }
    Ok(())
}

fn carry_out_in_host_memory(calls: &mut Vec<Pending>) -> Result<()> {
    let mut streams: Vec<HostStream> = Vec::new();
    let mut waits = false;
    for pending in &*calls {
        match &pending.stream {
            Queue::Host(stream) if streams.iter().any(|other| other.is(stream)) => {}
            Queue::Host(stream) => streams.push(stream.clone()),
            Queue::None | Queue::Device(_) => waits = true,
        }
    }
    let mut shares = sort_out(calls.drain(..))?;
    if streams.is_empty() {
        // Every thread takes seats in the same order, so that two of them cannot wait for each other.
        shares.sort_by_key(|share| share.communicator.key());
        let jobs: Vec<(&Seat, EngineJob<'_>)> =
            shares.iter().map(|share| (&*share.part.seat, share.part.job())).collect();
        return run(&jobs);
    }
    let own = if waits { Some(HostStream::create()?) } else { None };
    streams.extend(own.clone());
    submit(&streams, shares.into_iter().map(|share| share.part).collect())?;
    own.map_or(Ok(()), |own| own.synchronize())
}

/// Calls by communicator, in their order.
fn sort_out(calls: impl IntoIterator<Item = Pending>) -> Result<Vec<Share>> {
    let mut shares: Vec<Share> = Vec::new();
    for pending in calls {
        let key = pending.communicator.key();
        let index = match shares.iter().position(|share| share.communicator.key() == key) {
            Some(index) => index,
            None => {
                let seat: Arc<Seat> = pending.communicator.joined()?.seat.clone();
                let (calls, transfers) = (Vec::new(), Vec::new());
                let part = Part { seat, calls, transfers, copies: Vec::new(), one_sided: Vec::new() };
                shares.push(Share { communicator: pending.communicator, part });
                shares.len() - 1
            }
        };
        match pending.work {
            Work::Collective(call) => shares[index].part.calls.push(call),
            Work::Transfer(transfer) => shares[index].part.transfers.push(transfer),
            Work::OneSided(call) => shares[index].part.one_sided.push(call),
        }
    }
    for share in &mut shares {
        pair_own(share)?;
    }
    Ok(shares)
}

/// Pairs what a rank sends to itself with what it receives from itself, in order.
fn pair_own(share: &mut Share) -> Result<()> {
    let rank = share.communicator.rank();
    let own = |transfer: &Transfer, send| transfer.peer == rank && transfer.send == send;
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    sends.extend(share.part.transfers.iter().filter(|transfer| own(transfer, true)).copied());
    recvs.extend(share.part.transfers.iter().filter(|transfer| own(transfer, false)).copied());
    if sends.len() != recvs.len() {
        return Err(Error::usage(format!(
            "rank {rank} sends {} messages to itself and receives {} from itself; trying to send to self without a \
             matching recv: both must be in the same group",
            sends.len(),
            recvs.len()
        )));
    }
    for (send, recv) in sends.iter().zip(&recvs) {
        if send.bytes != recv.bytes {
            return Err(Error::usage(format!(
                "rank {rank} sends {} bytes to itself where it receives {}; make count and type of both calls equal",
                send.bytes, recv.bytes
            )));
        }
        share.part.copies.push(SelfCopy { from: send.buffer, to: recv.buffer, bytes: send.bytes });
    }
    share.part.transfers.retain(|transfer| transfer.peer != rank);
    Ok(())
}
