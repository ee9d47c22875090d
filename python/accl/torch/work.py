"""What callers get for an operation: done, or under way on a host stream of its own, or as a message.

What is under way is C++ (`native`) where that can be compiled, else Python, of which PyTorch asks only `wait()` and `get_future()`: there
`is_completed()` says False until somebody has waited.
"""

import collections
import ctypes
import datetime
import functools
import threading
import time

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future

from accl import library

# Between two looks at a stream in a wait with a time limit.
_LOOK_S = 0.0005


def done(outputs):
    """An operation that is over."""
    future = torch.futures.Future()
    future.set_result(outputs)
    return _create_work_from_future(future)


class Pending(Work):
    """An operation that is under way. `finish` is called once when it is done, by whoever notices first; `keep` is what must live
    until then."""

    def __init__(self, streams, way, outputs, finish, keep):
        super().__init__()
        self._streams, self._way = streams, way
        self._outputs, self._finish, self._keep = outputs, finish, keep
        self._lock = threading.Lock()
        self._failure = self._future = None
        self._over = False

    def _end(self, code):
        """Called with the lock held, when it has come to the end."""
        try:
            self._streams.library.check(code)
            if self._finish is not None:
                self._finish()
        except Exception as failure:  # what it is, the waiter is told
            self._failure = failure
        self._way.give_back()
        self._finish = self._keep = None
        self._over = True
        self._streams.forget(self)

    @property
    def is_awaited(self):
        """True for what the end of a group waits for."""
        return self._way.is_awaited

    def is_completed(self):
        # Somebody who waits holds the lock, and tells.
        if not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over:
                    code = self._way.look()
                    if code != library.IN_PROGRESS:
                        self._end(code)
            finally:
                self._lock.release()
        return self._over

    def is_success(self):
        return self.is_completed() and self._failure is None

    def exception(self):
        return None if self._failure is None else self._streams.explained(self._failure)

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout is not None else 0
        late = f"the operation is not done after {seconds:g} s; see accl status for who is missing"
        # Somebody else may wait, maybe without a limit.
        if not self._lock.acquire(timeout=seconds if seconds > 0 else -1):
            raise self._streams.explained(late)
        try:
            if not self._over:
                code = self._way.block(max(seconds, 0))
                if code == library.IN_PROGRESS:
                    raise self._streams.explained(late)
                self._end(code)
        finally:
            self._lock.release()
        if self._failure is not None:
            # Each who waits gets an exception of its own.
            raise self._streams.explained(self._failure)
        return True

    def synchronize(self):
        self.wait()

    def result(self):
        return self._outputs

    def get_future(self):
        if self._future is None:
            self._future = torch.futures.Future()
            threading.Thread(target=self._complete, name="accl-future", daemon=True).start()
        return self._future

    def _complete(self):
        """On a thread of its own: operations end in any order, and what is to be done then may wait for others."""
        try:
            self.wait()
        except Exception as failure:
            self._future.set_exception(failure)
        else:
            self._future.set_result(self._outputs)


class _OnStream:
    """The way of an operation on a host stream."""

    is_awaited = True

    def __init__(self, streams, stream):
        self._streams, self._stream = streams, stream

    def look(self):
        return self._streams.library.stream_query(self._stream)

    def block(self, seconds):
        if seconds == 0:
            return self._streams.library.stream_synchronize(self._stream)
        deadline = time.monotonic() + seconds
        code = self.look()
        while code == library.IN_PROGRESS and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            code = self.look()
        return code

    def give_back(self):
        self._streams.give_back(self._stream)


class _AsMessage:
    """The way of a send or a receive."""

    def __init__(self, opened, request, receives):
        self._library, self._request, self.is_awaited = opened, request, not receives

    def look(self):
        return self._library.request_test(self._request)

    def block(self, seconds):
        # 0 is no limit there.
        return self._library.request_wait(self._request, max(int(seconds * 1000), 1) if seconds > 0 else 0)

    def give_back(self):
        self._library.request_free(self._request)


def _finish(finish, _keep):
    if finish is not None:
        finish()


def flattened(tensors):
    """The tensors of a list of tensors or of lists."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        return [tensor for row in tensors for tensor in row]
    return tensors


class _Launching:
    """How operations get their streams: what `Streams` and `NativeStreams` have in common."""

    def _launched(self, launch):
        """The stream on which it runs."""
        stream = self._take() or self.library.stream()
        try:
            launch(stream)
        except BaseException:
            # Part of it may be on the stream.
            self.library.stream_synchronize(stream)
            self.give_back(stream)
            raise
        return stream


class Streams(_Launching):
    """Host streams that are used again and again, and operations that are not over."""

    tells_sources = False

    def __init__(self, opened, explained):
        """`explained` makes the exception of a failure that callers see."""
        self.library, self.explained = opened, explained
        self._free = collections.deque()
        self._pending = {}
        self._sweep_at = 64

    def __del__(self):
        for stream in self._free:
            self.library.stream_destroy(stream)

    def backend(self, group):
        """None: it is Python."""
        return None

    def run(self, launch, outputs, finish=None, keep=None):
        """Launches an operation by `launch(stream)` and returns it; `keep` lives until it is done, then `finish` is called."""
        return self._kept(Pending(self, _OnStream(self, self._launched(launch)), outputs, finish, keep))

    def message(self, request, receives, tensors, finish=None, keep=None):
        """The same for a send or a receive that has begun."""
        return self._kept(Pending(self, _AsMessage(self.library, request, receives), tensors, finish, keep))

    def _kept(self, work):
        # Its tensors live until it is done, also if the caller forgets it.
        self._pending[id(work)] = work
        if len(self._pending) >= self._sweep_at:
            self.sweep()
            self._sweep_at = max(64, 2 * len(self._pending))
        return work

    def forget(self, work):
        """It is over."""
        self._pending.pop(id(work), None)

    def sweep(self):
        """Forgets all that are over."""
        for work in list(self._pending.values()):
            work.is_completed()

    def _take(self):
        return self._free.pop() if self._free else None

    def use(self, comm, messages, limit_ms, usual_ms):
        """What is told to those who make calls without Python."""

    def tell_failure(self):
        """What asks to be called after a failure is not asked for by releases that take back ends in Python."""

    def give_back(self, stream):
        """The stream has nothing more to do."""
        self._free.append(stream)

    def drain(self, limit_ms):
        """Waits for all that is under way, for so long at most, but for receives: nobody wants what has not come yet. Failures have their
        own tellers."""
        deadline = time.monotonic() + limit_ms / 1000
        for work in [work for work in list(self._pending.values()) if work.is_awaited]:
            try:
                work.wait(datetime.timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
            except Exception:  # kept in the work
                pass


class NativeStreams(_Launching):
    """The same where the back end is C++, which makes plain calls itself."""

    tells_sources = True

    def __init__(self, module, opened, explained):
        self._module, self.library, self.explained = module, opened, explained
        # As work.hpp has them.
        functions = [
            *(opened.error_text, opened.stream_synchronize, opened.stream_query, opened.stream_destroy),
            *(opened.request_test, opened.request_wait, opened.request_source, opened.request_free),
            *(opened.isend, opened.irecv),
            *(opened.all_reduce, opened.reduce_scatter, opened.broadcast, opened.all_gather, opened.all_to_all),
            *(opened.reduce, opened.send, opened.recv, opened.group_start, opened.group_end),
        ]
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self._rank = module.rank(addresses, lambda text: str(explained(text)))

    def backend(self, group):
        """What PyTorch calls, which holds on to the group; nothing of the group holds on to it."""
        return self._module.backend(group.rank, group.size, group, self._rank)

    def run(self, launch, outputs, finish=None, keep=None):
        stream = self._launched(launch)
        return self._module.work(self._rank, stream, flattened(outputs), functools.partial(_finish, finish, keep))

    def message(self, request, receives, tensors, finish=None, keep=None):
        return self._module.message(self._rank, request, receives, tensors, functools.partial(_finish, finish, keep))

    def _take(self):
        return self._module.take(self._rank)

    def give_back(self, stream):
        self._module.give_back(self._rank, stream)

    def use(self, comm, messages, limit_ms, usual_ms):
        self._module.use(self._rank, comm or 0, messages or 0, limit_ms, usual_ms)

    def sweep(self):
        self._module.sweep(self._rank)

    def tell_failure(self):
        self._module.tell_failure(self._rank)

    def drain(self, limit_ms):
        self._module.drain(self._rank, limit_ms)
