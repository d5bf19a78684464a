"""One client process of the benchmark."""

from __future__ import annotations

import msgspec
import pytest

from smbox.cli.bench import worker
from smbox.cli.bench.worker import Job
from smbox.testing.model_box import ModelBox


def test_a_job_travels_as_json():
    job = Job("tcp://127.0.0.1:7070", "tcp", "center", "put", 4096)
    assert msgspec.json.decode(job.to_json(), type=Job) == job


@pytest.mark.parametrize(("verb", "left"), [("get", 2.0), ("put", 1.0), ("accumulate", 3.0)])
def test_a_verb_works_on_the_first_bytes_of_the_region(verb, left):
    region = ModelBox().create("r", shape=(64,), dtype="float32", init=2.0)
    worker.verb_of(region, Job("", "", "r", verb, 128))()
    assert region.get().tolist() == [left] * 32 + [2.0] * 32


def test_every_verb_of_the_list_is_known():
    region = ModelBox().create("r", shape=(64,), dtype="float32", init=2.0)
    for verb in worker.VERBS:
        worker.verb_of(region, Job("", "", "r", verb, 128))()


def test_a_call_is_made_at_least_once():
    made = []
    share = worker.repeat(lambda: made.append(1), 4096, 0.0)
    assert (share.calls, share.nbytes, len(made)) == (1, 4096, 1)
