"""The rate: pairs of one round, the better loop, one core."""

import os

import pytest
import torch

from benchmarks.engine.rate import Run, figures, one_core
from benchmarks.engine.reference import Answers
from benchmarks.engine.workload import RATE

SAME: Answers = {0: [(1, 2)]}
OTHER: Answers = {0: [(1, 3)]}


def test_in_each_round_the_faster_loop_is_what_the_engine_is_held_against() -> None:
    rounds = [
        [Run(100, 1.0, 2.0, SAME), Run(100, 4.0, 5.0, SAME), Run(100, 3.0, 9.0, SAME)],
        [Run(100, 1.0, 2.0, SAME), Run(100, 2.0, 6.0, SAME), Run(100, 8.0, 8.0, OTHER)],
    ]
    found = figures(("small", "drawn"), RATE, rounds)
    assert found.ratio.median == pytest.approx(2.5)
    assert found.ratio.least == pytest.approx(2.0)
    assert found.ratio.most == pytest.approx(3.0)
    # By the wall clock it is the same loop, also where the other one was faster there.
    assert (found.wall_ratio.least, found.wall_ratio.most) == (3.0, 4.5)
    assert found.dynamic.most == 50.0
    assert found.equal_turns == 0.0


def test_one_core_is_for_those_inside_only() -> None:
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1
        assert torch.get_num_threads() == 1
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)
