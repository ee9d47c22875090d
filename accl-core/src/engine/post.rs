//! Who moves messages with tags: whoever waits for one, or else a thread for all of the process.
//!
//! A caller moves what can be moved at once when it begins a send or a receive, and everything while it waits, so that a message
//! between two ranks that wait for it costs no third thread. What nobody waits for is moved by the thread `accl-messages`, which looks
//! after a [`Post`] as long as something is under way there. It does not sleep deeply while calls come again and again, so that they need not
//! wake it; its first look at what nobody waits for may be [`SHORT_SLEEP`] late.

use super::Poll;
use super::drive::{Work, fail};
use super::endpoint::Endpoint;
use super::seat::Seat;
use super::tagged::{Message, Request, TaggedOp};
use super::watch::{LOOK_AROUND, Stall};
use crate::device::UserPointer;
use crate::error::{Error, Result};
use crate::os::{clock, futex, process};
use crate::sync::bell::Bell;
use crate::sync::prim::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::wait::{Backoff, Patience, Pause};
use crate::types::Rank;
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Between two looks of the thread at what may need it.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// The messages with tags of one rank of a communicator.
#[derive(Debug)]
pub struct Post {
    seat: Arc<Seat>,
    inner: Mutex<Inner>,
    /// Callers who wait, and so move everything.
    attendants: AtomicUsize,
    under_way: AtomicUsize,
    /// How many were begun.
    begun: AtomicU64,
    /// True while the thread looks here by itself.
    listed: AtomicBool,
    /// Forked children inherit the memory, and have no part in it.
    process: u32,
}

#[derive(Debug)]
struct Inner {
    /// Its `tagged` are the messages.
    work: Work,
    stall: Stall,
    /// When reasons to give up were last looked for.
    looked_at: Option<Instant>,
    /// Why no more can begin.
    failure: Option<Error>,
}

impl Inner {
    fn tagged(&mut self) -> &mut TaggedOp {
        self.work.tagged.get_or_insert_default()
    }
}

impl Post {
    /// The messages of a rank, on whose communicator nothing else is sent from rank to rank.
    pub fn new(seat: Arc<Seat>) -> Arc<Self> {
        let inner = Inner { work: Work::default(), stall: Stall::default(), looked_at: None, failure: None };
        Arc::new(Self {
            seat,
            inner: Mutex::new(inner),
            attendants: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            process: process::id(),
        })
    }

    /// An error (InvalidUsage) in a forked child of the process whose messages these are.
    pub fn check_process(&self) -> Result<()> {
        if self.process == process::id() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "the message belongs to process {}, and this is a forked child of it; make a communicator of its own here",
            self.process
        )))
    }

    /// Begins a send. Its memory must stay as it is until the request is over.
    pub fn send(self: &Arc<Self>, message: Message, request: Arc<Request>) -> Result<Arc<Request>> {
        self.begin(request, |tagged, request, endpoint| tagged.send(message, request, endpoint))
    }

    /// Begins a receive. Nobody may use its memory until the request is over.
    pub fn receive(self: &Arc<Self>, message: Message, request: Arc<Request>) -> Result<Arc<Request>> {
        self.begin(request, |tagged, request, endpoint| tagged.receive(message, request, endpoint.device))
    }

    /// Lets peers write to `bytes` at `start`, from now on and until [`Post::withdraw`]; the number by which they name that. The thread
    /// moves what they write, whatever this rank does.
    pub fn expose(self: &Arc<Self>, start: UserPointer, bytes: usize) -> Result<u16> {
        let mut inner = self.inner.lock();
        if let Some(error) = &inner.failure {
            return Err(error.clone());
        }
        let number = inner.tagged().one_sided.expose(start, bytes).ok_or_else(|| {
            Error::usage(format!(
                "a communicator has {} windows at most; deregister some",
                super::one_sided::MOST_WINDOWS
            ))
        })?;
        self.count(&mut inner);
        drop(inner);
        self.list();
        Ok(number)
    }

    /// Lets nobody write there any more. When this returns, nobody does.
    pub fn withdraw(&self, number: u16) {
        self.inner.lock().tagged().one_sided.withdraw(number);
    }

    /// Begins a wait for so many signals of each rank, and takes them.
    pub(super) fn wait_signals(
        self: &Arc<Self>,
        signals: Vec<(Rank, u64)>,
        request: Arc<Request>,
    ) -> Result<Arc<Request>> {
        self.begin(request, |tagged, request, _| {
            tagged.one_sided.wait(signals, request);
            Ok(())
        })
    }

    /// Gives this rank a signal of its own.
    pub(super) fn signal_self(self: &Arc<Self>, request: Arc<Request>) -> Result<Arc<Request>> {
        let rank = self.seat.rank;
        self.begin(request, |tagged, request, _| {
            tagged.one_sided.signalled(rank);
            request.end(Ok(rank));
            Ok(())
        })
    }

    /// The ranks whose signals this one waits for, or who have not taken what it puts.
    pub(super) fn waits_for(&self, missing: &mut Vec<Rank>) {
        let mut inner = self.inner.lock();
        let ranks = self.seat.peers.len();
        inner.tagged().waits_for(self.seat.rank, ranks, |_| false, missing);
    }

    /// The first that is under way, in words.
    pub(super) fn describe(&self) -> Option<String> {
        self.inner.lock().tagged().describe()
    }

    fn begin(
        self: &Arc<Self>,
        request: Arc<Request>,
        start: impl FnOnce(&mut TaggedOp, Arc<Request>, &mut Endpoint) -> Result<()>,
    ) -> Result<Arc<Request>> {
        let mut inner = self.inner.lock();
        if let Some(error) = &inner.failure {
            return Err(error.clone());
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut endpoint = self.seat.endpoint.lock();
        match start(inner.tagged(), request.clone(), &mut endpoint) {
            Ok(()) => drop(endpoint),
            Err(error) => self.give_up(&mut inner, endpoint, error),
        }
        if !request.is_over() {
            self.poll_locked(&mut inner);
        }
        if request.is_over() && inner.tagged().under_way() > 0 {
            self.examine_if_due(&mut inner);
        }
        self.count(&mut inner);
        drop(inner);
        if !request.is_over() {
            // Whoever sleeps has to look at other connections, too, from now on.
            self.ring();
            self.list();
        }
        Ok(request)
    }

    /// Moves what can be moved; true if anything did.
    pub fn poll(&self) -> bool {
        let mut inner = self.inner.lock();
        let moved = self.poll_locked(&mut inner);
        if moved {
            self.examine_if_due(&mut inner);
            self.count(&mut inner);
        }
        moved
    }

    /// While some messages move, others may wait in vain.
    fn examine_if_due(&self, inner: &mut Inner) {
        let now = clock::now();
        if inner.looked_at.is_none_or(|before| now - before >= LOOK_AROUND) {
            self.examine_locked(inner, now);
        }
    }

    fn poll_locked(&self, inner: &mut Inner) -> bool {
        if inner.tagged().cares() == 0 {
            return false;
        }
        let mut endpoint = self.seat.endpoint.lock();
        let outcome = self.seat.check_abort().and_then(|()| inner.tagged().poll(&mut endpoint));
        match outcome {
            Ok(Poll::Blocked) => return false,
            Ok(Poll::Advanced | Poll::Done) => {}
            Err(error) => {
                self.give_up(inner, endpoint, error);
                return true;
            }
        }
        drop(endpoint);
        inner.stall.moved(&self.seat);
        true
    }

    /// Looks for reasons to give up.
    fn examine(&self) {
        let mut inner = self.inner.lock();
        self.examine_locked(&mut inner, clock::now());
        self.count(&mut inner);
    }

    fn examine_locked(&self, inner: &mut Inner, now: Instant) {
        // What has come from a peer that has gone is not lost; others may go on for ever.
        for _ in 0..64 {
            if !self.poll_locked(inner) {
                break;
            }
        }
        inner.looked_at = Some(now);
        let Inner { work, stall, .. } = &mut *inner;
        work.in_background = !self.is_attended();
        let Some(tagged) = work.tagged.as_ref().filter(|tagged| tagged.under_way() > 0) else { return };
        let mut endpoint = self.seat.endpoint.lock();
        let outcome = tagged.check_deadlines(now);
        if let Err(error) = outcome.and_then(|()| stall.examine(&self.seat, &mut endpoint, work)) {
            self.give_up(inner, endpoint, error);
        }
    }

    /// Makes an error the communicator's, and ends everything.
    fn give_up(&self, inner: &mut Inner, mut endpoint: MutexGuard<'_, Endpoint>, error: Error) {
        let error = fail(&self.seat, &mut endpoint, error);
        drop(endpoint);
        self.fail_locked(inner, &error);
    }

    fn fail_locked(&self, inner: &mut Inner, error: &Error) {
        inner.stall.end(&self.seat);
        inner.tagged().fail(error);
        inner.failure.get_or_insert_with(|| error.clone());
    }

    /// Ends everything; what is under way fails with this error. When this returns, nobody uses its memory.
    pub fn end(&self, error: &Error) {
        let mut inner = self.inner.lock();
        if inner.tagged().under_way() > 0 {
            // Peers may be reading what was to be sent.
            self.seat.close();
        }
        self.fail_locked(&mut inner, error);
        self.count(&mut inner);
        drop(inner);
        // The thread lets go of what has ended.
        self.ring();
    }

    /// After a change: how many are under way, for those who do not hold the lock.
    fn count(&self, inner: &mut Inner) {
        let under_way = inner.tagged().cares();
        // Both orders: pairs with `Keeper::delist`.
        if self.under_way.swap(under_way, Ordering::SeqCst) > under_way && self.is_attended() {
            // What others wait for may be over.
            self.ring();
        }
    }

    fn bell(&self) -> Option<&Bell> {
        self.seat.arena.as_ref().map(|arena| &arena.block(self.seat.rank).bell)
    }

    fn ring(&self) {
        self.seat.ring();
    }

    fn is_attended(&self) -> bool {
        self.attendants.load(Ordering::SeqCst) > 0
    }

    fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    /// Waits until a request is over, or for so long; whether it is over. Moves everything meanwhile.
    pub fn wait(self: &Arc<Self>, request: &Request, limit: Option<Duration>) -> bool {
        if request.is_over() {
            return true;
        }
        let deadline = limit.map(|limit| clock::now() + limit);
        let _attending = Attending::begin(self);
        let mut backoff = self.seat.backoff();
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(clock::now()));
        let mut moves = 0u32;
        while !request.is_over() {
            if self.poll() {
                backoff.reset();
                moves = moves.wrapping_add(1);
                if moves.is_multiple_of(64) && left() == Some(Duration::ZERO) {
                    return false;
                }
            } else if backoff.pause() == Pause::Sleep {
                let left = left();
                if left == Some(Duration::ZERO) {
                    return false;
                }
                self.examine();
                self.sleep(request, left.unwrap_or(LOOK_AROUND).min(LOOK_AROUND));
            }
        }
        backoff.reset();
        self.seat.learn(&backoff);
        true
    }

    fn sleep(&self, request: &Request, most: Duration) {
        let Some(bell) = self.bell() else { return };
        let rings = bell.arm();
        self.ring_when_ready();
        // The last look: whoever made something visible before the bell was armed did not ring.
        if !self.poll() && !request.is_over() {
            futex::wait(bell.word(), rings, most);
        }
        bell.disarm();
    }

    /// Has the bell rung by connections, too. A failure to do so shows at the next look.
    fn ring_when_ready(&self) {
        if let Some(fabric) = &self.seat.endpoint.lock().fabric {
            let _ = fabric.ring_when_ready();
        }
    }

    /// Has the thread look here from now on.
    fn list(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        match Keeper::of_process() {
            Ok(keeper) => keeper.take(self.clone()),
            Err(error) => {
                let mut inner = self.inner.lock();
                self.give_up(&mut inner, self.seat.endpoint.lock(), error);
                self.count(&mut inner);
            }
        }
    }
}

/// A caller who waits.
struct Attending<'a>(&'a Arc<Post>);

impl<'a> Attending<'a> {
    fn begin(post: &'a Arc<Post>) -> Self {
        post.attendants.fetch_add(1, Ordering::SeqCst);
        Self(post)
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.attendants.fetch_sub(1, Ordering::SeqCst);
        if self.0.is_busy() {
            self.0.list();
        }
    }
}

/// The thread, as seen by others.
struct Keeper {
    bell: Bell,
    posts: Mutex<Vec<Arc<Post>>>,
    pid: u32,
    started: AtomicBool,
}

static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// What the thread knows of a post.
struct Kept {
    post: Arc<Post>,
    /// How many messages had begun at the last look.
    begun: u64,
}

impl Kept {
    /// True if nobody else moves what is under way.
    fn needs_us(&self) -> bool {
        self.post.is_busy() && !self.post.is_attended()
    }
}

impl Keeper {
    fn of_process() -> Result<&'static Self> {
        let keeper = KEEPER.get_or_init(|| Self {
            bell: Bell::new(),
            posts: Mutex::new(Vec::new()),
            pid: process::id(),
            started: AtomicBool::new(false),
        });
        if keeper.pid != process::id() {
            return Err(Error::usage(
                "messages with tags in a forked child of a process that has exchanged some; call fork before that, or start another \
                 program in the child",
            ));
        }
        let posts = keeper.posts.lock();
        if !keeper.started.load(Ordering::Acquire) {
            std::thread::Builder::new()
                .name("accl-messages".to_string())
                .spawn(move || keeper.serve())
                .map_err(|error| Error::thread("the thread for messages", error))?;
            keeper.started.store(true, Ordering::Release);
        }
        drop(posts);
        Ok(keeper)
    }

    fn take(&self, post: Arc<Post>) {
        self.posts.lock().push(post);
        self.bell.ring();
    }

    fn serve(&self) {
        // The threads that call want the same cores.
        let patience = Patience::for_helper();
        let mut backoff = Backoff::new(patience, patience.habit());
        let mut kept = Vec::new();
        loop {
            self.accept(&mut kept);
            let mut moved = false;
            for one in kept.iter().filter(|one| one.needs_us()) {
                moved |= one.post.poll();
            }
            if moved {
                backoff.reset();
            } else if !kept.iter().any(Kept::needs_us) || backoff.pause() == Pause::Sleep {
                self.sleep(&mut kept);
            }
        }
    }

    fn accept(&self, kept: &mut Vec<Kept>) {
        let mut posts = self.posts.lock();
        kept.extend(posts.drain(..).map(|post| Kept { post, begun: 0 }));
    }

    /// Sleeps until somebody rings, or until it is time to look again.
    fn sleep(&self, kept: &mut Vec<Kept>) {
        kept.iter().filter(|one| one.needs_us()).for_each(|one| one.post.examine());
        let mut watched: Vec<Arc<Post>> = Vec::new();
        kept.retain_mut(|one| {
            let begun = one.post.begun.load(Ordering::Relaxed);
            let needs_us = one.needs_us();
            let stays = needs_us || begun != one.begun || !delist(&one.post);
            if needs_us {
                watched.push(one.post.clone());
            }
            one.begun = begun;
            stays
        });
        // Nobody rings for those that are not watched.
        let most = match kept.len() {
            0 => Duration::from_secs(3600),
            all if all == watched.len() => LOOK_AROUND,
            _ => SHORT_SLEEP,
        };
        let rings = self.bell.arm();
        let mut words = vec![(self.bell.word(), rings)];
        for post in &watched {
            let Some(bell) = post.bell() else { continue };
            words.push((bell.word(), bell.arm()));
            post.ring_when_ready();
        }
        // The last look: what came before the bells were armed did not ring.
        let moved = watched.iter().fold(false, |moved, post| post.poll() | moved);
        if !moved && self.posts.lock().is_empty() {
            futex::wait_any(&words, most);
        }
        self.bell.disarm();
        watched.iter().filter_map(|post| post.bell()).for_each(Bell::disarm);
    }
}

/// Looks no more at a post by itself; false if it needs the thread after all.
fn delist(post: &Post) -> bool {
    post.listed.store(false, Ordering::SeqCst);
    let needed = post.is_busy() && !post.is_attended();
    // Whoever has set it meanwhile has left another word.
    !needed || post.listed.swap(true, Ordering::SeqCst)
}
