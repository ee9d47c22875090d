"""Sends and receives between two ranks.

Messages of one sender, one receiver and one tag follow each other, and wait for nobody else: they have a communicator of their own, which is
made when the first of them is asked for, by both sides. So a send or receive whose partner is late keeps neither collectives nor other messages
waiting, and tags keep messages apart.
"""

import threading
import time

import torch

from accl import library


class _Lane:
    """The messages of one sender, one receiver and one tag."""

    def __init__(self, streams, connect):
        self._streams = streams
        self._lock = threading.Lock()
        self._waiting = []
        self._failure = None
        self.comm = None
        threading.Thread(target=self._open, args=(connect,), name="accl-connect", daemon=True).start()

    def _open(self, connect):
        try:
            comm = connect()
        except Exception as failure:  # for those who wait
            with self._lock:
                self._failure = failure
                waiting, self._waiting = self._waiting, None
            for work, _ in waiting:
                self._streams.refuse(work, failure)
            return
        with self._lock:
            self.comm = comm
            # In their order, and before any that comes now.
            for work, launch in self._waiting:
                self._streams.begin(work, launch)
            self._waiting = None

    def run(self, launch, tensors, **more):
        """Launches a message by `launch(stream)`, now or when both sides are connected."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self.comm is None:
                work = self._streams.defer(tensors, **more)
                self._waiting.append((work, launch))
                return work
        return self._streams.run(launch, tensors, **more)


class Messages:
    """All messages of one rank of a group."""

    def __init__(self, opened, streams, store, rank):
        self._library, self._streams, self._store, self._rank = opened, streams, store, rank
        self._store_lock = threading.Lock()
        self._lanes = {}
        self._lock = threading.Lock()

    def send(self, tensor, peer, tag):
        """Sends a tensor, and returns the work."""
        lane = self._lane(self._rank, peer, tag)
        data = tensor.resolve_conj().resolve_neg().contiguous()

        def send(stream):
            self._library.check(
                self._library.send(data.data_ptr(), data.nbytes, library.UINT8, 1, lane.comm, stream)
            )

        return lane.run(send, [tensor], keep=data)

    def recv(self, tensor, peer, tag):
        """Receives into a tensor, and returns the work."""
        lane = self._lane(peer, self._rank, tag)
        plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        data = tensor if plain else torch.empty_like(tensor, memory_format=torch.contiguous_format)

        def finish():
            if not plain:
                tensor.copy_(data)

        def recv(stream):
            self._library.check(
                self._library.recv(data.data_ptr(), data.nbytes, library.UINT8, 0, lane.comm, stream)
            )

        return lane.run(recv, [tensor], finish=finish, keep=(tensor, data), source=peer)

    def end(self, forcibly):
        """Gives the communicators back."""
        end = self._library.abort if forcibly else self._library.destroy
        with self._lock:
            for lane in self._lanes.values():
                if lane.comm is not None:
                    end(lane.comm)
            self._lanes.clear()

    def _lane(self, sender, receiver, tag):
        key = (sender, receiver, tag)
        lane = self._lanes.get(key)
        if lane is None:
            with self._lock:
                if key not in self._lanes:
                    self._lanes[key] = _Lane(self._streams, lambda: self._connect(*key))
                lane = self._lanes[key]
        return lane

    def _connect(self, sender, receiver, tag):
        name = f"accl/message/{sender}/{receiver}/{tag}"
        if self._rank == sender:
            unique_id = self._library.unique_id()
            with self._store_lock:
                self._store.set(name, unique_id)
            return self._library.join(2, 0, unique_id)
        return self._library.join(2, 1, self._fetched(name))

    def _fetched(self, name):
        """A value of the store, which must not be kept from others while it waits. The wait ends with the process, or with the operation's own
        time limit, of which this knows nothing."""
        pause_s = 0.001
        while True:
            with self._store_lock:
                if self._store.check([name]):
                    return self._store.get(name)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)
