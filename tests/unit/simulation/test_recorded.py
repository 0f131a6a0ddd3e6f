"""What a job has left, read as costs."""

from dataclasses import replace

import pytest

from simulation.recorded import (
    NotEnoughRecorded,
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    RecordedStep,
    RecordedTurn,
    sync_s_of,
    turns_of,
)
from simulation.recorded_engine import engine_rows, fit_engine
from simulation.recorded_trainer import fit_trainer
from simulation.recorded_waits import crowds_of, grade_crowds_of, waits_of
from simulation.workload.trajectory import Tool
from tests.unit.simulation.recorded_jobs import KV_TOKEN_S, PREFILL_TOKEN_S, STEP_S, job


def test_an_engine_s_costs_are_found_again_in_its_turns() -> None:
    rows = [row for group in engine_rows(job().groups).values() for row in group]
    fitted = fit_engine(rows, 8, 50_000)
    rates = fitted.rates
    found = (rates.step_s, rates.kv_token_s, rates.prefill_token_s)
    assert found == pytest.approx((STEP_S, KV_TOKEN_S, PREFILL_TOKEN_S), rel=1e-6)
    assert fitted.spread == pytest.approx(0.0, abs=1e-6)
    assert fitted.turns == 36


def together(*generations: tuple[float, float], group: int = 0, prompt: int = 100) -> RecordedGroup:
    """A group whose members each generate 10 tokens once, from and for so many seconds."""
    members = tuple(
        RecordedRollout(
            "e", start, start + seconds, (RecordedTurn(prompt, prompt, 10, seconds, 0.0),), 1.0
        )
        for start, seconds in generations
    )
    return RecordedGroup(group, 0.0, 9.0, 9.0, members)


def test_a_prefix_that_siblings_share_is_read_once() -> None:
    (rows,) = engine_rows([together((0.0, 2.0), (0.0, 2.0))]).values()
    # The shared 100 once, and half of each one's ten tokens.
    assert [row.columns[1] for row in rows] == pytest.approx([10 * 110.0] * 2)


def test_what_generates_beside_a_turn_counts_for_the_time_that_it_does() -> None:
    rows = engine_rows([together((0.0, 2.0)), together((1.0, 2.0), group=1)])
    assert rows[0][0].columns[1] == pytest.approx(10 * (105 + 105 / 2))


def test_a_group_s_first_prompt_is_computed_once() -> None:
    (rows,) = engine_rows([together((0.0, 1.0), (0.0, 1.0))]).values()
    assert [row.columns[2] for row in rows] == [100.0, 100.0]


def test_a_prompt_that_begins_beside_a_turn_is_computed_in_its_steps() -> None:
    rows = engine_rows([together((0.0, 2.0)), together((1.0, 2.0), group=1, prompt=300)])
    assert rows[0][0].columns[2] == 400.0
    # The other one's had begun before this turn.
    assert rows[1][0].columns[2] == 300.0


def test_a_prompt_on_another_host_is_not() -> None:
    other = together((1.0, 2.0), group=1, prompt=300)
    elsewhere = replace(other, rollouts=(replace(other.rollouts[0], host="f"),))
    assert engine_rows([together((0.0, 2.0)), elsewhere])[0][0].columns[2] == 100.0


def test_turns_count_what_is_new_and_a_new_segment_is_all_new() -> None:
    spans = [
        {"start": 10.0, "sampled_end": 15.0, "generate_s": 1.0, "tool_s": 0.0},
        {"start": 22.0, "sampled_end": 30.0, "generate_s": 1.0, "tool_s": 0.0},
        {"start": 12.0, "sampled_end": 13.0, "generate_s": 1.0, "tool_s": 0.0},
    ]
    turns = turns_of(spans, [False, True, False])
    assert [(turn.new_tokens, turn.output_tokens) for turn in turns] == [(10, 5), (7, 8), (12, 1)]


def test_nobody_waits_behind_the_last_reply() -> None:
    one = job().groups[0].rollouts[0].trajectory()
    assert [turn.tool for turn in one.turns] == [Tool.OTHER, Tool.OTHER, None]
    assert [turn.tool_s for turn in one.turns] == [0.5, 0.5, 0.0]


def test_a_trainer_s_update_is_measured_and_its_rate_is_the_rest() -> None:
    rates = fit_trainer(job().steps)
    assert rates.update_s == pytest.approx(2.0)
    assert rates.token_s == pytest.approx(0.001)


def test_without_a_measured_update_both_are_fitted() -> None:
    rates = fit_trainer([replace(step, update_s=None) for step in job().steps])
    assert (rates.token_s, rates.update_s) == pytest.approx((0.001, 2.0))


def late(step: RecordedStep, *before_s: float, began_s: float = -1e9) -> RecordedStep:
    """The step with positions that were assigned so long before its commit."""
    return replace(
        step, assigned_s=tuple(step.committed_s - one for one in before_s), began_s=began_s
    )


def work_s(step: RecordedStep) -> float:
    """Its backward passes; the update is 2 s."""
    return step.busy_s - 2.0


def test_what_passed_beyond_the_work_since_the_last_assignment_is_part_of_the_update() -> None:
    # Two groups a step: half of the work is left at the last assignment, then the update.
    steps = [late(one, 19.0, work_s(one) / 2 + 2.0 + 0.7) for one in job().steps]
    assert fit_trainer(steps).update_s == pytest.approx(2.7)


def test_a_trainer_that_works_off_what_it_had_does_not_wait() -> None:
    # Both came at once, so both are left; and of the step before there is work until it began.
    steps = [late(one, work_s(one) + 2.5, work_s(one) + 2.5) for one in job().steps]
    assert fit_trainer(steps).update_s == pytest.approx(2.5)
    backlog = [
        late(one, 15.0, 15.0, began_s=one.committed_s - one.busy_s - 0.25) for one in job().steps
    ]
    assert fit_trainer(backlog).update_s == pytest.approx(2.25)


def test_a_trainer_that_does_not_stream_begins_with_the_last_assignment() -> None:
    steps = [late(one, 19.0, work_s(one) + 2.0 + 0.3) for one in job().steps]
    assert fit_trainer(steps, streams=False).update_s == pytest.approx(2.3)
    assert fit_trainer(steps).update_s > 3.0


def test_waits_are_those_of_each_rollout() -> None:
    found = waits_of(job())
    assert len(found) == 12
    one = found[3, 0]
    assert one.place_s == pytest.approx(0.2)
    assert one.turn_s == pytest.approx(0.0)
    # The last reply took half a second.
    assert one.close_s == pytest.approx(0.5)
    assert one.crowd == pytest.approx(1.0)
    assert sync_s_of(job()) == pytest.approx(0.5)


def crowded(count: int, start_s: float, ordinal: int, wait_s: float) -> RecordedGroup:
    """Members that all wait so long, at the same time."""
    members = tuple(
        RecordedRollout(
            f"engine{place}",
            start_s + wait_s,
            start_s + wait_s + 1.0,
            (RecordedTurn(10, 10, 5, 1.0, 0.0),),
            1.0,
        )
        for place in range(count)
    )
    end_s = start_s + wait_s + 1.0
    return RecordedGroup(ordinal, start_s, end_s, end_s + 0.1, members)


def test_a_wait_that_grows_with_the_rollouts_in_flight_is_a_line() -> None:
    groups = tuple(crowded(n, 100.0 * n, n, 0.5 + 0.25 * n) for n in (1, 2, 4, 8))
    crowded_job = RecordedJob(groups, job().steps, (), slots=8)
    crowds = crowds_of(crowded_job, waits_of(crowded_job), grade_crowds_of(crowded_job))
    assert (crowds.place.base, crowds.place.slope) == pytest.approx((0.5, 0.25))
    assert crowds.place.factor(seen=2, now=6) == pytest.approx(2.0)
    assert crowds.grade.slope == pytest.approx(0.0, abs=1e-6)


def test_verdicts_are_seen_beside_the_rollouts_that_were_then_in_flight() -> None:
    others = tuple(crowded(n, 100.0 * n, n, 40.0) for n in (1, 2, 4))
    graded = tuple(
        replace(crowded(1, 100.0 * n, 10 + n, 1.0), graded_s=100.0 * n + 2.5 + 0.25 * n)
        for n in (1, 2, 4)
    )
    many = RecordedJob((*others, *graded), job().steps, (), slots=64)
    assert [grade_crowds_of(many)[10 + n] for n in (1, 2, 4)] == pytest.approx([1.0, 2.0, 4.0])
    alone = RecordedJob(graded, job().steps, (), slots=64)
    crowds = crowds_of(alone, waits_of(many), grade_crowds_of(alone))
    assert crowds.grade.slope == pytest.approx(0.0, abs=1e-6)
    everybody = crowds_of(many, waits_of(many), grade_crowds_of(many))
    assert everybody.grade.slope > 0.1


def test_tools_that_slow_down_beside_others_are_a_line() -> None:
    def tools(count: int) -> RecordedGroup:
        group = crowded(count, 100.0 * count, count, 1.0)
        turns = (RecordedTurn(10, 10, 5, 0.1, 0.2 * count), RecordedTurn(20, 5, 5, 0.1, 0.0))
        return replace(group, rollouts=tuple(replace(one, turns=turns) for one in group.rollouts))

    recorded = RecordedJob(tuple(tools(n) for n in (1, 2, 3)), job().steps, (), slots=64)
    line = crowds_of(recorded, waits_of(recorded), grade_crowds_of(recorded)).tool
    assert (line.base, line.slope) == pytest.approx((0.0, 0.2), abs=1e-6)


def test_where_all_slots_were_taken_the_quiet_quarter_speaks_for_all() -> None:
    groups = tuple(crowded(1, 100.0 * n, n, float(n)) for n in range(1, 6))
    full = waits_of(RecordedJob(groups, job().steps, (), slots=1))
    assert {one.place_s for one in full.values()} == {2.0}


def test_a_job_without_a_step_says_what_is_missing() -> None:
    with pytest.raises(NotEnoughRecorded, match="no step"):
        RecordedJob(job().groups, (), ()).check()


def test_a_job_with_too_few_turns_says_how_many_are_needed() -> None:
    few = RecordedJob(job().groups[:1], (RecordedStep(1, 1.0, 1.0, None, 5),), ())
    with pytest.raises(NotEnoughRecorded, match="3 turns are recorded"):
        few.check()
