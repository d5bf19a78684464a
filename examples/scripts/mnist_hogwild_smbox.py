"""mnist_hogwild.py on many workers.

    smbox run --per-node 2 examples/scripts/mnist_hogwild_smbox.py --data mnist

The lines that differ from mnist_hogwild.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from smbox_torch import Hogwild, connect


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.view(-1, 320))))


def train(rank, args, model, dataset):
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(1)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    optimizer = Hogwild(optimizer, connect(), "mnist")
    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"process {rank} epoch {epoch} loss {total / len(loader):.4f}", flush=True)


@torch.no_grad()
def test(model, dataset):
    model.eval()
    loader = DataLoader(dataset, batch_size=1000)
    right = [model(data).argmax(dim=1) == target for data, target in loader]
    print(f"accuracy {torch.cat(right).float().mean():.1%}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--save", default="mnist.pt")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    read = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    train_set = datasets.MNIST(args.data, train=True, transform=read)
    test_set = datasets.MNIST(args.data, train=False, transform=read)
    model = Net()
    if args.resume:
        model.load_state_dict(torch.load(args.save))
        test(model, test_set)
    model.share_memory()  # gradients are allocated lazily, so they are not shared here

    processes = []
    for rank in range(args.num_processes):
        p = mp.Process(target=train, args=(rank, args, model, train_set))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    shared = Hogwild(torch.optim.SGD(model.parameters()), connect(), "mnist")

    test(model, test_set)
    if args.save and shared.rank == 0:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
