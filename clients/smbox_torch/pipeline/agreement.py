"""Agreement of a pipeline's stages on the tensors that they exchange.

The first stage computes a few rows of zeros and offers the shape and dtype of the result to the
next stage, which does the same, and so on to the last stage. The answers come back in the other
direction. So all stages are built, or none: a stage that cannot process what it is offered
refuses, and every stage raises the same error. Boundary b lies between stages b and b + 1. G is
the generation of the lease of stage b, which differs in every run. The regions of boundary b:

    NAME.b.G.offer      JSON of Offer, by stage b
    NAME.b.G.answer     JSON of Answer, by stage b + 1
    NAME.b.G.forward    ring of activations (ring.py), made by stage b + 1
    NAME.b.G.backward   ring of gradients, made by stage b
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
import torch
from torch.func import functional_call

from smbox import Box, Region
from smbox.errors import (
    ConfigError,
    RegionFreedError,
    RegionNotFoundError,
    RequestTimeoutError,
    SmboxError,
)
from smbox_torch.adapter import dtype_name
from smbox_torch.pipeline.ring import TensorSpec
from smbox_torch.pipeline.stage_exit import ExitKind, StageExit
from smbox_torch.pipeline.stages import Stages

__all__ = [
    "Answer",
    "Boundary",
    "Offer",
    "Refusal",
    "Settings",
    "device_of",
    "free_boundaries",
    "output_of",
]


class Settings(msgspec.Struct, frozen=True):
    """Settings that must be the same at all stages.

    Attributes:
        stages: number of stages.
        micro_batches: number of micro-batches in a batch.
        schedule: a name in SCHEDULES.
        slots: number of slots in a ring.
    """

    stages: int
    micro_batches: int
    schedule: str
    slots: int


class Refusal(msgspec.Struct, frozen=True):
    """Why the pipeline cannot be built; every stage raises it as an error.

    Attributes:
        kind: "unfit": the stages do not match; "late": a stage did not start in time; "ended":
            a stage has exited.
        text: message of the error.
        stage: number of the stage that caused it.
        how: how that stage exited.
    """

    kind: Literal["unfit", "late", "ended"]
    text: str
    stage: int
    how: ExitKind

    @classmethod
    def of(cls, error: BaseException, stage: int) -> Refusal:
        """Return the refusal that reports an error at a stage to the other stages."""
        if isinstance(error, ConfigError):
            return cls("unfit", error.message, stage, "failed")
        if isinstance(error, RequestTimeoutError):
            return cls("late", f"stage {stage}: {error}", stage, "failed")
        exit_ = StageExit.from_error(error, stage)
        is_own = exit_ == (stage, "failed")
        text = f"{type(error).__name__}: {error}" if is_own else ""
        return cls("ended", text, exit_.stage, exit_.how)

    def error(self, stages: Stages) -> SmboxError:
        """Return the error that a stage raises when it receives this refusal."""
        if self.kind == "unfit":
            return ConfigError(self.text)
        if self.kind == "late":
            return RequestTimeoutError(self.text, op="pipeline")
        return stages.exit_error(StageExit(self.stage, self.how), self.text)


class Offer(msgspec.Struct, frozen=True):
    """The output that a stage offers to the next one.

    Attributes:
        settings: settings of the offering stage.
        shape: shape of the largest micro-batch of its output.
        dtype: dtype of its output.
    """

    settings: Settings
    shape: tuple[int, ...]
    dtype: str

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype that are offered."""
        return TensorSpec(self.shape, self.dtype)


class Answer(msgspec.Struct, frozen=True):
    """The next stage's answer to an offer: it and all stages after it agree.

    Attributes:
        generation: generation of the answering stage's lease.
    """

    generation: int


class _Message(msgspec.Struct, frozen=True):
    """Contents of a region of the agreement: exactly one field is set."""

    offer: Offer | None = None
    answer: Answer | None = None
    refusal: Refusal | None = None


class Boundary:
    """The boundary between stages ``first`` and ``first + 1``.

    Args:
        box: connection to the memory.
        name: name of the pipeline.
        first: number of the upstream stage.
        generation: generation of the upstream stage's lease.
    """

    def __init__(self, box: Box, name: str, first: int, generation: int) -> None:
        self._box = box
        self._prefix = f"{name}.{first}.{generation}"
        self._first = first
        self.forward = f"{self._prefix}.forward"
        self.backward = f"{self._prefix}.backward"

    def offer(self, offer: Offer) -> None:
        """Send an offer to the downstream stage."""
        self._send("offer", _Message(offer=offer))

    def answer(self, answer: Answer) -> None:
        """Send an answer to the upstream stage."""
        self._send("answer", _Message(answer=answer))

    def refuse_downstream(self, refusal: Refusal) -> None:
        """Send a refusal to the downstream stage; it replaces an offer."""
        self._free("offer")
        self._send("offer", _Message(refusal=refusal))
        if self._find("answer") is not None:  # the downstream stage reads nothing after that
            self.free()

    def refuse_upstream(self, refusal: Refusal) -> None:
        """Send a refusal to the upstream stage."""
        self._send("answer", _Message(refusal=refusal))
        if self.refusal() is not None:  # it will not read the answer
            self.free()

    def refusal(self) -> Refusal | None:
        """Return the refusal by which the upstream stage replaced its offer, or None."""
        message = self._find("offer")
        return None if message is None else message.refusal

    def await_answer(self, stages: Stages) -> Refusal | None:
        """Wait for the answer; return None if all downstream stages agree."""
        message = _read(stages.wait_for_region(f"{self._prefix}.answer", self._first + 1))
        if message.answer is not None:
            stages.expect(self._first + 1, message.answer.generation)
        return message.refusal

    def free(self) -> None:
        """Free offer and answer."""
        for word in ("offer", "answer"):
            self._free(word)

    def _free(self, word: str) -> None:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            self._box.free(f"{self._prefix}.{word}")

    def _find(self, word: str) -> _Message | None:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            return _read(self._box.attach(f"{self._prefix}.{word}", timeout_s=None))
        return None

    def _send(self, word: str, message: _Message) -> None:
        text = np.frombuffer(msgspec.json.encode(message), np.uint8)
        self._box.create(f"{self._prefix}.{word}", init=text)

    @staticmethod
    def await_offer(
        box: Box, name: str, first: int, stages: Stages
    ) -> tuple[Boundary, Offer | Refusal]:
        """Wait for the offer of stage ``first``; return its boundary and the offer.

        An offer is not read if an earlier process of this stage has answered it.
        """

        def offer_of(generation: int) -> str | None:
            prefix = f"{name}.{first}.{generation}"
            return None if stages.exists(f"{prefix}.answer") else f"{prefix}.offer"

        while True:
            generation, region = stages.wait_for_offer(first, offer_of)
            with contextlib.suppress(RegionFreedError):  # a refusal replaces it
                message = _read(region)
                break
        stages.expect(first, generation)
        found = message.offer or message.refusal
        assert found is not None
        return Boundary(box, name, first, generation), found


def _read(region: Region) -> _Message:
    return msgspec.json.decode(region.get().tobytes(), type=_Message)


def free_boundaries(box: Box, name: str, is_stale: Callable[[int, int], bool]) -> None:
    """Free the regions of boundaries that nobody uses any more.

    Args:
        box: connection to the memory.
        name: name of the pipeline.
        is_stale: called with the number and the generation of the upstream stage.
    """
    words = "offer|answer|(?:forward|backward)(?:.sent|.read)?"
    pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.(\d+)\.(?:{words})")
    for info in box.regions():
        found = pattern.fullmatch(info.name)
        if found is not None and is_stale(*map(int, found.groups())):
            with contextlib.suppress(RegionNotFoundError, RegionFreedError):
                box.free(info)


@torch.no_grad()
def output_of(module: torch.nn.Module, taken: TensorSpec, *, is_last: bool) -> TensorSpec:
    """Compute two rows of zeros to find the shape and dtype of a module's output.

    Buffers and torch's random numbers stay as they were. Batch norm does not accept a single
    row. torch's fake tensors need no data, but accept operands of different dtypes.

    Raises:
        ConfigError: the module cannot process such a micro-batch, or its output is not a
            tensor that a stage can process.
    """
    rows = min(taken.shape[0], 2)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    device = device_of(module)
    x = torch.zeros((rows, *taken.shape[1:]), dtype=taken.torch_dtype, device=device)
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device]):
            y = functional_call(module, buffers, (x,))
    except Exception as error:
        raise ConfigError(
            f"the module cannot process {taken}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(y, torch.Tensor) or not y.dim() or len(y) != rows:
        raise ConfigError(
            "the output must be a tensor with the rows of the input as axis 0: from"
            f" {list(x.shape)} the module computes"
            f" {list(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__}"
        )
    if y.layout is not torch.strided:
        raise ConfigError(f"the output must be a dense tensor, not {y.layout}")
    if not is_last and not y.is_floating_point():
        raise ConfigError(f"no gradient can come back through an output of {y.dtype}")
    return TensorSpec((taken.shape[0], *y.shape[1:]), dtype_name(y.dtype))


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of a module's parameters; the CPU for a module without parameters."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))
