"""Runs a function in several processes, each a rank of a group with the back end "accl"."""

import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


# Without compiled code, PyTorch does not ask the back end whether an operation is done.
TELLS_COMPLETION = os.environ.get("ACCL_NATIVE") != "0"


RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def has(release, what):
    """True if this PyTorch has it; says so if not."""
    if RELEASE < release:
        print(f"backend: not tried: {what}, which PyTorch {torch.__version__} has not", flush=True)
    return RELEASE >= release


def raises(kind, text, call):
    """The call must end with such an exception, in whose words the text is."""
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind} with {text}")


def work(rank, ranks, function, store, arguments, backend):
    """What the process of one rank does."""
    import accl.torch  # registers the back end

    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    try:
        function(rank, ranks, *arguments)
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # The others may wait for this rank; nobody waits for its clean-up.
        os._exit(1)


def run(ranks, function, *arguments, backend="accl", limit_s=120, spared=()):
    """Calls function(rank, ranks, *arguments) everywhere; fails if one of them does, but those that are spared."""
    with tempfile.TemporaryDirectory() as directory:
        context = processes.get_context("fork")
        store = os.path.join(directory, "store")
        workers = [
            context.Process(target=work, args=(rank, ranks, function, store, arguments, backend))
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(limit_s)
        codes = [worker.exitcode for rank, worker in enumerate(workers) if rank not in spared]
        for worker in workers:
            worker.kill()
        if any(code != 0 for code in codes):
            raise SystemExit(f"{function.__name__} on {ranks} ranks: exit codes {codes}")


def check_all(name, checks, more=lambda: 0):
    """A program's checks, on as many ranks as its arguments say; `more` does others, and returns how many."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [2, 3]
    for size in sizes:
        for check in checks:
            run(size, check)
    print(f"backend: {name}: {len(sizes) * len(checks) + more()} checks passed")
