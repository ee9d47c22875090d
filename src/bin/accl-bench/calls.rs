//! What each test asks of the library: one operation of one rank.

use std::ffi::{c_int, c_void};

use crate::datatype::DataType;
use crate::failure::Outcome;
use crate::library::{Comm, Library, Stream};
use crate::test::{Matrix, Test};

/// All that stays the same while one case is repeated.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) library: &'a Library,
    pub(crate) comm: Comm,
    pub(crate) stream: Stream,
    pub(crate) test: Test,
    pub(crate) kind: DataType,
    /// The operator's number in calls.
    pub(crate) op: c_int,
    /// −1 where there is none.
    pub(crate) root: c_int,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) count_elems: usize,
    /// Of alltoallv.
    pub(crate) matrix: Option<&'a Matrix>,
}

/// A part of a buffer to exchange with a peer: first element, and how many.
type Part = (usize, usize);

impl Operation<'_> {
    /// Starts the operation; with the NULL stream it is complete on return.
    pub(crate) fn issue(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let f = &self.library.functions;
        let (count, kind, op, root) = (self.count_elems, self.kind as c_int, self.op, self.root);
        let (comm, stream) = (self.comm, self.stream);
        let native = self.library.has_native_alltoall();
        let (name, code) = match self.test {
            Test::AllReduce => {
                let call = f.all_reduce.need()?;
                // SAFETY: Both buffers live as long as the process and hold what the counts of the test say; the
                // communicator lives until the end of the run.
                ("ncclAllReduce", unsafe { call(send, recv, count, kind, op, comm, stream) })
            }
            Test::AllGather => {
                let call = f.all_gather.need()?;
                // SAFETY: As above.
                ("ncclAllGather", unsafe { call(send, recv, count, kind, comm, stream) })
            }
            Test::Broadcast => {
                let call = f.broadcast.need()?;
                // SAFETY: As above.
                ("ncclBroadcast", unsafe { call(send, recv, count, kind, root, comm, stream) })
            }
            Test::ReduceScatter => {
                let call = f.reduce_scatter.need()?;
                // SAFETY: As above.
                ("ncclReduceScatter", unsafe { call(send, recv, count, kind, op, comm, stream) })
            }
            Test::Reduce => {
                let call = f.reduce.need()?;
                // SAFETY: As above.
                ("ncclReduce", unsafe { call(send, recv, count, kind, op, root, comm, stream) })
            }
            Test::AlltoAll => match f.alltoall.pointer.filter(|_| native) {
                // SAFETY: As above.
                Some(call) => ("ncclAlltoAll", unsafe { call(send, recv, count, kind, comm, stream) }),
                None => return self.alltoall(send, recv),
            },
            Test::Gather => match f.gather.pointer.filter(|_| native) {
                // SAFETY: As above.
                Some(call) => ("ncclGather", unsafe { call(send, recv, count, kind, root, comm, stream) }),
                None => return self.gather(send, recv),
            },
            Test::Scatter => match f.scatter.pointer.filter(|_| native) {
                // SAFETY: As above.
                Some(call) => ("ncclScatter", unsafe { call(send, recv, count, kind, root, comm, stream) }),
                None => return self.scatter(send, recv),
            },
            Test::AlltoAllv => return self.alltoallv(send, recv),
            Test::SendRecv => return self.ring(send, recv),
            Test::Hypercube => return self.hypercube(send, recv),
        };
        self.library.check(name, code)
    }

    fn alltoall(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let count = self.count_elems;
        self.grouped(|| {
            (0..self.ranks).try_for_each(|peer| {
                self.send(send, (peer * count, count), peer)?;
                self.recv(recv, (peer * count, count), peer)
            })
        })
    }

    fn alltoallv(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let Some(matrix) = self.matrix else { return Ok(()) };
        self.grouped(|| {
            (0..self.ranks).try_for_each(|peer| {
                let sent = (matrix.send_offset(self.rank, peer), matrix.elems(self.rank, peer));
                let received = (matrix.recv_offset(peer, self.rank), matrix.elems(peer, self.rank));
                self.send(send, sent, peer)?;
                self.recv(recv, received, peer)
            })
        })
    }

    fn gather(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let count = self.count_elems;
        self.grouped(|| {
            self.send(send, (0, count), self.root as usize)?;
            let sources = if self.rank == self.root as usize { 0..self.ranks } else { 0..0 };
            sources.into_iter().try_for_each(|peer| self.recv(recv, (peer * count, count), peer))
        })
    }

    fn scatter(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let count = self.count_elems;
        self.grouped(|| {
            let targets = if self.rank == self.root as usize { 0..self.ranks } else { 0..0 };
            targets.into_iter().try_for_each(|peer| self.send(send, (peer * count, count), peer))?;
            self.recv(recv, (0, count), self.root as usize)
        })
    }

    /// Everybody sends to the next and receives from the one before.
    fn ring(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let whole = (0, self.count_elems);
        self.grouped(|| {
            self.send(send, whole, (self.rank + 1) % self.ranks)?;
            self.recv(recv, whole, (self.rank + self.ranks - 1) % self.ranks)
        })
    }

    /// An all-gather by doubling: in each step, partners exchange all that they have.
    fn hypercube(&self, send: *const c_void, recv: *mut c_void) -> Outcome<()> {
        let count = self.count_elems;
        let block = |rank: usize, ranks: usize| ((rank & !(ranks - 1)) * count, ranks * count);
        let own = block(self.rank, 1);
        let in_place = std::ptr::eq(send, self.at(recv, own.0));
        if !in_place {
            // One's own part travels to oneself, so that a stream keeps it in order.
            self.grouped(|| {
                self.send(send, (0, count), self.rank)?;
                self.recv(recv, own, self.rank)
            })?;
        }
        let mut done = 1;
        while done < self.ranks {
            let partner = self.rank ^ done;
            self.grouped(|| {
                self.send(recv, block(self.rank, done), partner)?;
                self.recv(recv, block(partner, done), partner)
            })?;
            done *= 2;
        }
        Ok(())
    }

    fn at(&self, base: *const c_void, elem: usize) -> *const c_void {
        base.wrapping_byte_add(elem * self.kind.bytes())
    }

    fn send(&self, base: *const c_void, (first, count): Part, peer: usize) -> Outcome<()> {
        let call = self.library.functions.send.need()?;
        let start = self.at(base, first);
        // SAFETY: As in `issue`; the part lies within the buffer.
        let code = unsafe { call(start, count, self.kind as c_int, peer as c_int, self.comm, self.stream) };
        self.library.check("ncclSend", code)
    }

    fn recv(&self, base: *mut c_void, (first, count): Part, peer: usize) -> Outcome<()> {
        let call = self.library.functions.recv.need()?;
        let start = self.at(base, first).cast_mut();
        // SAFETY: As in `issue`; the part lies within the buffer.
        let code = unsafe { call(start, count, self.kind as c_int, peer as c_int, self.comm, self.stream) };
        self.library.check("ncclRecv", code)
    }

    /// Runs the calls between GroupStart and GroupEnd.
    pub(crate) fn grouped(&self, calls: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        let start = self.library.functions.group_start.need()?;
        let end = self.library.functions.group_end.need()?;
        // SAFETY: No arguments.
        self.library.check("ncclGroupStart", unsafe { start() })?;
        let called = calls();
        // SAFETY: No arguments. Also after a failure: groups are per thread and must not stay open.
        let ended = self.library.check("ncclGroupEnd", unsafe { end() });
        called.and(ended)
    }

    /// Waits until all that was started is complete.
    pub(crate) fn complete(&self) -> Outcome<()> {
        if self.stream.is_null() {
            return Ok(());
        }
        let wait = self.library.functions.stream_synchronize.need()?;
        // SAFETY: The stream was made by this library and lives until the end of the run.
        self.library.check("acclStreamSynchronize", unsafe { wait(self.stream) })
    }
}
