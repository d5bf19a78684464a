from __future__ import annotations

import errno
import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from smbox.errors import ConfigError
from smbox_torch.demo.digits import Digits
from smbox_torch.demo.report import baseline, draw, table
from smbox_torch.demo.worker import Outcome, Settings
from smbox_torch.optimizer.stats import Recorder
from smbox_torch.plotting import save


def outcome(rank: int, center: float | None) -> Outcome:
    recorder = Recorder()
    recorder.exchange(took_s=0.4, nbytes=1 << 20)
    recorder.waited(0.1)
    recorder.behind(1)
    counts = recorder.snapshot().as_dict()
    curve = [(5, 2.0, 0.5), (10, 1.0, 0.75)]
    return Outcome(rank, 40, curve, center, counts, counts)


def test_the_table_sets_the_center_beside_one_process():
    alone = Outcome(0, 80, [(20, 1.0, 0.9)], 0.875)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(table([outcome(0, 0.75), outcome(1, None)], alone, 2))
    text = console.export_text()
    for part in ("2 workers, 2 nodes", "75.0%", "87.5%", "80", "1.0 MiB", "2.0 MiB", "1.00"):
        assert part in text
    assert text.count("75%") == 2


@pytest.mark.parametrize(("nodes", "path"), [(1, "in mapped memory"), (2, "over tcp")])
def test_the_table_names_the_path_to_the_memory(nodes, path):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table([outcome(0, 0.75)], outcome(0, 0.5), nodes))
    assert f"moved {path}" in console.export_text()


def test_the_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="the demo extra is not installed")
    path = tmp_path / "curves.png"
    draw([outcome(0, 0.75), outcome(1, None)], outcome(0, 0.5), path)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_plot_that_finds_no_space_is_an_error_that_names_it(tmp_path):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConfigError, match=r"cannot be written: No space left.*p\.png"):
        save(SimpleNamespace(savefig=full), tmp_path / "p.png", dpi=100)


def test_one_process_trains_on_as_many_pictures():
    x = torch.rand(20, 1, 8, 8)
    data = Digits(x, torch.arange(20) % 10)
    alone = baseline(Settings(steps=2, batch=4, look=1), 3, (data, data))
    assert alone.samples == 24
    assert [point[0] for point in alone.curve] == [3, 6]
    assert alone.center is not None
