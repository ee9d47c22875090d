#!/usr/bin/env python3
"""Writes stand-ins for the NVIDIA libraries that a CUDA build of PyTorch is linked with, except for those that the simulated device has.

    shells.py TORCH_LIB_DIR OUT_DIR [--nccl]

A stand-in has every symbol that PyTorch's own libraries want of it, and each of them ends the process with a line that names it,
since some addresses are resolved at load and none must be missing. Which library has which symbol is not written anywhere, so that
each stand-in has those whose names begin like the library's own. Needs nm, readelf and a C compiler.
"""

import pathlib
import re
import subprocess
import sys

# Not here: what the simulated device itself is; and NCCL, whose place our library takes (`--nccl` makes an empty one all the same).
PREFIXES = {
    "libcublas": r"cublas(?!Lt)", "libcublasLt": r"cublasLt", "libcudnn": r"cudnn", "libcufft": r"cufft", "libcurand": r"curand",
    "libcusparse": r"cusparse(?!Lt)", "libcusparseLt": r"cusparseLt", "libcusolver": r"cusolver", "libcufile": r"cuFile",
    "libcupti": r"cupti", "libnvrtc": r"nvrtc", "libnvshmem_host": r"nvshmem", "libnvJitLink": r"nvJitLink",
    "libnvToolsExt": r"nvtx",
}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted(library):
    """Undefined symbols of a library."""
    rows = (line.split() for line in output("nm", "-D", "--undefined-only", library).splitlines())
    return {row[-1].split("@")[0] for row in rows if row}


def needed(library):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library)))


def source(symbols):
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    for symbol in sorted(symbols):
        lines.append(f'void {symbol}(void) {{ fputs("shell: {symbol} was called\\n", stderr); abort(); }}')
    return "\n".join(lines) + "\n"


def main():
    torch_lib, out = map(pathlib.Path, sys.argv[1:3])
    if "--nccl" in sys.argv[3:]:
        PREFIXES["libnccl"] = r"nccl"
    out.mkdir(parents=True, exist_ok=True)
    libraries = sorted(torch_lib.glob("*.so*"))
    names, symbols = set(), set()
    for library in libraries:
        names |= needed(library)
        symbols |= wanted(library)
    own = {library.name for library in libraries}
    made = 0
    for name in sorted(names - own):
        stem = name.split(".")[0]
        if stem not in PREFIXES:
            continue
        mine = {symbol for symbol in symbols if re.match(PREFIXES[stem], symbol)}
        code = out / f"{stem}.c"
        code.write_text(source(mine))
        subprocess.run(["cc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", out / name, code], check=True)
        code.unlink()
        made += 1
    if not made:
        sys.exit("shells: nothing was made; is this the folder of PyTorch's libraries?")
    print(f"shells: {made} libraries in {out}")


if __name__ == "__main__":
    main()
