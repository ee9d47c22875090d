"""Sends and receives between two ranks.

Messages of one sender, one receiver and one tag follow each other, and wait for nobody else: they have a communicator of their own, which is
made when the first of them is asked for, by both sides. So a send or receive whose partner is late keeps neither collectives nor other messages
waiting, and tags keep messages apart.
"""

import threading

from accl import library
from accl.torch.tensors import Plain


class _Lane:
    """The messages of one sender, one receiver and one tag."""

    def __init__(self, streams, abort, connect):
        self._streams, self._abort = streams, abort
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
                self._failure = self._failure or failure
                waiting, self._waiting = self._waiting or [], None
            for work, _ in waiting:
                self._streams.refuse(work, failure)
            return
        with self._lock:
            if self._waiting is None:
                # The group has ended meanwhile.
                self._abort(comm)
                return
            self.comm = comm
            # In their order, and before any that comes now.
            for work, launch in self._waiting:
                self._streams.begin(work, launch)
            self._waiting = None

    def end(self, give_back):
        """The group ends: what is not launched never will be."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
            comm, self.comm = self.comm, None
            self._failure = self._failure or RuntimeError("the group has been destroyed, or aborted")
        for work, _ in waiting:
            self._streams.refuse(work, self._failure)
        if comm is not None:
            give_back(comm)

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

    def __init__(self, opened, streams, rendezvous, rank):
        self._library, self._streams, self._rendezvous, self._rank = opened, streams, rendezvous, rank
        self._lanes = {}
        self._lock = threading.Lock()

    def send(self, tensor, peer, tag):
        """Sends a tensor, and returns the work."""
        lane = self._lane(self._rank, peer, tag)
        data = Plain(tensor).data

        def send(stream):
            self._library.check(
                self._library.send(data.data_ptr(), data.nbytes, library.UINT8, 1, lane.comm, stream)
            )

        return lane.run(send, [tensor], keep=data)

    def recv(self, tensor, peer, tag):
        """Receives into a tensor, and returns the work."""
        lane = self._lane(peer, self._rank, tag)
        plain = Plain(tensor, filled=False)
        data = plain.data

        def recv(stream):
            self._library.check(
                self._library.recv(data.data_ptr(), data.nbytes, library.UINT8, 0, lane.comm, stream)
            )

        return lane.run(recv, [tensor], finish=plain.put_back, keep=plain, source=peer)

    def drop_receives(self):
        """Nobody waits for what has not come yet."""
        with self._lock:
            lanes = [key for key in self._lanes if key[1] == self._rank]
            for key in lanes:
                self._lanes.pop(key).end(self._library.abort)

    def end(self, forcibly):
        """Gives the communicators back."""
        with self._lock:
            for lane in self._lanes.values():
                lane.end(self._library.abort if forcibly else self._library.destroy)
            self._lanes.clear()

    def _lane(self, sender, receiver, tag):
        key = (sender, receiver, tag)
        lane = self._lanes.get(key)
        if lane is None:
            with self._lock:
                if key not in self._lanes:
                    self._lanes[key] = _Lane(self._streams, self._library.abort, lambda: self._connect(*key))
                lane = self._lanes[key]
        return lane

    def _connect(self, sender, receiver, tag):
        name = f"accl/message/{sender}/{receiver}/{tag}"
        if self._rank == sender:
            unique_id = self._library.unique_id()
            self._rendezvous.tell(name, unique_id)
            return self._library.join(2, 0, unique_id)
        return self._library.join(2, 1, self._rendezvous.hear(name))
