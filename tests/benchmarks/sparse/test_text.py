from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sparse import text

SHARE = 0.02


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text") / "cache" / "examples.npz"


@pytest.fixture
def parts(path: Path) -> tuple[text.Examples, text.Examples]:
    return text.load(SHARE, path)


def test_functions_and_methods_are_examples_and_nested_ones_belong_to_theirs():
    source = '''
top = "level"
def one(alpha):
    """Words, torch and NumPy."""
    def inner(beta): pass
class Thing:
    async def two(self): return x1
'''
    assert sorted(text.functions(source)) == [
        ["async", "def", "two", "self", "return"],
        ["def", "one", "alpha", "words", "and", "def", "inner", "beta", "pass"],
    ]


def test_a_source_of_another_language_has_no_functions():
    assert list(text.functions("print 'old'")) == []
    assert list(text.functions("\0")) == []


def test_examples_are_sparse_normed_and_of_both_classes(parts):
    for examples in parts:
        assert len(examples) > 20
        assert set(examples.label.tolist()) == {-1.0, 1.0}
        for first, limit in zip(examples.first[:-1], examples.first[1:], strict=True):
            features = examples.index[first:limit]
            assert (np.diff(features) > 0).all()
            assert np.linalg.norm(examples.value[first:limit]) == pytest.approx(1.0, abs=1e-5)
        assert examples.first[-1] == len(examples.index) == len(examples.value)
        assert examples.index.max() < text.FEATURES
        assert examples.counts().sum() == len(examples.index)
        assert len(examples.index) / len(examples) < 200  # of 65,536 features


def test_no_example_is_in_both_parts(parts):
    train, test = (
        {
            (each.index[a:b].tobytes(), each.value[a:b].tobytes())
            for a, b in zip(each.first[:-1], each.first[1:], strict=True)
        }
        for each in parts
    )
    # Different texts may have the same words as often, in another order: few do.
    assert len(train & test) < 0.02 * len(test)


def test_the_second_call_reads_what_the_first_has_written(parts, path: Path, monkeypatch):
    def none(source: str):
        raise AssertionError("read again")

    monkeypatch.setattr(text, "functions", none)
    again = text.load(SHARE, path)
    assert [each.digest() for each in again] == [each.digest() for each in parts]
    assert parts[0].digest() != parts[1].digest()


def test_the_same_sources_give_the_same_examples(parts, tmp_path: Path):
    again = text.load(SHARE, tmp_path / "other.npz")
    assert [each.digest() for each in again] == [each.digest() for each in parts]


def test_the_file_is_this_users_and_of_these_versions(monkeypatch):
    assert text.cache_path(1.0) != text.cache_path(0.5)
    before = text.cache_path(1.0)
    monkeypatch.setattr(text.np, "__version__", "0.0")
    assert text.cache_path(1.0) != before
