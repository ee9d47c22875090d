"""One rank of a group: what torch.distributed asks of it, as calls of the library.

Where the caller waits anyway, a call runs on the calling thread; else on a host stream (`work`). Sends and receives have ways of their own
(`messages`). Tensors of any layout are taken: those that are not contiguous are copied before, and back after (`tensors`).
"""

import datetime
import time

import torch
from torch.distributed import DistBackendError

from accl import library
from accl.torch import native
from accl.torch.backend import PythonBackend
from accl.torch.messages import Messages
from accl.torch.movements import Movements
from accl.torch.reductions import Reductions
from accl.torch.rendezvous import Rendezvous
from accl.torch.tensors import only
from accl.torch.work import NativeStreams, Streams, done

_UNSET = datetime.timedelta(milliseconds=-1)

_DONE = done([])

_opened = None


def opened_library():
    """The library, opened once in a process."""
    global _opened
    if _opened is None:
        _opened = library.Library()
    return _opened


class Group(Reductions, Movements):
    """One rank of a group."""

    def __init__(self, options):
        self._rank, self._size = options.group_rank, options.group_size
        self._rendezvous, self._name = Rendezvous(options.store), options.group_id
        self._default_timeout = options.timeout
        self._library = opened_library()
        module = native.load()
        if module is not None:
            self._streams = NativeStreams(module, self._library, self, self._explained)
        else:
            self._streams = Streams(self._library, self._explained)
        self._messages = Messages(self._library, self._streams, self._rendezvous, self._rank)
        self._comm = None
        self._limit_s = None
        self._sequence = self._barriers = 0

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
        streams = self._streams
        return PythonBackend(self) if isinstance(streams, Streams) else streams.backend

    # ---- Life

    def _joined(self):
        """The communicator; all ranks make it with the first operation of the group."""
        if self._comm is None:
            self._comm = self._meet()
        return self._comm

    def _meet(self):
        try:
            if self._rank == 0:
                unique_id = self._library.unique_id()
                self._rendezvous.tell("accl/id", unique_id)
            else:
                limit_s = self._default_timeout.total_seconds()
                unique_id = self._rendezvous.hear("accl/id", limit_s, "rank 0 has not made its first call on this group")
            return self._library.join(self._size, self._rank, unique_id)
        except (library.Failure, TimeoutError) as failure:
            raise self._explained(failure) from None

    def _explained(self, failure):
        return DistBackendError(f"accl, rank {self._rank} of {self._size} in group {self._name}: {failure}")

    def shutdown(self):
        self._messages.drop_receives()
        self._streams.drain()
        self._messages.end(forcibly=False)
        self._streams.use(None, 0, 0)
        comm, self._comm = self._comm, None
        if comm is not None:
            self._library.destroy(comm)

    def abort(self):
        self._messages.end(forcibly=True)
        self._streams.use(None, 0, 0)
        comm, self._comm = self._comm, None
        if comm is not None:
            self._library.abort(comm)

    def set_timeout(self, timeout):
        self._default_timeout = timeout
        # The next call comes to `_begin`, which sets it.
        self._limit_s = None
        self._streams.use(None, 0, 0)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        self._sequence = 0

    def _get_sequence_number_for_group(self):
        return self._sequence

    # ---- How calls are made

    def _begin(self, opts):
        """The communicator, with this call's time limit."""
        comm = self._joined()
        seconds = self._timeout_of(opts).total_seconds()
        if seconds != self._limit_s:
            self._check(self._library.limit, min(int(seconds * 1000), 2**31 - 1), comm)
            self._limit_s = seconds
            usual_s = self._default_timeout.total_seconds()
            self._streams.use(comm, int(seconds * 1000), int(usual_s * 1000))
        self._sequence += 1
        return comm

    def _timeout_of(self, opts):
        return self._default_timeout if opts.timeout == _UNSET else opts.timeout

    def _check(self, function, *arguments):
        try:
            return function(*arguments)
        except library.Failure as failure:
            raise self._explained(failure) from None

    def _run(self, opts, launch, outputs, finish=None, keep=None):
        """Makes calls by `launch(stream)`, each of which checks itself: now, or, if the caller does not wait, on a stream."""
        try:
            if getattr(opts, "asyncOp", True):
                return self._streams.run(launch, outputs, finish=finish, keep=keep)
            launch(None)
        except library.Failure as failure:
            raise self._explained(failure) from None
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
            self._grouped(calls)

    def _grouped(self, calls):
        """Makes calls that belong together."""
        self._library.group_start()
        try:
            for call, *arguments in calls:
                # What fails is said at the end, which carries out nothing then.
                call(*arguments)
        finally:
            code = self._library.group_end()
        self._library.check(code)

    def _count_is(self, tensors, what):
        if len(tensors) != self._size:
            raise ValueError(f"{what} has {len(tensors)} tensors; need {self._size}, one for each rank")

    # ---- Messages and barriers

    def send(self, tensors, peer, tag):
        return self._check(self._messages.send, only(tensors, "send"), peer, tag)

    def recv(self, tensors, peer, tag):
        return self._check(self._messages.recv, only(tensors, "recv"), peer, tag)

    def recv_anysource(self, tensors, tag):
        if self._size == 2:
            return self.recv(tensors, 1 - self._rank, tag)
        raise NotImplementedError(
            f"accl: recv from any of {self._size - 1} ranks: name the source, or use the back end gloo for this group"
        )

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
        """By the store, so that whoever is missing is named, and the group can go on."""
        self._barriers += 1
        prefix = f"accl/barrier/{self._barriers}/"
        keys = [f"{prefix}{rank}" for rank in range(self._size)]
        self._rendezvous.tell(keys[self._rank], b"1")
        timeout = self._timeout_of(opts)
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._rendezvous.has(keys):
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._rendezvous.has([key])]
                if missing:
                    names = ", ".join(map(str, missing if wait_all_ranks else missing[:1]))
                    raise RuntimeError(
                        f"[Rank {self._rank}]: Ranks {names} failed to pass monitoredBarrier in "
                        f"{timeout.total_seconds() * 1000:.0f} ms"
                    )
            time.sleep(0.002)
