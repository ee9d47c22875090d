"""One rank of a group: what torch.distributed asks of it, as calls of the library.

Where the caller waits anyway, a call runs on the calling thread; else on a host stream (`work`). Sends and receives have a communicator of
their own (`messages`). Tensors of any layout are taken: those that are not contiguous are copied before, and back after (`tensors`).
"""

import datetime
import hashlib
import sys
import time

import torch
from torch._C._distributed_c10d import Backend as BackendOfAny
from torch.distributed import DistBackendError, PrefixStore

from accl import library
from accl.torch import native
from accl.torch.backend import PythonBackend
from accl.torch.messages import Messages, milliseconds
from accl.torch.movements import Movements
from accl.torch.reductions import Reductions
from accl.torch.rendezvous import Rendezvous
from accl.torch.work import NativeStreams, Streams, done

_UNSET = datetime.timedelta(milliseconds=-1)

_DONE = done([])

# Older releases end a group only by dropping it.
_ENDS_GROUPS = hasattr(BackendOfAny, "shutdown")

# How long a rank that has found the id of a process that is gone waits for another one; and the library's words for that.
STALE_ID_S = 60
GONE = "the creator of the unique id"

_opened = None


def opened_library():
    """The library, opened once in a process."""
    global _opened
    if _opened is None:
        _opened = library.Library()
    return _opened


class Group(Reductions, Movements, Messages):
    """One rank of a group."""

    def __init__(self, rank, size, store, name, timeout, comms=None, life=None):
        """All ranks make it, and meet by the store, unless it is made of communicators that are there."""
        self._rank, self._size, self._store, self._name = rank, size, store, name
        self._rendezvous, self._default_timeout = Rendezvous(store), timeout
        self._library = opened_library()
        self._explained = _Explanations(rank, size, name)
        module = native.load()
        if module is not None:
            self._streams = NativeStreams(module, self._library, self._explained)
        else:
            self._streams = Streams(self._library, self._explained)
        self._limit_ms = None
        self._sequence = self._barriers = self._shrinks = 0
        # Those of collective calls and of messages, which wait for each other in no way.
        self._comm, self._messages = comms or (None, None)
        # Sets what the ranks leave in the store apart from what an earlier life of the job has left there.
        self._life = life
        if comms is None:
            self._comm = self._meet("calls")
            if size > 1:
                self._messages = self._meet("messages")
        self._use()

    @property
    def rank(self):
        return self._rank

    @property
    def size(self):
        return self._size

    def new_stream(self):
        """A host stream, for those who make calls without Python."""
        return self._library.stream()

    def backend(self):
        """What PyTorch calls."""
        return self._streams.backend(self) or PythonBackend(self)

    # ---- The beginning

    def _meet(self, what):
        """A communicator of all ranks, each of which makes it when it makes the group."""
        name = f"accl/{what}"
        limit_s = self._default_timeout.total_seconds()
        deadline = time.monotonic() + limit_s
        try:
            if self._rank == 0:
                unique_id = self._library.unique_id()
                self._rendezvous.tell(name, unique_id)
                comm = self._join(unique_id, deadline)
                # All have it. Whoever finds it in a later life of the job would take it for the one of that life.
                self._rendezvous.forget(name)
            else:
                unique_id = self._rendezvous.hear(name, limit_s, "rank 0 has not made this group")
                comm, unique_id = self._join_the_living(name, unique_id, deadline)
        except (library.Failure, TimeoutError) as failure:
            self._end(self._library.abort)
            raise self._explained(failure) from None
        self._life = self._life or hashlib.sha256(unique_id).hexdigest()[:16]
        return comm

    def _join(self, unique_id, deadline):
        left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
        return self._library.join(self._size, self._rank, unique_id, left_ms)

    def _join_the_living(self, name, unique_id, deadline):
        """Joins by this id, or a newer one: a launcher may have started the job anew on a store that still has an id of the job that fell."""
        while True:
            try:
                return self._join(unique_id, deadline), unique_id
            except library.Failure as failure:
                left_s = min(STALE_ID_S, deadline - time.monotonic())
                newer = self._rendezvous.another(name, unique_id, left_s) if GONE in str(failure) else None
                if newer is None:
                    raise
                unique_id = newer

    # ---- Other groups out of this one

    def split(self, store, ranks, timeout, name):
        """A group of some ranks, which they make."""
        return Group(ranks.index(self._rank), len(ranks), store, name, timeout).backend()

    def shrink(self, excluded, flags):
        """A group of all ranks but these, which may be dead: nobody asks the store."""
        self._shrinks += 1
        stays = [rank for rank in range(self._size) if rank not in excluded]
        comms = []
        try:
            for comm in (self._comm, self._messages):
                comms.append(self._check(self._library.shrink, self._used(comm), excluded, flags))
        except BaseException:
            for comm in comms:
                self._library.abort(comm)
            raise
        name = f"{self._name}/{self._shrinks}"
        store = PrefixStore(name, self._store)
        rank = stays.index(self._rank)
        return Group(rank, len(stays), store, name, self._default_timeout, comms, self._life).backend()

    # ---- The end

    def shutdown(self):
        # Nobody waits for what has not come yet; what was sent is given the group's time.
        self._streams.drain(milliseconds(self._default_timeout))
        self._end(self._library.destroy)

    def abort(self):
        self._end(self._library.abort)

    def _end(self, end):
        self._streams.use(None, None, 0, 0)
        comms, self._comm, self._messages = (self._comm, self._messages), None, None
        for comm in comms:
            if comm is not None:
                end(comm)
        # What was under way has ended with them.
        self._streams.sweep()

    def __del__(self):
        # At the end of the process it goes by itself.
        if not sys.is_finalizing() and getattr(self, "_comm", None) is not None:
            # Whoever drops a group that could have been ended has no use for what is under way.
            self.abort() if _ENDS_GROUPS else self.shutdown()

    def set_timeout(self, timeout):
        self._default_timeout = timeout
        # The next call comes to `_begin`, which sets it.
        self._limit_ms = None
        self._use()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        self._sequence = 0

    def _get_sequence_number_for_group(self):
        return self._sequence

    # ---- How calls are made

    def _used(self, comm):
        """A communicator, unless the group has ended."""
        if comm is None:
            alone = self._size == 1 and self._comm is not None
            raise self._explained("it has no other rank" if alone else "the group has been destroyed, or aborted")
        return comm

    def _use(self):
        """Has plain calls made without Python, which have the time limit of the last one."""
        usual_ms = milliseconds(self._default_timeout)
        self._streams.use(self._comm, self._messages, self._limit_ms or 0, usual_ms)

    def _begin(self, opts):
        """The communicator, with this call's time limit."""
        comm = self._used(self._comm)
        limit_ms = milliseconds(self._timeout_of(opts))
        if limit_ms != self._limit_ms:
            self._check(self._library.limit, limit_ms, comm)
            self._limit_ms = limit_ms
            self._use()
        self._sequence += 1
        return comm

    def _timeout_of(self, opts):
        return self._default_timeout if opts.timeout == _UNSET else opts.timeout

    def _check(self, function, *arguments):
        try:
            return function(*arguments)
        except library.Failure as failure:
            raise self._failed(failure) from None

    def _failed(self, failure):
        self._streams.tell_failure()
        return self._explained(failure)

    def _run(self, opts, launch, outputs, finish=None, keep=None):
        """Makes calls by `launch(stream)`, each of which checks itself: now, or, if the caller does not wait, on a stream."""
        try:
            if getattr(opts, "asyncOp", True):
                return self._streams.run(launch, outputs, finish=finish, keep=keep)
            launch(None)
        except library.Failure as failure:
            raise self._failed(failure) from None
        if finish is not None:
            finish()
        # Nobody looks at it.
        return _DONE

    def _make(self, calls):
        """One call as it is, several as a group."""
        if len(calls) == 1:
            call, *arguments = calls[0]
            self._library.check(call(*arguments))
        else:
            self._library.group(calls)

    def _count_is(self, tensors, what):
        if len(tensors) != self._size:
            raise ValueError(f"{what} has {len(tensors)} tensors; need {self._size}, one for each rank")

    # ---- Barriers

    def barrier(self, opts):
        word = torch.zeros(1, dtype=torch.uint8)
        comm = self._begin(opts)

        def launch(stream):
            address = word.data_ptr()
            self._library.check(
                self._library.all_reduce(address, address, 1, library.UINT8, library.MAX, comm, stream)
            )

        return self._run(opts, launch, [], keep=word)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """By the store, so that whoever is missing is named, and the group can go on: who comes too late for one joins the next."""
        self._barriers += 1
        while self._rendezvous.has([self._barrier_key("failed")]):
            self._barriers += 1
        keys = [self._barrier_key(rank) for rank in range(self._size)]
        self._rendezvous.tell(keys[self._rank], b"1")
        timeout = self._timeout_of(opts)
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._rendezvous.has(keys):
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._rendezvous.has([key])]
                if missing:
                    self._rendezvous.tell(self._barrier_key("failed"), b"1")
                    raise RuntimeError(self._missed(missing, wait_all_ranks, timeout))
            time.sleep(0.002)
        # Nobody looks at the barrier before: all have passed it who are here.
        self._rendezvous.forget(self._barrier_key(self._rank, self._barriers - 1))

    def _barrier_key(self, what, number=None):
        return f"accl/barrier/{self._life}/{self._barriers if number is None else number}/{what}"

    def _missed(self, missing, wait_all_ranks, timeout):
        """In the words of gloo, which programs look for."""
        names = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
        here = "" if self._rank == 0 else f"Rank {self._rank} successfully reached monitoredBarrier, but "
        limit_ms = timeout.total_seconds() * 1000
        return f"[Rank {self._rank}]: {here}{names} failed to pass monitoredBarrier in {limit_ms:.0f} ms"


class _Explanations:
    """The exceptions of a group, as callers see them. Holds on to nothing: the back end holds on to it."""

    def __init__(self, rank, size, name):
        self._rank, self._size, self._name = rank, size, name

    def __call__(self, failure):
        text = str(failure)
        # Programs look for these words after gloo's and NCCL's time limits.
        late = "Timed out in " if text.endswith("(ncclTimeout)") else ""
        return DistBackendError(f"accl, rank {self._rank} of {self._size} in group {self._name}: {late}{text}")
