"""lightning_digits.py on many workers.

    smbox run --per-node 2 examples/scripts/lightning_digits_smbox.py --output digits

The lines that differ from lightning_digits.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smbox_torch import EASGD, connect
from smbox_torch.integrations.lightning import BoxCallback


class Digits(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 16, 10),
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(dim=1) == y).float().mean())

    def on_train_epoch_end(self):
        loss, accuracy = (self.trainer.callback_metrics[k] for k in ("train_loss", "accuracy"))
        print(f"epoch {self.current_epoch} loss {loss:.4f} accuracy {accuracy:.1%}")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)]


def loaders(batch_size):
    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16.0
    y = torch.tensor(raw.target, dtype=torch.int64)
    train_set, test_set = TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])
    return DataLoader(train_set, batch_size, shuffle=True), DataLoader(test_set, 200)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="digits")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    seed_everything(1)
    train_loader, test_loader = loaders(batch_size=16)
    checkpoint = ModelCheckpoint(args.output, filename="last", enable_version_counter=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=args.epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        precision="bf16-mixed",
        callbacks=[checkpoint, BoxCallback(EASGD, connect(), "digits")],
        logger=False,
        enable_progress_bar=False,
    )
    path = os.path.join(args.output, "last.ckpt") if args.resume else None
    model = Digits(args.lr)
    trainer.fit(model, train_loader, test_loader, ckpt_path=path)
    (found,) = trainer.validate(model, test_loader, verbose=False)
    print(f"evaluated accuracy {found['accuracy']:.1%}")


if __name__ == "__main__":
    main()
