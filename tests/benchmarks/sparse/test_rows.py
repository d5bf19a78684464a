from __future__ import annotations

from dataclasses import replace

import pytest
from sparse.methods import METHODS
from sparse.problem import LOSSES
from sparse.rows import Settings, rows


def test_every_loss_is_learnt_by_every_method_with_each_of_its_numbers_of_processes():
    every = list(rows())
    assert len(set(every)) == len(every)
    assert {row.loss for row in every} == set(LOSSES) == {"svm", "logistic"}
    for name, method in METHODS.items():
        mine = [row.workers for row in every if row.method == name and row.loss == "svm"]
        assert mine == list(method.workers)
    assert {"hogwild", "hogwild_pp", "dogwild", "semaphore", "lock"} < set(METHODS)


def test_names_of_rows_and_files_differ():
    every = list(rows())
    assert len({row.name for row in every}) == len(every)
    settings = Settings(every[0])
    others = [
        Settings(every[1]),
        replace(settings, seed=1),
        replace(settings, epochs=1),
        replace(settings, share=0.5),
        replace(settings, limit_s=1.0),
    ]
    assert len({each.file_name for each in [settings, *others]}) == 6


def test_the_learning_rate_backs_off_after_each_pass():
    settings = Settings(next(rows()))
    rates = [settings.lr(epoch) for epoch in range(3)]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] / rates[0] == pytest.approx(rates[2] / rates[1])
