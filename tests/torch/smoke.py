#!/usr/bin/env python3
"""Unmodified PyTorch (CUDA build) on the simulated device, without collectives: everything that needs no machine code.

    tests/sim/install DIR; tests/torch/shells.py TORCH_LIB_DIR DIR --nccl; LD_LIBRARY_PATH=DIR python3 tests/torch/smoke.py
"""

import torch

DIGITS = torch.arange(10.0)


def same(tensor, expected):
    assert (tensor.cpu() == expected).all(), tensor


def devices():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_properties(0).name == "ACCL simulated device"
    assert torch.cuda.get_device_properties(0).major == 9


def copies():
    there = DIGITS.to("cuda")
    same(there, DIGITS)
    other = there.to("cuda:1")
    assert other.device.index == 1
    same(other, DIGITS)
    pinned = torch.ones(5).pin_memory()
    assert pinned.is_pinned()
    same(pinned.to("cuda", non_blocking=True), torch.ones(5))
    assert there[3].item() == 3


def fills():
    same(torch.zeros(100, device="cuda"), 0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8):
        same(torch.full((100,), 3, device="cuda", dtype=dtype), 3)


def streams_and_events():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    source, stream = DIGITS.to("cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        start.record()
        copy = source.clone()
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    same(copy, DIGITS)


def errors():
    try:
        torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
    else:
        raise AssertionError("a TiB was given")
    try:
        DIGITS.to("cuda").sin()
    except RuntimeError as error:
        assert "not supported" in str(error), error
    else:
        raise AssertionError("machine code was run")
    same(DIGITS.to("cuda"), DIGITS)


def graphs():
    source, copy = (torch.zeros(10, device="cuda") for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy.copy_(source)
    source.copy_(DIGITS)
    same(copy, 0)
    for expected in (DIGITS, torch.full((10,), 2.0)):
        source.copy_(expected)
        graph.replay()
        torch.cuda.synchronize()
        same(copy, expected)


if __name__ == "__main__":
    checks = [devices, copies, fills, streams_and_events, errors, graphs]
    for check in checks:
        check()
    print(f"smoke: {len(checks)} checks of torch {torch.__version__}")
