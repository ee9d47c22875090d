"""PyTorch's own tests of process groups (torch/testing/_internal/distributed/distributed_test.py, part of every release), those that it has for gloo,
over "accl" on CPUs: pytorch_own.py [-k PATTERN]...

They are told to take themselves for gloo's when they are read, so that none is left out that is for CPUs, and make groups of "accl" when they run.
"""

import os
import sys
import tempfile

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
os.environ.setdefault("INIT_METHOD", f"file://{os.environ['TEMP_DIR']}/shared_init_file")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
for name in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], name), exist_ok=True)

import torch

torch.cuda.is_available = lambda: False
torch.set_num_threads(1)

import accl.torch  # registers the back end
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed import distributed_test as tests



class Both(str):
    """The name "accl", which is also gloo's where a test asks what it may do."""

    def __eq__(self, other):
        return other in ("accl", "gloo")

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


tests.BACKEND = Both("accl")
# What asserts gloo's own words: "custom" is what PyTorch says of every back end that is not its own, and where gloo's ranks name rank 0, which has
# told them to give up, ours name who is missing.
for name in ("test_ddp_logging_data_cpu", "test_monitored_barrier_gloo", "test_monitored_barrier_gloo_rank_0_timeout"):
    delattr(tests.DistributedTest._DistTestBase, name)


class Own(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
    """Each test in processes of its own."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_tests()
