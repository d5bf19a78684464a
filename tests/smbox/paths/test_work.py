from __future__ import annotations

from smbox.work import Work


def test_plain_work_changes_nothing():
    work = Work()
    work.begin()
    work.cancel()
    assert (work.progress(), work.outcome()) == (0, "none")
    assert (work.ranges_done(), work.facts()) == ([], {})
