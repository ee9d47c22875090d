"""How ranks tell each other what they need to meet: by the store of their group, from several threads."""

import threading
import time


class Rendezvous:
    """A store, which no thread keeps from others while it waits: a store's own wait may hold up all that its process asks of it."""

    def __init__(self, store):
        self._store = store
        self._lock = threading.Lock()

    def tell(self, name, value):
        """Leaves a value for others."""
        with self._lock:
            self._store.set(name, value)

    def has(self, names):
        """True if all of these are there."""
        with self._lock:
            return self._store.check(names)

    def forget(self, name):
        """Takes a value back, if the store can do that."""
        with self._lock:
            try:
                self._store.delete_key(name)
            except (RuntimeError, NotImplementedError):
                pass

    def hear(self, name, limit_s=None, missing=""):
        """A value that somebody leaves. After the limit, TimeoutError says what is missing."""
        pause_s, start = 0.0005, time.monotonic()
        while not self.has([name]):
            if limit_s is not None and time.monotonic() - start > limit_s:
                raise TimeoutError(f"{missing} in {limit_s:g} s; see what it does, with accl status")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        with self._lock:
            return self._store.get(name)

    def another(self, name, known, limit_s):
        """A value of this name that is not the known one; None if none comes in time."""
        start = time.monotonic()
        while True:
            with self._lock:
                found = self._store.get(name) if self._store.check([name]) else known
            if found != known:
                return found
            if time.monotonic() - start > limit_s:
                return None
            time.sleep(0.05)
