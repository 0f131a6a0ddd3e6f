"""Plans without history: the table of engines and the declared profile."""

import itertools
from random import Random
from statistics import median

import pytest

from simulation.declared import (
    KNOWN_ENGINES,
    Bounds,
    Declared,
    DeclaredGroups,
    DeclaredInputs,
    Delays,
    Profile,
    engine_for,
    profile_of_limits,
)
from simulation.plan import PlannedGroup

BOUNDS = Bounds(turns_max=50, output_tokens_max=2_000, context_tokens=20_000)

PROFILE = Profile(
    turns=Declared(2, 8, 32),
    prompt_tokens=Declared(500, 1_000, 2_000),
    output_tokens=Declared(50, 100, 200),
    observation_tokens=Declared(20, 40, 80),
    tool_s=Declared(0.5, 1.0, 2.0),
    flat_share=0.25,
)


def drawn(count: int, profile: Profile = PROFILE, bounds: Bounds = BOUNDS) -> list[PlannedGroup]:
    """Groups of four."""
    groups = DeclaredGroups(profile, bounds, Delays(1.0, 0.1, 2.0, 0.0), 4, seed=3)
    return [groups.group(ordinal) for ordinal in range(count)]


def test_an_engine_is_chosen_by_the_nearest_size_and_scaled_to_it() -> None:
    known = KNOWN_ENGINES["8b-h100"]
    found = engine_for(4.1e9)
    assert found.name == "8b-h100"
    assert found.rates.step_s == pytest.approx(known.rates.step_s / 2)
    assert found.rates.kv_token_s == known.rates.kv_token_s
    assert engine_for(30e9).name == "32b-4xh100"


def test_a_tiny_model_is_no_faster_on_the_embedded_engine() -> None:
    assert engine_for(10_000).rates == KNOWN_ENGINES["cpu-embedded"].rates


def test_a_named_engine_is_taken_whatever_the_size() -> None:
    assert engine_for(8.2e9, "8b-h200").name == "8b-h200"


def test_drawn_rollouts_have_the_declared_medians() -> None:
    members = [one for group in drawn(300) for one in group.members]
    assert median(len(one.turns) for one in members) == pytest.approx(8, abs=1)
    outputs = [turn.output_tokens for one in members for turn in one.turns]
    assert median(outputs) == pytest.approx(100, rel=0.1)
    assert sum(group.is_flat for group in drawn(300)) == pytest.approx(75, abs=25)


def test_siblings_share_their_prompt_and_are_more_alike_than_strangers() -> None:
    groups = drawn(200)
    for group in groups:
        assert len({one.turns[0].new_tokens for one in group.members}) == 1
    inside = [abs(len(g.members[0].turns) - len(g.members[1].turns)) for g in groups]
    across = [
        abs(len(a.members[0].turns) - len(b.members[0].turns))
        for a, b in itertools.pairwise(groups)
    ]
    assert sum(inside) / len(inside) < sum(across) / len(across)


def test_the_job_s_limits_cut_a_rollout() -> None:
    tight = Bounds(turns_max=3, output_tokens_max=60, context_tokens=400)
    for group in drawn(50, bounds=tight):
        for one in group.members:
            assert len(one.turns) <= 3
            assert one.context_tokens <= 400
            assert all(turn.output_tokens <= 60 for turn in one.turns)
            assert one.turns[-1].tool is None


def test_each_draw_shifts_speed_and_work() -> None:
    inputs = DeclaredInputs(engine_for(8.2e9), PROFILE, BOUNDS)
    steps = {inputs.draw(Random(seed), 4).rates.engine.step_s for seed in range(5)}
    assert len(steps) == 5


def test_an_unknown_environment_is_spread_over_its_limits() -> None:
    profile = profile_of_limits(BOUNDS)
    assert profile.turns.p90 == 50
    assert profile.turns.spread > 0.5
