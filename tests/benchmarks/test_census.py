from __future__ import annotations

import census

import smbox


def test_blanks_comments_and_docstrings_are_no_code(tmp_path):
    python = tmp_path / "a.py"
    python.write_text('"""Doc.\n\nMore."""\n\n# note\nx = """two\nlines"""  # note\n')
    assert census.code_lines(python) == 2
    c = tmp_path / "a.c"
    c.write_text("/* two\n * lines */\n\nint x; // note\n// note\nint y; /* note */\n")
    assert census.code_lines(c) == 2


def test_the_core_is_without_commands_and_tests():
    core = {census.shown(path) for path in census.core()}
    assert {"smbox/region.py", "smbox/client/channel.py", "smbox/native/commit.c"} <= core
    assert not any(name.startswith(("smbox/cli/", "smbox/testing/")) for name in core)


def test_files_of_features_are_files_of_the_core():
    core = [census.shown(path) for path in census.core()]
    for names in census.APART_FEATURES.values():
        for name in names:
            assert any(each.startswith(name) for each in core), name


def test_calls_of_the_core_are_counted_by_depth():
    calls = census.calls_of(lambda: smbox.GlobalAddress.at(1, 8))
    assert calls.deepest >= 1
    assert any(name.startswith("address.") for name in calls.names)


def test_the_tour_has_a_line_for_each_file():
    tour = census.tour()
    assert "- `smbox/region.py` - Region:" in tour
    assert "`smbox/wire/__init__.py`" not in tour
