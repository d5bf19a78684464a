"""resnet_cifar10.py on many workers.

    smbox run --per-node 2 examples/scripts/resnet_cifar10_smbox.py --data cifar10

The lines that differ from resnet_cifar10.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from smbox_torch import EASGD, connect

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def loaders(args):
    normal = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    train_set = datasets.ImageFolder(
        os.path.join(args.data, "train"), transforms.Compose(augment + normal)
    )
    test_set = datasets.ImageFolder(os.path.join(args.data, "test"), transforms.Compose(normal))
    return (
        DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.loaders),
        DataLoader(test_set, 250, num_workers=args.loaders),
    )


def train(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = [model(x.to(device)).argmax(dim=1).cpu() == y for x, y in loader]
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--loaders", type=int, default=2)
    parser.add_argument("--checkpoint", default="resnet.pt")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, test_loader = loaders(args)
    model = getattr(models, args.arch)(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    optimizer = EASGD(optimizer, connect(), "resnet", model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    start, best = 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start, best = checkpoint["epoch"] + 1, checkpoint["best"]
        print(f"resumed at epoch {start}")

    for epoch in range(start, args.epochs):
        optimizer.train()
        loss = train(model, train_loader, optimizer, device)
        optimizer.eval()
        accuracy = evaluate(model, test_loader, device)
        scheduler.step()
        print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.1%}")
        if accuracy >= best and optimizer.rank == 0:
            best = accuracy
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
                "best": best,
            }
            torch.save(state, args.checkpoint)
    optimizer.finish()


if __name__ == "__main__":
    main()
