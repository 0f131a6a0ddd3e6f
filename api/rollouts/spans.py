"""Where the time of a rollout went, from facts that were written anyway: intervals, placements, turns.

opened -> [wait_for_sandbox] sandbox held ............ of each try
                             [placement]               of each hop on an engine host
                               [generate] [tool] ...   of each turn of the recorded try
closed -> [wait_for_grading] [grader_sandbox] graded -> [wait_for_batch] step committed
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from domain.trajectory import Trajectory, TurnSpan
from stores.rollouts import History
from venusrl.models.logs import Span, Spans

NOT_MEASURED: Final = (
    "`unattributed`, the rest of a placement, holds waiting for an engine slot and for new weights.",
    "It also holds calls between hosts and the upload; it is known where all turns were measured.",
    "Turns are measured for the try whose trajectory is stored, not for those that failed.",
    "A generation that another placement took over has no length.",
    "`wait_for_grading` holds the grading itself where it needed no sandbox.",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one rollout."""

    row: Any
    history: History
    sandboxes: Sequence[Any]
    trajectory: Trajectory | None


def spans_of(facts: Facts) -> Spans:
    """All spans in order."""
    spans = [*_tries(facts), *_grading(facts), *_batch(facts)]
    return Spans(rollout_id=facts.row.id, spans=spans, not_measured=list(NOT_MEASURED))


def _tries(facts: Facts) -> Iterator[Span]:
    agents = {one.number: one for one in facts.sandboxes if one.purpose == "agent"}
    ended = {one._mapping["try"]: one.ended_at for one in facts.history.tries}
    hops = facts.history.hops
    numbers = {facts.row._mapping["try"], *agents, *ended, *(hop._mapping["try"] for hop in hops)}
    opened: datetime | None = facts.row.created_at
    for number in sorted(numbers):
        box = agents.get(number)
        if box is not None and opened is not None:
            yield _between("wait_for_sandbox", opened, box.started_at, try_number=number)
        if box is not None:
            times = (box.started_at, box.ended_at)
            yield _between("sandbox", *times, try_number=number, host_id=box.host_id)
        own = [hop for hop in hops if hop._mapping["try"] == number]
        yield from _placements(own, facts, number)
        opened = ended.get(number)


def _placements(hops: Sequence[Any], facts: Facts, number: int) -> Iterator[Span]:
    stored = facts.trajectory
    turns = stored.turns if stored is not None and stored.try_ == number else ()
    for hop in hops:
        where = {"try_number": number, "hop": hop.hop, "host_id": hop.host_id}
        yield _between("placement", hop.placed_at, hop.ended_at, **where)
    is_whole = len(hops) == 1
    for turn in turns:
        yield from _turn(turn, number, is_whole)
    if is_whole and turns and hops[0].ended_at is not None:
        whole = (hops[0].ended_at - hops[0].placed_at).total_seconds()
        known = sum(turn.generate_s + turn.tool_s for turn in turns)
        rest = max(0.0, whole - known)
        yield Span(name="unattributed", try_number=number, hop=hops[0].hop, seconds=rest)


def _turn(turn: TurnSpan, number: int, is_whole: bool) -> Iterator[Span]:
    is_measured = is_whole or turn.generate_s > 0
    seconds = turn.generate_s if is_measured else None
    yield Span(name="generate", try_number=number, turn=turn.turn, seconds=seconds)
    if turn.tool_s > 0:
        yield Span(name="tool", try_number=number, turn=turn.turn, seconds=turn.tool_s)


def _grading(facts: Facts) -> Iterator[Span]:
    closed, graded = facts.row.closed_at, facts.history.group.graded_at
    if closed is None:
        return
    boxes = [one for one in facts.sandboxes if one.purpose == "grader"]
    first = min((one.started_at for one in boxes), default=graded)
    yield _between("wait_for_grading", closed, first)
    for box in boxes:
        times = (box.started_at, box.ended_at)
        yield _between("grader_sandbox", *times, host_id=box.host_id)


def _batch(facts: Facts) -> Iterator[Span]:
    graded, step = facts.history.group.graded_at, facts.history.step
    if graded is not None and step is not None:
        yield _between("wait_for_batch", graded, step.committed_at)


def _between(name: Any, start: datetime, end: datetime | None, **where: Any) -> Span:
    seconds = None if end is None else max(0.0, (end - start).total_seconds())
    return Span(name=name, started_at=start, ended_at=end, seconds=seconds, **where)
