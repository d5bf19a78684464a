"""lstm_lm.py on many workers.

    smbox run --per-node 2 examples/scripts/lstm_lm_smbox.py --data input.txt

The lines that differ from lstm_lm.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from smbox_torch import EASGD, connect

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--emsize", type=int, default=200)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--lr", type=float, default=5.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=20)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--save", default="lstm.pt")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batchify(ids, bsz):
    nbatch = ids.size(0) // bsz
    return ids[: nbatch * bsz].view(bsz, -1).t().contiguous().to(device)


with open(args.data, encoding="utf-8") as f:
    words = f.read().split()
vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
corpus = torch.tensor([vocabulary[word] for word in words])
cut = int(0.9 * len(corpus))
train_data = batchify(corpus[:cut], args.batch_size)
val_data = batchify(corpus[cut:], 5)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, ninp, nlayers, dropout=dropout if nlayers > 1 else 0.0)
        self.decoder = nn.Linear(ninp, ntoken)
        self.decoder.weight = self.encoder.weight  # tied
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens, hidden=None):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        decoded = self.decoder(self.drop(output))
        return decoded.view(-1, decoded.size(-1)), tuple(h.detach() for h in hidden)


criterion = nn.CrossEntropyLoss()
model = RNNModel(len(vocabulary), args.emsize, args.nlayers, args.dropout).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
optimizer = EASGD(optimizer, connect(), "lstm", model=model)
train_data = train_data.chunk(optimizer.workers)[optimizer.rank]
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=1)
first_epoch, best_val_loss = 1, None
if args.resume:
    saved = torch.load(args.save, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    first_epoch, best_val_loss = saved["epoch"] + 1, saved["best_val_loss"]
    print(f"resumed at epoch {first_epoch}")


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def train():
    model.train()
    total_loss, batches, hidden = 0.0, 0, None
    for i in range(0, train_data.size(0) - 1, args.bptt):
        tokens, targets = get_batch(train_data, i)
        optimizer.zero_grad()
        output, hidden = model(tokens, hidden)
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss, batches = total_loss + loss.item(), batches + 1
    return total_loss / batches


@torch.no_grad()
def evaluate(source):
    model.eval()
    total_loss, hidden = 0.0, None
    for i in range(0, source.size(0) - 1, args.bptt):
        tokens, targets = get_batch(source, i)
        output, hidden = model(tokens, hidden)
        total_loss += len(tokens) * criterion(output, targets).item()
    return total_loss / (len(source) - 1)


for epoch in range(first_epoch, args.epochs + 1):
    optimizer.train()
    train_loss = train()
    optimizer.eval()
    val_loss = evaluate(val_data)
    scheduler.step(val_loss)
    if (best_val_loss is None or val_loss < best_val_loss) and optimizer.rank == 0:
        best_val_loss = val_loss
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch,
            "best_val_loss": best_val_loss,
        }
        torch.save(state, args.save)
    print(f"epoch {epoch} train loss {train_loss:.4f} val loss {val_loss:.4f}")
