"""Bills of random histories: every second in exactly one bucket, whatever dies in between."""

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from domain.billing import (
    Bucket,
    HostSpan,
    HostUse,
    Line,
    Opened,
    Resource,
    Share,
    host_lines,
    merged,
)
from workers.rollout.meter import HostMeter, Use

SECONDS = st.floats(0.0, 1e6, allow_nan=False)


@st.composite
def spans(draw: st.DrawFn) -> HostSpan:
    """One interval."""
    seconds = draw(SECONDS)
    ready_s = seconds * draw(st.floats(0.0, 1.0))
    return HostSpan(draw(st.sampled_from(Opened)), seconds, ready_s, draw(st.booleans()))


USES = st.builds(
    HostUse,
    st.dictionaries(st.sampled_from(Bucket), st.builds(Share, SECONDS, st.integers(0, 9))),
    SECONDS,
)


@given(st.lists(spans(), max_size=12), USES)
def test_lines_of_hosts_sum_to_their_intervals(held: list[HostSpan], use: HostUse) -> None:
    lines = host_lines(Resource.ENGINE, held, use)
    wall_s = sum(span.seconds for span in held)
    assert abs(sum(line.seconds for line in lines) - wall_s) <= 1e-6 * max(1.0, wall_s)
    assert all(line.seconds >= 0.0 for line in lines)
    assert len({line.bucket for line in lines}) == len(lines)


@given(st.lists(st.lists(spans(), max_size=4), max_size=4), USES)
def test_attempts_add_up_to_one_bill_of_the_closed_list(
    attempts: list[list[HostSpan]], use: HostUse
) -> None:
    lines: list[Line] = []
    for held in attempts:
        lines += host_lines(Resource.TRAINER, held, use)
    bill = merged(lines)
    assert [(line.resource, line.bucket) for line in bill] == [
        (resource, bucket) for resource in Resource for bucket in Bucket
    ]
    wall_s = sum(span.seconds for held in attempts for span in held)
    assert abs(sum(line.seconds for line in bill) - wall_s) <= 1e-6 * max(1.0, wall_s)


MOVES = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(("generate", "tool")), st.floats(0.0, 50.0)),
    max_size=40,
)


@given(MOVES)
def test_shares_of_a_host_add_up_to_its_busy_time_and_no_more(
    moves: list[tuple[int, str, float]],
) -> None:
    """Rollouts go from phase to phase; one that moves again leaves the phase that it was in."""
    now, busy_s, stood_s = 0.0, 0.0, 0.0
    meter, uses = HostMeter(lambda: now), [Use() for _ in range(5)]
    phases: dict[int, str] = {}
    open_phases: dict[int, ExitStack] = {}
    for number, phase, wait_s in moves:
        if number in phases:
            open_phases.pop(number).close()
            del phases[number]
        else:
            work = meter.generating if phase == "generate" else meter.in_tool
            open_phases[number] = ExitStack()
            open_phases[number].enter_context(work(uses[number]))
            phases[number] = phase
        now += wait_s
        if "generate" in phases.values():
            busy_s += wait_s
        elif phases:
            stood_s += wait_s
    for stack in open_phases.values():
        stack.close()
    assert abs(sum(use.engine_s for use in uses) - busy_s) < 1e-6
    assert abs(sum(use.tool_wait_s for use in uses) - stood_s) < 1e-6
