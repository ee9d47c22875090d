"""The part of the back end that is compiled for the PyTorch that is installed, when it is first needed.

The result is kept in ACCL_BUILD_DIR, else in the user's cache directory (accl/torch-…), for every process that comes later. Without a C++
compiler the back end works as well, and operations that the caller does not wait for at once take longer.
"""

import fcntl
import hashlib
import importlib.util
import os
import pathlib
import platform
import subprocess
import sys
import sysconfig
import warnings

import torch

_SOURCES = [pathlib.Path(__file__).parent / name for name in ("backend.cpp", "lists.hpp", "work.hpp")]
_NAME = "_accl_native"

_loaded = None
_tried = False


def load():
    """The compiled module, or None."""
    global _loaded, _tried
    if not _tried:
        _tried = True
        if os.environ.get("ACCL_NATIVE") != "0":
            try:
                _loaded = _import(_built())
            except (OSError, ImportError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", None) or str(error)
                warnings.warn(
                    f"accl.torch goes on without compiled code, which makes asynchronous operations slower: {reason.strip()[-400:]}; "
                    "install a C++ compiler (c++), or set ACCL_NATIVE=0 to say that this is meant",
                    stacklevel=2,
                )
    return _loaded


def _directory():
    named = os.environ.get("ACCL_BUILD_DIR")
    if named:
        return pathlib.Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache) / "accl"


def _built():
    """The path of the module; it is compiled if it is not there, by one process at a time."""
    what = [pathlib.Path(__file__).read_bytes(), *(source.read_bytes() for source in _SOURCES), torch.__version__.encode(), sys.version.encode(), platform.machine().encode()]
    key = hashlib.sha256(b"\0".join(what)).hexdigest()[:16]
    directory = _directory().absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(directory)
    target = directory / f"torch-{torch.__version__}-{key}" / f"{_NAME}.so"
    if not target.exists():
        target.parent.mkdir(mode=0o755, exist_ok=True)
        with open(target.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _compile(target)
    return target


def _check_owner(directory):
    """What lies there is carried out: nobody else may put something there."""
    found = directory.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise OSError(
            f"{directory} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}: others could put code there; name a "
            "directory of your own in ACCL_BUILD_DIR, or take their right to write (chmod go-w)"
        )


def _compile(target):
    root = pathlib.Path(torch.__file__).parent
    includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include")]
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    new = target.with_suffix(".new")
    subprocess.run(
        [
            os.environ.get("CXX", "c++"),
            *("-shared", "-fPIC", "-O2", "-w", "-std=c++20" if version >= (2, 9) else "-std=c++17"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *_same_types(),
            *(f"-I{include}" for include in includes),
            str(_SOURCES[0]),
            f"-L{root / 'lib'}",
            *("-ltorch_python", "-ltorch_cpu", "-lc10", "-o", str(new)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    new.rename(target)


def _same_types():
    """What makes classes of PyTorch those of the module, too: releases before 2.9 name the compiler that they were built with."""
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            yield f'-DPYBIND11_{name}="{value}"'


def _import(path):
    spec = importlib.util.spec_from_file_location(_NAME, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
