"""Processes that are ranks of one job, for programs of others."""

import multiprocessing
import os
import sys


def library():
    """The library under test: the environment names its file."""
    return os.environ["LIBNCCL"]


def run(ranks, body, *arguments):
    """Runs body(rank, ranks, *arguments) in a process for each rank; all must succeed within two minutes."""
    context = multiprocessing.get_context("fork")
    # A child that fails says so by its exit code.
    processes = [context.Process(target=body, args=(rank, ranks, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
    if codes != [0] * ranks:
        sys.exit(f"the ranks ended with {codes}")


def proved(client, facts):
    """Says what was shown, and that it was something."""
    assert facts
    print(f"{client}:")
    for fact in facts:
        print(f"  {fact}")
