#!/usr/bin/env python3
"""PyTorch on the simulated device with the helper: operations, an optimizer, a tensor shared with another process.

    tests/sim/install DIR; tests/torch/shells.py TORCH_LIB_DIR DIR --nccl; LD_LIBRARY_PATH=DIR python3 tests/torch/training.py
"""

import copy

import torch

import helper


def operations():
    left, right = torch.randn(5, 7, device="cuda"), torch.randn(7, 3, device="cuda")
    assert torch.allclose((left @ right).cpu(), left.cpu() @ right.cpu())
    strided = torch.arange(6, device="cuda").float().view(2, 3).t()
    assert torch.equal(strided.contiguous().cpu(), strided.cpu().contiguous())
    narrow = left.to(torch.bfloat16).to("cuda:1")
    assert torch.equal(narrow.float().cpu(), left.cpu().bfloat16().float())
    grown = torch.empty(0, device="cuda")
    torch.add(left, left, out=grown)
    assert torch.equal(grown.cpu(), left.cpu() * 2)
    assert torch.equal(left[left > 0].cpu(), left.cpu()[left.cpu() > 0])


def optimizer():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(7, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3)]
    here = torch.nn.Sequential(*layers)
    there = copy.deepcopy(here).cuda()
    for model, device in ((here, "cpu"), (there, "cuda")):
        torch.manual_seed(1)
        adam = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(5):
            inputs, labels = torch.randn(4, 7).to(device), torch.randint(0, 3, (4,)).to(device)
            adam.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            adam.step()
    for mine, theirs in zip(here.parameters(), there.parameters()):
        assert torch.allclose(mine, theirs.cpu(), atol=1e-6)


def other_process(queue, answers):
    helper.install()
    tensor = queue.get()
    assert tensor.is_cuda
    answers.put(tensor.cpu().tolist())
    tensor.zero_()
    torch.cuda.synchronize()
    del tensor
    answers.put("zeroed")
    queue.get()


def processes():
    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=other_process, args=(queue, answers))
    process.start()
    tensor = torch.arange(4.0).cuda()
    queue.put(tensor)
    assert answers.get(timeout=60) == [0, 1, 2, 3]
    assert answers.get(timeout=60) == "zeroed"
    assert (tensor.cpu() == 0).all()
    queue.put(None)
    process.join()
    assert process.exitcode == 0


if __name__ == "__main__":
    count, library = helper.install()
    assert count > 500, count
    checks = [operations, optimizer, processes]
    for check in checks:
        check()
    print(f"training: {len(checks)} checks of torch {torch.__version__}, {count} operations run on the CPU")
