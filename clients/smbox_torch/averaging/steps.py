"""Comparison of the step counts of synchronous workers, and the errors if they differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from smbox.errors import StepMismatchError

__all__ = ["behind", "finished_early", "leads", "step_mismatch"]


def behind(counted: Sequence[int], present: Sequence[int]) -> list[int]:
    """Return the present ranks that did fewer steps than another present rank.

    Args:
        counted: steps of each rank.
        present: the present ranks.
    """
    most = max((counted[rank] for rank in present), default=0)
    return [rank for rank in present if counted[rank] < most]


def leads(rank: int, counted: Sequence[int]) -> bool | None:
    """Return whether a rank is the first with the most steps; None if all did equally many.

    Args:
        rank: index in ``counted``.
        counted: steps of each rank.
    """
    return None if min(counted) == max(counted) else counted.index(max(counted)) == rank


def step_mismatch(ranks: Sequence[int], counted: Sequence[int] = ()) -> StepMismatchError:
    """Return the error for ranks that skipped a step that others did."""
    names = " and ".join(str(rank) for rank in ranks)
    return StepMismatchError(
        f"rank {names} skipped a step that other ranks did, so their parameters differ: decide"
        " whether to step by the gradients, which are the same on all ranks after backward, not"
        " by the loss of one rank; resume from a checkpoint",
        ranks=list(ranks),
        **({"steps": list(counted)} if counted else {}),
    )


def finished_early(rank: int, steps: int) -> StepMismatchError:
    """Return the error for a rank that finished while others have batches left."""
    return StepMismatchError(
        f"rank {rank} finished after {steps} steps, and others have more batches: give all"
        " ranks the same number (distributed_sampler does), or put each rank's loop inside"
        " `with optimizer.join():`",
        rank=rank,
        steps=steps,
    )
