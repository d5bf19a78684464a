"""How the stages of a pipeline agree, before anything moves, on what goes from one to the next.

The first stage computes a few rows of zeros and offers the shape and dtype that come out to the
next stage, which does the same, down to the last one.
The answers come back the other way. So all stages are built, or none: a stage that cannot take
what it is offered refuses, and every stage raises the same error. Regions of boundary b,
between stages b and b + 1, where G is the generation of the place of stage b, which no other
run has:

    NAME.b.G.offer      JSON of Offer, by stage b
    NAME.b.G.answer     JSON of Answer, by stage b + 1
    NAME.b.G.forward    ring of activations (ring.py), made by stage b + 1
    NAME.b.G.backward   ring of gradients, made by stage b
"""

from __future__ import annotations

import contextlib
import re
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
from smbox_torch.pipeline.end import End, How
from smbox_torch.pipeline.ring import Spec
from smbox_torch.pipeline.stages import Stages

__all__ = [
    "Answer",
    "Boundary",
    "Offer",
    "Plan",
    "Refusal",
    "device_of",
    "free_stale",
    "output_of",
]


class Plan(msgspec.Struct, frozen=True):
    """What all stages were told alike.

    Attributes:
        stages: how many.
        micro_batches: of a batch.
        schedule: a name of SCHEDULES.
        slots: of a ring.
    """

    stages: int
    micro_batches: int
    schedule: str
    slots: int


class Refusal(msgspec.Struct, frozen=True):
    """Why there is no pipeline, for every stage to raise.

    Attributes:
        kind: the stages do not fit, one did not come, or one has ended.
        text: of the error.
        stage: that it comes from.
        how: that stage ended.
    """

    kind: Literal["unfit", "late", "ended"]
    text: str
    stage: int
    how: How

    @classmethod
    def of(cls, error: BaseException, stage: int) -> Refusal:
        """Return what the other stages are told of an error at a stage."""
        if isinstance(error, ConfigError):
            return cls("unfit", error.message, stage, "failed")
        if isinstance(error, RequestTimeoutError):
            return cls("late", f"stage {stage}: {error}", stage, "failed")
        end = End.behind(error, stage)
        text = f"{type(error).__name__}: {error}" if end.how == "failed" else ""
        return cls("ended", text, end.stage, end.how)

    def error(self, stages: Stages) -> SmboxError:
        """Return the error that a stage raises which is told so."""
        if self.kind == "unfit":
            return ConfigError(self.text)
        if self.kind == "late":
            return RequestTimeoutError(self.text, op="pipeline")
        return stages.error(End(self.stage, self.how), self.text)


class Offer(msgspec.Struct, frozen=True):
    """What a stage gives the next one.

    Attributes:
        plan: of the stage that offers.
        shape: of a micro-batch of its output.
        dtype: of it.
    """

    plan: Plan
    shape: tuple[int, ...]
    dtype: str

    @property
    def spec(self) -> Spec:
        """What is offered."""
        return Spec(self.shape, self.dtype)


class Answer(msgspec.Struct, frozen=True):
    """What the next stage says to an offer: all stages behind agree.

    Attributes:
        generation: of its place.
    """

    generation: int


class _Letter(msgspec.Struct, frozen=True):
    """What lies in a region of the agreement: one of these."""

    offer: Offer | None = None
    answer: Answer | None = None
    refusal: Refusal | None = None


class Boundary:
    """The boundary behind a stage: what stages ``first`` and ``first + 1`` exchange.

    Args:
        box: the memory.
        name: of the pipeline.
        first: number of the stage before it.
        generation: of the place of that stage.
    """

    def __init__(self, box: Box, name: str, first: int, generation: int) -> None:
        self._box = box
        self._prefix = f"{name}.{first}.{generation}"
        self._first = first
        self.forward = f"{self._prefix}.forward"
        self.backward = f"{self._prefix}.backward"

    def offer(self, offer: Offer) -> None:
        """Offer something to the stage behind."""
        self._tell("offer", _Letter(offer=offer))

    def answer(self, answer: Answer) -> None:
        """Answer the stage before."""
        self._tell("answer", _Letter(answer=answer))

    def refuse_behind(self, refusal: Refusal) -> None:
        """Tell the stage behind that there is no pipeline, whatever was offered."""
        self._free("offer")
        self._tell("offer", _Letter(refusal=refusal))
        if self._found("answer") is not None:  # it will read nothing any more
            self.forget()

    def refuse_before(self, refusal: Refusal) -> None:
        """Tell the stage before that there is no pipeline."""
        self._tell("answer", _Letter(refusal=refusal))
        letter = self._found("offer")
        if letter is not None and letter.refusal is not None:  # nor will that one
            self.forget()

    def answered(self, stages: Stages) -> Refusal | None:
        """Wait for the answer; return why the stages behind refuse, or None: they agree."""
        letter = _read(stages.attached(f"{self._prefix}.answer", self._first + 1))
        if letter.answer is not None:
            stages.know(self._first + 1, letter.answer.generation)
        return letter.refusal

    def forget(self) -> None:
        """Free offer and answer."""
        for word in ("offer", "answer"):
            self._free(word)

    def _free(self, word: str) -> None:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            self._box.free(f"{self._prefix}.{word}")

    def _found(self, word: str) -> _Letter | None:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            return _read(self._box.attach(f"{self._prefix}.{word}", timeout_s=None))
        return None

    def _tell(self, word: str, letter: _Letter) -> None:
        text = np.frombuffer(msgspec.json.encode(letter), np.uint8)
        self._box.create(f"{self._prefix}.{word}", init=text)

    @staticmethod
    def await_offer(
        box: Box, name: str, first: int, stages: Stages
    ) -> tuple[Boundary, Offer | Refusal]:
        """Wait for what a stage offers; return the boundary too, which it has named."""
        generation, region = stages.offered(first, lambda told: f"{name}.{first}.{told}.offer")
        letter = _read(region)
        stages.know(first, generation)
        found = letter.offer or letter.refusal
        assert found is not None
        return Boundary(box, name, first, generation), found


def _read(region: Region) -> _Letter:
    return msgspec.json.decode(region.get().tobytes(), type=_Letter)


def free_stale(box: Box, name: str, first: int) -> None:
    """Free what earlier runs that were killed have left of a boundary; its stage calls this."""
    words = "offer|answer|(forward|backward)(.sent|.read)?"
    ours = re.compile(rf"{re.escape(name)}\.{first}\.\d+\.({words})")
    for info in box.regions():
        if ours.fullmatch(info.name):
            with contextlib.suppress(RegionNotFoundError, RegionFreedError):
                box.free(info)


@torch.no_grad()
def output_of(module: torch.nn.Module, given: Spec, *, is_last: bool) -> Spec:
    """Return what a stage makes of a micro-batch, by computing a few rows of zeros.

    Buffers and torch's random numbers are as before. Two rows, because batch norm refuses one.
    torch's fake tensors would need no data, but accept operands of different dtypes.

    Raises:
        ConfigError: the module cannot take it, or makes no tensor that a stage can take.
    """
    rows = min(given.shape[0], 2)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    device = device_of(module)
    x = torch.zeros((rows, *given.shape[1:]), dtype=given.torch_dtype, device=device)
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device]):
            y = functional_call(module, buffers, (x,))
    except Exception as error:
        raise ConfigError(f"it cannot take {given}: {type(error).__name__}: {error}") from error
    if not isinstance(y, torch.Tensor) or not y.dim() or len(y) != rows:
        raise ConfigError(
            "it makes no tensor whose axis 0 is that of its input, the rows of a micro-batch:"
            f" of {list(x.shape)} it makes"
            f" {list(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__}"
        )
    if y.layout is not torch.strided:
        raise ConfigError(f"its output is {y.layout}: a dense tensor is needed")
    if not is_last and not y.is_floating_point():
        raise ConfigError(f"no gradient can come back through its output of {y.dtype}")
    return Spec((given.shape[0], *y.shape[1:]), dtype_name(y.dtype))


def device_of(module: torch.nn.Module) -> torch.device:
    """Return where a module's parameters are; one without any computes on the CPU."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))
