"""The tools that this package carries, as commands."""

import os
import pathlib
import sys


def _run(name):
    path = pathlib.Path(__file__).parent / "bin" / name
    if not path.exists():
        sys.exit(f"{path} is not there: this is a copy of the sources; build a wheel with ci/wheel")
    os.execv(path, [str(path), *sys.argv[1:]])


def accl():
    """The small tool beside the library."""
    _run("accl")


def accl_bench():
    """The benchmark."""
    _run("accl-bench")
