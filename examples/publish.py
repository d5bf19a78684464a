"""A trainer publishes versions of a policy; two readers pull each, complete or not at all.

python examples/publish.py
"""

from __future__ import annotations

import multiprocessing

import torch

import smbox
from smbox_torch import Publisher, Subscriber

READERS = 2
VERSIONS = 5


def make_policy() -> torch.nn.Module:
    """A policy of 5 MB."""
    return torch.nn.Sequential(
        torch.nn.Linear(128, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)
    )


def read(address: str, rank: int) -> None:
    torch.set_num_threads(1)  # all processes share the host's cores
    policy = make_policy()
    with smbox.connect(address) as box:
        subscriber = Subscriber(box, "policy")
        version = 0
        while version < VERSIONS:
            version = subscriber.pull(into=policy, newer_than=version, timeout_s=60.0)
            ms = 1000 * subscriber.copy_s
            print(f"reader {rank}: version {version} in {ms:.1f} ms", flush=True)
            box.counter(f"seen-{version}").add()


def main() -> None:
    torch.set_num_threads(1)
    policy = make_policy()
    context = multiprocessing.get_context("spawn")
    with smbox.local(memory="64MiB") as box, Publisher(box, "policy", policy) as publisher:
        readers = [context.Process(target=read, args=(box.address, r)) for r in range(READERS)]
        for reader in readers:
            reader.start()
        for _ in range(VERSIONS):
            with torch.no_grad():  # a step of training
                for parameter in policy.parameters():
                    parameter.add_(0.01)
            version = publisher.publish()
            box.counter(f"seen-{version}").wait(READERS, timeout_s=100.0)  # only for show
        for reader in readers:
            reader.join()
        print("every reader has version", VERSIONS)


if __name__ == "__main__":
    main()
