"""The generator has the summary of what it was fitted to; the traces' rows are not in the tree.

The comparison with the traces themselves needs their files: `VENUS_TRACES` names their folder.
"""

import json
from collections import defaultdict
from functools import cache
from random import Random
from statistics import median
from typing import Any

import pytest

from benchmarks.workloads import traces_folder
from simulation.summary import (
    Spread,
    WorkloadSummary,
    mean_live_context,
    summarize,
)
from simulation.workload.fit import STEMS, even_levels, fit
from simulation.workload.generator import FITTED_FILE, bases_from, fitted_bases
from simulation.workload.traces import read_traces
from simulation.workload.trajectory import Tool, Trajectory
from simulation.workload.workload import WorkloadShape, vary
from tests.unit.simulation.workload.closeness import apart

DRAWN = {"swe_glm": 1_500, "terminal_mini": 6_000}
"""Trajectories of a comparison, evenly spread: at eight seeds tried, chance moved no quantile by a
tenth. Those of `terminal_mini` are short, and their seconds rise steeply between two peaks."""

needs_traces = pytest.mark.skipif(
    traces_folder() is None,
    reason="no recorded traces: VENUS_TRACES names no folder, none is beside the tree",
)


@cache
def drawn(stem: str) -> list[Trajectory]:
    chance = Random(1)
    bases = fitted_bases(stem)
    return [bases.draw_at(levels, chance) for levels in even_levels(bases, DRAWN[stem], chance)]


def fitted(stem: str) -> dict[str, Any]:
    content: dict[str, dict[str, Any]] = json.loads(FITTED_FILE.read_text())
    return content[stem]


def recorded_summary(stem: str) -> WorkloadSummary:
    return WorkloadSummary(**{k: Spread(**v) for k, v in fitted(stem)["summary"].items()})


def recorded(stem: str) -> list[Trajectory]:
    folder = traces_folder()
    assert folder is not None
    return read_traces(folder / f"{stem}.jsonl.gz")


@pytest.mark.parametrize("stem", STEMS)
def test_quantiles_and_means_are_those_of_the_recorded_workload(stem: str) -> None:
    assert apart(recorded_summary(stem), summarize(drawn(stem))) == []


@pytest.mark.parametrize("stem", STEMS)
def test_a_synthetic_base_is_well_formed(stem: str) -> None:
    for one in drawn(stem)[:300]:
        *before, last = one.turns
        assert one.turns[0].new_tokens == 2_000
        assert (last.tool, last.tool_s) == (None, 0.0)
        assert all(turn.tool is not None and turn.tool_s >= 0 for turn in before)
        assert all(turn.output_tokens >= 1 and turn.new_tokens >= 0 for turn in one.turns)


def test_kinds_of_tools_have_gaps_of_their_own() -> None:
    """Reading takes hundredths of a second, running tests takes several."""
    seconds: dict[Tool, list[float]] = defaultdict(list)
    for one in drawn("swe_glm"):
        for turn in one.turns[:-1]:
            assert turn.tool is not None
            seconds[turn.tool].append(turn.tool_s)
    assert median(seconds[Tool.READ]) < 0.03
    assert median(seconds[Tool.EDIT]) < 0.05
    assert 6 < median(seconds[Tool.BASH_TEST]) < 11
    assert 6 < median(seconds[Tool.BASH_INSTALL]) < 11


def test_seconds_of_tools_have_two_peaks() -> None:
    seconds = [turn.tool_s for one in drawn("swe_glm") for turn in one.turns[:-1]]
    share = len(seconds) / 100
    assert 55 < sum(s < 0.1 for s in seconds) / share < 65
    assert sum(0.3 <= s < 4 for s in seconds) / share < 8
    assert 22 < sum(4 <= s < 15 for s in seconds) / share < 36


def test_long_trajectories_sample_more_and_wait_longer() -> None:
    ordered = sorted(drawn("swe_glm"), key=lambda one: len(one.turns))
    quarter = len(ordered) // 4
    short, long = ordered[:quarter], ordered[-quarter:]
    assert sum(x.output_tokens for x in long) > 3 * sum(x.output_tokens for x in short)
    assert sum(x.tool_s for x in long) > 3 * sum(x.tool_s for x in short)


def test_a_fit_to_a_small_sample_has_its_summary() -> None:
    sample = drawn("terminal_mini")[:200]
    found = bases_from(fit(sample, samples=(300,) * 8))
    chance = Random(2)
    summary = summarize([found.draw(chance) for _ in range(1_500)])
    wanted = summarize(sample)
    assert summary.turns.mean == pytest.approx(wanted.turns.mean, rel=0.1)
    assert summary.output_tokens.p50 == pytest.approx(wanted.output_tokens.p50, rel=0.15)
    assert summary.context_tokens.p75 == pytest.approx(wanted.context_tokens.p75, rel=0.15)
    assert summary.tool_s.p75 == pytest.approx(wanted.tool_s.p75, rel=0.3)


@needs_traces
@pytest.mark.parametrize("stem", STEMS)
def test_the_committed_summary_is_that_of_the_traces(stem: str) -> None:
    first = fitted_bases(stem).first_prompt_tokens
    shifted = summarize(recorded(stem))
    wanted = recorded_summary(stem)
    assert shifted.turns == wanted.turns
    assert shifted.output_tokens == wanted.output_tokens
    assert shifted.tool_s_of_turn == wanted.tool_s_of_turn
    prompts = sum(one.turns[0].new_tokens for one in recorded(stem)) / len(recorded(stem))
    mean = shifted.context_tokens.mean - prompts + first
    assert mean == pytest.approx(wanted.context_tokens.mean)


@needs_traces
@pytest.mark.parametrize("stem", STEMS)
def test_no_column_of_the_traces_is_in_the_tree(stem: str) -> None:
    """Tables are shorter than a column of the traces, and none is one."""
    rows = recorded(stem)
    lengths = sorted(float(len(one.turns)) for one in rows)
    tables = [fitted(stem)["turns"]["values"]]
    tables += [part["total"]["values"] for part in fitted(stem)["series"].values()]
    assert all(len(table) < len(rows) / 3 for table in tables)
    assert lengths not in tables


@needs_traces
@pytest.mark.parametrize("stem", STEMS)
def test_rollouts_of_synthetic_bases_are_those_of_recorded_ones(stem: str) -> None:
    """After stretching, jitter and the limit of the context: what the simulator really runs."""
    chance, shape = Random(9), WorkloadShape()
    rows = recorded(stem)
    real = [vary(rows[i % len(rows)], shape, chance) for i in range(60 * len(rows))]
    made = [vary(base, shape, chance) for base in drawn(stem)]
    assert mean_live_context(made) == pytest.approx(mean_live_context(real), rel=0.05)
    found, wanted = summarize(made), summarize(real)
    assert found.turns.mean == pytest.approx(wanted.turns.mean, rel=0.05)
    assert found.output_tokens.mean == pytest.approx(wanted.output_tokens.mean, rel=0.05)
    assert found.context_tokens.p90 == pytest.approx(wanted.context_tokens.p90, rel=0.1)
    assert found.tool_s.mean == pytest.approx(wanted.tool_s.mean, rel=0.1)
    assert found.tool_s_of_turn.p90 == pytest.approx(wanted.tool_s_of_turn.p90, rel=0.1)
