"""Groups of a workload: the same for whoever asks, in whatever order, under any hash seed."""

import json
import os
import subprocess
import sys
from random import Random
from statistics import fmean

import pytest

from simulation.workload.generator import fitted_bases
from simulation.workload.trajectory import Tool, Trajectory, Turn
from simulation.workload.workload import Workload, WorkloadShape, chance_of, vary
from tests.architecture.tree import ROOT

ASKED = """
import json
from simulation.workload.generator import fitted_bases
from simulation.workload.workload import Workload, WorkloadShape
drawn = Workload(fitted_bases("swe_glm"), WorkloadShape(), 7).trajectory(3, 5)
print(json.dumps([[t.new_tokens, t.output_tokens, t.tool, t.tool_s] for t in drawn.turns]))
"""


class OneBase:
    """Every group is drawn from the same base."""

    def __init__(self, base: Trajectory) -> None:
        self.base = base

    def draw(self, chance: Random) -> Trajectory:
        """The base, whatever the chance."""
        return self.base


def base_of(turns: int, *, new_tokens: int = 50, output_tokens: int = 100) -> Trajectory:
    """Turns numbered by their seconds; the first prompt is not the benchmark's."""
    inner = [Turn(new_tokens, output_tokens, Tool.READ, float(i)) for i in range(1, turns)]
    first, *rest = [*inner, Turn(new_tokens, 7, None, 0.0)]
    return Trajectory((Turn(13_000, first.output_tokens, first.tool, first.tool_s), *rest))


def workload(seed: int = 1, *, spread: float = 0.4) -> Workload:
    """Fitted groups."""
    return Workload(fitted_bases("swe_glm"), WorkloadShape(spread=spread), seed)


def test_order_of_asking_changes_nothing() -> None:
    forwards, backwards = workload(), workload()
    places = [(ordinal, member) for ordinal in range(3) for member in range(8)]
    there = {place: forwards.trajectory(*place) for place in places}
    assert {place: backwards.trajectory(*place) for place in reversed(places)} == there


def test_what_was_forgotten_is_drawn_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.workload.workload.GROUPS_KEPT_MAX", 2)
    asked = workload()
    first = asked.group(0)
    for ordinal in range(1, 4):
        asked.group(ordinal)
    again = asked.group(0)
    assert again == first
    assert again is not first


def test_the_hash_seed_changes_nothing() -> None:
    drawn = workload(7).trajectory(3, 5)
    expected = [[t.new_tokens, t.output_tokens, t.tool, t.tool_s] for t in drawn.turns]
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", ASKED],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == expected


def test_seeds_and_groups_and_members_differ() -> None:
    drawn = {
        workload(seed).trajectory(ordinal, member)
        for seed in (1, 2) for ordinal in (0, 1) for member in (0, 1)
    }  # fmt: skip
    assert len(drawn) == 8


def test_siblings_share_their_first_prompt_and_their_task() -> None:
    group = workload(spread=0.15).group(4)
    assert {one.turns[0].new_tokens for one in group} == {2_000}
    lengths = [len(one.turns) for one in group]
    assert max(lengths) < 2.5 * min(lengths)


def test_a_first_prompt_of_the_recording_never_comes_back() -> None:
    for member in range(50):
        drawn = vary(base_of(5), WorkloadShape(), chance_of(1, 0, f"{member}"))
        assert [turn.new_tokens for turn in drawn.turns[1:]] == [50] * (len(drawn.turns) - 1)


def test_only_the_last_turn_has_no_tool() -> None:
    for member in range(50):
        *before, last = vary(base_of(6), WorkloadShape(), chance_of(1, 0, f"{member}")).turns
        assert all(turn.tool is Tool.READ and turn.tool_s > 0 for turn in before)
        assert (last.tool, last.tool_s) == (None, 0.0)


def test_turns_come_from_near_the_same_relative_position() -> None:
    """Base turns carry their number as seconds; a member of any length stays within one of it."""
    base = base_of(40)
    for member in range(20):
        drawn = vary(base, WorkloadShape(), chance_of(2, 0, f"{member}")).turns
        for index, turn in enumerate(drawn[:-1]):
            place = (index + 0.5) / len(drawn) * 40
            assert abs(turn.tool_s - 0.5 - place) <= 1.5


def test_stretching_keeps_the_mean_length_and_has_its_spread() -> None:
    shape = WorkloadShape(spread=0.4, context_tokens_max=10**9)
    lengths = [
        len(vary(base_of(50), shape, chance_of(3, 0, f"{member}")).turns) for member in range(2_000)
    ]
    assert fmean(lengths) == pytest.approx(50, rel=0.03)
    ordered = sorted(lengths)
    assert ordered[1_682] / ordered[1_000] == pytest.approx(1.49, rel=0.06)  # exp(0.4)


def test_outputs_are_jittered_and_nothing_else_is() -> None:
    shape = WorkloadShape(spread=0.0)
    outputs = sorted(
        turn.output_tokens
        for member in range(300)
        for turn in vary(base_of(10), shape, chance_of(4, 0, f"{member}")).turns[:-1]
    )
    assert outputs[len(outputs) // 2] == pytest.approx(100, rel=0.03)
    assert outputs[int(0.841 * len(outputs))] == pytest.approx(135, rel=0.04)  # exp(0.3)


def test_a_context_ends_at_its_limit() -> None:
    shape = WorkloadShape(spread=0.0, context_tokens_max=2_300)
    drawn = vary(base_of(40), shape, chance_of(5, 0, "x"))
    assert len(drawn.turns) < 5
    assert drawn.context_tokens <= 2_300
    assert drawn.turns[-1].tool is None


def test_an_observation_that_does_not_fit_ends_the_rollout_before_it() -> None:
    shape = WorkloadShape(spread=0.0, context_tokens_max=5_000)
    drawn = vary(base_of(40, new_tokens=4_000), shape, chance_of(5, 0, "x"))
    assert len(drawn.turns) == 1
    assert drawn.turns[0].tool is None


def test_tool_seconds_take_the_factor_of_the_regime() -> None:
    plain = vary(base_of(9), WorkloadShape(), chance_of(6, 0, "x"))
    heavy = vary(base_of(9), WorkloadShape(tool_factor=4.0), chance_of(6, 0, "x"))
    assert [4 * turn.tool_s for turn in plain.turns] == [turn.tool_s for turn in heavy.turns]


def test_a_base_of_one_turn_makes_rollouts() -> None:
    drawn = Workload(OneBase(base_of(1)), WorkloadShape(spread=0.9), 1).group(0)
    assert all(turn.new_tokens in (0, 2_000) for one in drawn for turn in one.turns)
