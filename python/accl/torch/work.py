"""What callers get for an operation: done, or under way on a host stream of its own.

What is under way is C++ (`native`) where that can be compiled, else Python, of which PyTorch asks only `wait()` and `get_future()`: there
`is_completed()` says False until somebody has waited.
"""

import collections
import ctypes
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
    """An operation that runs on a stream, or will. `finish` is called once when it is done, by whoever notices first; `keep` is what must live
    until then."""

    def __init__(self, streams, outputs, finish, keep, source):
        super().__init__()
        self._streams, self._stream = streams, None
        self._outputs, self._finish, self._keep, self._source = outputs, finish, keep, source
        self._launched = threading.Event()
        self._lock = threading.Lock()
        self._failure = self._future = None
        self._over = False

    def begin(self, stream):
        """It runs now."""
        self._stream = stream
        self._launched.set()

    def refuse(self, failure):
        """It will never run."""
        self._failure, self._over = failure, True
        self._launched.set()

    def _end(self, code):
        """Called with the lock held, when the stream has come to the end."""
        try:
            self._streams.library.check(code)
            if self._finish is not None:
                self._finish()
        except Exception as failure:  # what it is, the waiter is told
            self._failure = self._streams.explained(failure)
        self._streams.give_back(self._stream)
        self._finish = self._keep = None
        self._over = True

    def is_completed(self):
        # Somebody who waits holds the lock, and tells.
        if self._launched.is_set() and not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over:
                    code = self._streams.library.stream_query(self._stream)
                    if code != library.IN_PROGRESS:
                        self._end(code)
            finally:
                self._lock.release()
        return self._over

    def is_success(self):
        return self.is_completed() and self._failure is None

    def exception(self):
        return self._failure

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout is not None else 0
        if seconds > 0:
            self._wait_until(time.monotonic() + seconds, seconds)
        else:
            self._launched.wait()
            with self._lock:
                if not self._over:
                    self._end(self._streams.library.stream_synchronize(self._stream))
        if self._failure is not None:
            raise self._failure
        return True

    def _wait_until(self, deadline, seconds):
        self._launched.wait(seconds)
        while not self.is_completed():
            if time.monotonic() > deadline:
                raise self._streams.explained(
                    TimeoutError(f"the operation is not done after {seconds:g} s; see accl status for who is missing")
                )
            time.sleep(_LOOK_S)

    def synchronize(self):
        self.wait()

    def result(self):
        return self._outputs

    def source_rank(self):
        return self._source

    def get_future(self):
        if self._future is None:
            self._future = torch.futures.Future()
            self._streams.tell(self, self._future)
        return self._future


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

    def begin(self, work, launch):
        """Launches an operation that was deferred."""
        try:
            self._start(work, self._launched(launch))
        except Exception as failure:  # what it is, the waiter is told
            self.refuse(work, failure)

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
    """Host streams that are used again and again, operations that nobody has waited for yet, and the thread that completes futures."""

    def __init__(self, opened, explained):
        """`explained` makes the exception of a failure that callers see."""
        self.library, self.explained = opened, explained
        self._free = collections.deque()
        self._pending = collections.deque()
        self._told = None
        self._lock = threading.Lock()

    def run(self, launch, outputs, finish=None, keep=None, source=-1):
        """Launches an operation by `launch(stream)` and returns it; `keep` lives until it is done, then `finish` is called."""
        work = self.defer(outputs, finish, keep, source)
        work.begin(self._launched(launch))
        return work

    def defer(self, outputs, finish=None, keep=None, source=-1):
        """An operation that is launched later, by `begin(work, launch)`, or never, by `refuse(work, failure)`."""
        work = Pending(self, outputs, finish, keep, source)
        with self._lock:
            while self._pending and self._pending[0].is_completed():
                self._pending.popleft()
            # Its tensors live until it is done, also if the caller forgets it.
            self._pending.append(work)
        return work

    def _start(self, work, stream):
        work.begin(stream)

    def refuse(self, work, failure):
        work.refuse(self.explained(failure))

    def _take(self):
        with self._lock:
            return self._free.pop() if self._free else None

    def use(self, comm, limit_ms, usual_ms):
        """What is told to those who make calls without Python."""

    def give_back(self, stream):
        """The stream has nothing more to do."""
        self._free.append(stream)

    def drain(self):
        """Waits for all that is under way; failures have their own tellers."""
        while self._pending:
            work = self._pending.popleft()
            try:
                work.wait()
            except Exception:  # kept in the work
                pass

    def tell(self, work, future):
        """Completes a future when an operation is done."""
        if self._told is None:
            self._told = collections.deque()
            self._some = threading.Semaphore(0)
            threading.Thread(target=self._complete, name="accl-futures", daemon=True).start()
        self._told.append((work, future))
        self._some.release()

    def _complete(self):
        while True:
            self._some.acquire()
            work, future = self._told.popleft()
            try:
                work.wait()
            except Exception as failure:
                future.set_exception(failure)
            else:
                future.set_result(work.result())


class NativeStreams(_Launching):
    """The same where the back end is C++, which makes plain calls itself."""

    def __init__(self, module, opened, group, explained):
        self._module, self.library, self.explained = module, opened, explained

        def addresses(*functions):
            return [ctypes.cast(function, ctypes.c_void_p).value for function in functions]

        asked = addresses(opened.stream_synchronize, opened.stream_query, opened.error_text)
        self._functions = module.functions(*asked, lambda text: str(explained(text)))
        called = (opened.all_reduce, opened.reduce_scatter, opened.broadcast, opened.all_gather, opened.all_to_all)
        self.backend = module.backend(
            group.rank, group.size, group, self._functions, module.collectives(addresses(*called))
        )

    def run(self, launch, outputs, finish=None, keep=None, source=-1):
        stream = self._launched(launch)
        finish = functools.partial(_finish, finish, keep)
        return self._module.work(self.backend, stream, flattened(outputs), finish, source)

    def defer(self, outputs, finish=None, keep=None, source=-1):
        """An operation that is launched later, by `begin(work, launch)`, or never, by `refuse(work, failure)`."""
        finish = functools.partial(_finish, finish, keep)
        return self._module.work(self.backend, 0, flattened(outputs), finish, source)

    def _start(self, work, stream):
        self._module.begin(work, stream)

    def refuse(self, work, failure):
        self._module.refuse(work, str(failure))

    def _take(self):
        return self._module.take(self.backend)

    def give_back(self, stream):
        self._module.give_back(self._functions, stream)

    def use(self, comm, limit_ms, usual_ms):
        self._module.use(self.backend, comm or 0, limit_ms, usual_ms)

    def drain(self):
        self._module.drain(self.backend)
