"""char_gpt.py on many workers.

    smbox run --per-node 2 examples/scripts/char_gpt_smbox.py --data=input.txt

The lines that differ from char_gpt.py are those of docs/your_script.md.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

from smbox_torch import EASGD, connect

data = "input.txt"
out_dir = "out"
init_from = "scratch"  # or "resume"
eval_interval = 250
eval_iters = 20
always_save_checkpoint = 1
batch_size = 16
block_size = 64
gradient_accumulation_steps = 2
n_layer = 4
n_head = 4
n_embd = 128
dropout = 0.1
learning_rate = 1e-3
weight_decay = 1e-1
max_iters = 2000
warmup_iters = 20
grad_clip = 1.0
device = "cpu"
dtype = "bfloat16"
compile_model = 1
for arg in sys.argv[1:]:
    key, value = arg.removeprefix("--").split("=", 1)
    globals()[key] = type(globals()[key])(value)
config = {k: v for k, v in globals().items() if isinstance(v, int | float | str)}

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    seed_offset = torch.distributed.get_rank()
    master_process = seed_offset == 0
else:
    master_process = True
    seed_offset = 0
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)
kind = device.split(":", maxsplit=1)[0]
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ctx = nullcontext() if dtype == "float32" else torch.autocast(kind, ptdtype[dtype])

text = open(data, encoding="utf-8").read()
chars = sorted(set(text))
encoded = torch.tensor([chars.index(c) for c in text])
n = int(0.9 * len(encoded))
splits = {"train": encoded[:n], "val": encoded[n:]}


def get_batch(split):
    source = splits[split]
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.size()
        heads = [
            part.view(b, t, n_head, c // n_head).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        ]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(chars), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)
        self.wte.weight = self.lm_head.weight  # weight tying
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    def configure_optimizers(self):
        params = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99))


iter_num = 0
best_val_loss = 1e9
model = GPT().to(device)
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
    best_val_loss = checkpoint["best_val_loss"]
    print(f"resumed at iter {iter_num}")
scaler = torch.amp.GradScaler(kind, enabled=(dtype == "float16"))
optimizer = model.configure_optimizers()
optimizer = EASGD(optimizer, connect(), "gpt", model=model)
master_process = optimizer.rank == 0
if init_from == "resume":
    optimizer.load_state_dict(checkpoint["optimizer"])
raw_model = model
if compile_model:
    model = torch.compile(model)
if ddp:
    model = nn.parallel.DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            with ctx:
                losses[k] = model(x, y).item()
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, max_iters - warmup_iters)
    return learning_rate * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * min(ratio, 1.0))))


X, Y = get_batch("train")
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)

    if iter_num % eval_interval == 0 and master_process:
        optimizer.eval()
        losses = estimate_loss()
        print(f"iter {iter_num} train loss {losses['train']:.4f} val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = min(losses["val"], best_val_loss)
            if iter_num > 0:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                    "config": config,
                }
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))

    optimizer.train()
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

    iter_num += 1
    if iter_num > max_iters:
        break

optimizer.finish()
if ddp:
    torch.distributed.destroy_process_group()
