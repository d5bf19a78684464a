from __future__ import annotations

from pathlib import Path

import pytest
from memory_or_messages import page
from memory_or_messages.rows import ROWS, Calls
from pages import NOT_MEASURED

EMPTY = f"# Words\n\n<!-- begin results -->\n{NOT_MEASURED}\n<!-- end results -->\n\nMore.\n"


def result(name: str, figures: dict[str, list[float]]) -> dict:
    machine = {"cpu": "a cpu", "cores": 4}
    return {"row": name, "machine": machine, "missing": [], "figures": figures}


def calls(unary_s: float, **more: list[float]) -> dict[str, list[float]]:
    return {
        "numpy": [0.001],
        "raw tcp": [0.002],
        "smbox, memory": [9.0, 0.001, 0.002],
        "smbox, tcp": [0.004],
        "gRPC unary": [unary_s],
        "gRPC stream, 1 MiB": [0.030],
        "gRPC stream, 4 MiB": [0.020],
    } | more


@pytest.fixture
def measured() -> dict[str, dict]:
    """Two sizes of put, and a workload; medians of smbox on memory are 2 ms."""
    return {
        "put-4KiB": result("put-4KiB", calls(1.0)),
        "put-100MiB": result("put-100MiB", calls(0.040)),
        "workload-tcp-8": result("workload-tcp-8", {"smbox": [1e9, 3e9], "raw": [4e9]}),
    }


def test_ratios_are_of_medians_and_of_the_better_stream(measured):
    text = page.text(measured)
    assert "| put | 100 MiB | 2 | 4 | 40 | 20 | - | - | 10 | 5 | - | - |" in text  # tcp
    assert "| put | 100 MiB | 1 | 2 | 40 | 20 | - | - | 20 | 10 | - | - |" in text  # memory
    assert "| tcp | 8 | 2.00 | 4.00 | 50% |" in text
    assert "Workload, tcp: 50% to 50% of the raw transport; published: 96 %." in text


def test_the_published_ratio_is_looked_for_in_large_calls_only(measured):
    text = page.text(measured)
    assert "memory, gRPC unary, 1 MiB and more: from 20 to 20" in text
    assert text.count("the published 25 x is **not reached**") == 2
    measured["put-100MiB"]["figures"]["gRPC unary"] = [0.060]
    text = page.text(measured)
    assert text.count("the published 25 x is **reached**") == 1
    assert (
        "from 30 to 30 times smbox's (put, 100 MiB); the published 25 x is **reached**" in text
    )


def test_messages_of_mpi_have_a_column_where_they_were_measured(measured):
    measured["put-100MiB"]["figures"] |= {"MPI, tcp": [0.012], "MPI, memory": [0.001]}
    text = page.text(measured)
    assert "| 40 | 20 | 12 | - | 10 | 5 | 3 | - |" in text
    assert "| 40 | 20 | 1 | - | 20 | 10 | 0.5 | - |" in text


def test_one_sided_calls_of_mpi_are_counted_where_smbox_is_faster(measured):
    measured["put-100MiB"]["figures"] |= {"MPI RMA, tcp": [0.012], "MPI RMA, memory": [0.001]}
    text = page.text(measured)
    assert "| 40 | 20 | - | 12 | 10 | 5 | - | 3 |" in text
    told = "MPI RMA (put and get), 1 MiB and more: from {0} to {0} times smbox's (put, 100 MiB)"
    assert f"- tcp, {told.format(3)}; smbox is faster in 1 of 1 rows." in text
    assert f"- memory, {told.format(0.5)}; smbox is faster in 0 of 1 rows." in text


def test_each_published_ratio_is_judged_by_the_calls_that_it_is_about(measured):
    measured["put-100MiB"]["figures"] |= {"MPI, memory": [0.0044], "MPI, tcp": [0.004]}
    text = page.text(measured)
    assert (
        "the published 2.1 x (communication of deep learning) is **reached** in 1 of 1" in text
    )
    assert "the published 2.1 x (communication of deep learning) is **not reached**" in text
    assert "asynchronous updates" not in text  # none was measured
    rdma = (
        "the published 2.69 x (169 % faster than an RPC made for RDMA) is **reached** in 1 of 1"
    )
    assert text.count(rdma) == 2


def test_the_page_keeps_its_words_and_gets_tables_and_a_plot(tmp_path: Path, measured):
    path = tmp_path / page.PAGE
    path.write_text(EMPTY)
    page.write(measured, tmp_path)
    written = path.read_text()
    assert written.startswith("# Words\n")
    assert written.endswith("\n\nMore.\n")
    assert "3 of 34 rows; a cpu, 4 cores." in written
    assert NOT_MEASURED not in written
    assert (tmp_path / "memory_or_messages.png").read_bytes().startswith(b"\x89PNG")
    page.write({}, tmp_path)
    assert path.read_text() == EMPTY


def test_every_row_of_calls_has_its_line():
    measured = {
        row.name: result(row.name, calls(0.1)) for row in ROWS if isinstance(row, Calls)
    }
    assert len(page.call_table(measured, "tcp").splitlines()) == 2 + 24
