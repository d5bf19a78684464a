from __future__ import annotations

import json

import encryption
import pytest

VERBS = ["put", "get", "accumulate", "elastic"]


@pytest.mark.timeout(120)
def test_both_nodes_are_timed_by_every_verb(capsys: pytest.CaptureFixture[str]):
    encryption.main(["--mib", "1", "--rounds", "2", "--calls", "40", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["verb"] for row in rows] == 2 * VERBS
    assert [row["nbytes"] for row in rows] == 4 * [4096] + 4 * [1 << 20]
    assert all(row[f"{way}_s"] > 0 for row in rows for way in encryption.WAYS)


def test_the_table_shows_how_much_longer_a_call_takes():
    row = {"verb": "put", "nbytes": 1 << 20, "plain_s": 0.5, "keys_s": 1.0}
    laid = encryption.table([row | {"plain_cpu_s": 0.1, "keys_cpu_s": 0.2}])
    assert [next(iter(column.cells)) for column in laid.columns[:2]] == ["put", "1 MiB"]
    assert list(laid.columns[4].cells) == ["2.00"]
