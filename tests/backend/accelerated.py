"""A step of Accelerate over the back end that torchrun's ranks are told of: accelerated.py BACKEND. Prints the loss after each step."""

import sys

import torch
from accelerate import Accelerator

if sys.argv[1] == "accl":
    import accl.torch  # registers the back end

# For CPUs it makes groups of gloo or MPI alone, and uses one that is there.
torch.distributed.init_process_group(sys.argv[1])
accelerator = Accelerator(cpu=True)
assert torch.distributed.get_backend() == sys.argv[1], torch.distributed.get_backend()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
data = torch.utils.data.TensorDataset(inputs := torch.randn(96, 8), inputs.tanh().mean(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for rows, targets in (batch for _ in range(5) for batch in loader):
    loss = torch.nn.functional.mse_loss(model(rows), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses = accelerator.gather(loss.detach())
    assert losses.numel() == accelerator.num_processes
    accelerator.print(f"loss {losses.mean():.6f}")
accelerator.end_training()
