"""Two hosts on one cable, each a network namespace of this machine, for programs that compare what goes over TCP."""

import contextlib
import os
import subprocess
import time


def _ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def two_hosts():
    """The names of two namespaces with eth0 on both ends of a cable; needs the right to make them."""
    names = [f"acclspeed-{os.getpid()}-{host}" for host in range(2)]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        # Both ends begin in the first namespace, so that no name of this machine's interfaces is taken.
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "far")
        _ip("-n", names[0], "link", "set", "far", "netns", names[1])
        _ip("-n", names[1], "link", "set", "far", "name", "eth0")
        for host, name in enumerate(names):
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "addr", "add", f"10.9.0.{host + 1}/24", "dev", "eth0")
        for name in names:
            _await_carrier(name)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _await_carrier(name, limit_s=5):
    """The kernel says a moment later that an interface has a carrier; nobody uses it before."""
    deadline = time.monotonic() + limit_s
    while "state UP" not in _ip("-n", name, "link", "show", "eth0"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"eth0 of {name} does not get a carrier")
        time.sleep(0.01)
