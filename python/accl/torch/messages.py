"""Sends and receives between two ranks, as the library's messages with tags: any number may be under way, and none keeps others waiting."""

from accl import library
from accl.torch.tensors import Plain, only


class Messages:
    """The part of `group.Group` that sends and receives."""

    def send(self, tensors, peer, tag):
        data = Plain(only(tensors, "send")).data
        request = self._begin_message(self._library.isend, data, peer, tag)
        return self._streams.message(request, False, tensors, keep=data)

    def recv(self, tensors, peer, tag):
        plain = Plain(only(tensors, "recv"), filled=False)
        request = self._begin_message(self._library.irecv, plain.data, peer, tag)
        return self._streams.message(request, True, tensors, plain.put_back, plain)

    def recv_anysource(self, tensors, tag):
        if not self._streams.tells_sources:
            raise NotImplementedError(
                "accl: recv from any rank needs compiled code, without which PyTorch does not ask who has sent; install a C++ compiler "
                "(c++), or name the source"
            )
        return self.recv(tensors, library.ANY_RANK, tag)

    def _begin_message(self, call, data, peer, tag):
        limit_ms = milliseconds(self._default_timeout)
        return self._check(self._library.message, call, data, peer, tag, self._used(self._messages), limit_ms)


def milliseconds(timeout):
    """As the library takes them: 0 is none, so that no limit of a caller becomes that."""
    return min(max(int(timeout.total_seconds() * 1000), 1), 2**31 - 1)
