"""What must hold of a job that ended well, however often something died while it ran.

Pure functions over rows and trajectories; each returns findings as sentences, none when all is well.

    steps       exactly the planned ones, consecutive
    batches     no group in two steps, none twice, each step made of its members
    ledger      every rollout closed once, with end, verdict and disposition
    tries       one record a try, numbered without holes, hops never lower
    effects     tool effects in a rollout's sandbox equal its trajectory, each exactly once
    tokens      versions in a trajectory never go back and were published before
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from domain.ids import RolloutId, group_of
from domain.states import INFRASTRUCTURE_ENDS, PENDING, DropReason, End, dropped, trained
from domain.trajectory import Trajectory
from environments.builtin.calc.env import EXPRESSION
from tests.support.job_rows import JobRows, Record

Finding = str

CALLS: Final = "calls.jsonl"
"""Artefact of `calc`: one line a tool call that ran."""

DIARY: Final = "diary.jsonl"
"""Artefact of `tests.support.diary`: one line a turn."""


def check_rows(rows: JobRows, last_step: int | None = None) -> list[Finding]:
    """All checks that need rows alone. `last_step`: the planned last one; None takes the spec's."""
    planned = int(rows.spec["stop"]["max_steps"]) if last_step is None else last_step
    return [
        *steps(rows, planned),
        *batches(rows),
        *ledger(rows),
        *tries(rows),
    ]


def check_trajectories(
    rows: JobRows, trajectories: Mapping[RolloutId, Trajectory]
) -> list[Finding]:
    """All checks that need what the rollouts recorded."""
    return [*effects(rows, trajectories), *tokens(rows, trajectories)]


def steps(rows: JobRows, planned: int) -> Iterator[Finding]:
    """The last attempt reached exactly the planned step; each attempt's steps have no hole."""
    for attempt in rows.attempts:
        found = [step["step"] for step in rows.steps_of(attempt)]
        expected = list(range(attempt["base_step"], attempt["base_step"] + len(found)))
        if found != expected:
            yield f"attempt {attempt['number']}: steps {found}"
    last = max(rows.attempts, key=lambda attempt: int(attempt["number"]))
    reached = [step["step"] for step in rows.steps_of(last)]
    if reached[-1:] != [planned]:
        yield f"the last attempt ended with steps {reached}, planned {planned}"


def batches(rows: JobRows) -> Iterator[Finding]:
    """Membership, step rows and dispositions say the same."""
    uses = Counter(member["group_id"] for member in rows.members)
    yield from (f"{group} is a member {n} times" for group, n in uses.items() if n > 1)
    used = Counter(group for step in rows.steps for group in step["group_ids"])
    yield from (f"{group} trained {n} times" for group, n in used.items() if n > 1)
    known = {(step["attempt_id"], step["step"]) for step in rows.steps}
    for member in rows.members:
        if (member["attempt_id"], member["step"]) not in known and _is_last(rows, member):
            yield f"{member['group_id']} is assigned to step {member['step']}, which never was"
    for step in rows.steps:
        yield from _step(rows, step)


def _is_last(rows: JobRows, member: Record) -> bool:
    return bool(member["attempt_id"] == rows.job["attempt_id"])


def _step(rows: JobRows, step: Record) -> Iterator[Finding]:
    here = [m for m in rows.members if (m["attempt_id"], m["step"]) == _key(step)]
    where = f"step {step['step']}"
    if sorted(m["group_id"] for m in here) != sorted(step["group_ids"]):
        yield f"{where} trained {step['group_ids']}, its members are {here}"
    positions = sorted(m["position"] for m in here)
    if positions != list(range(len(here))):
        yield f"{where} has positions {positions}"
    limit = rows.spec["scheduling"]["max_staleness"]
    stale = [m for m in here if not 0 <= m["staleness"] <= limit]
    yield from (f"{where}: {m['group_id']} has staleness {m['staleness']}" for m in stale)
    groups = rows.group_by_id()
    lost = dropped(DropReason.DIVERGED)
    expected = lost if step["diverged"] and step["group_ids"] else trained(step["step"])
    for group in step["group_ids"]:
        if groups[group]["disposition"] != expected:
            yield f"{where}: {group} is {groups[group]['disposition']}"


def _key(step: Record) -> tuple[str, int]:
    return step["attempt_id"], step["step"]


def ledger(rows: JobRows) -> Iterator[Finding]:
    """Every rollout once, with end, verdict and disposition; every group settled."""
    for group in rows.groups:
        if group["disposition"] == PENDING or group["closed_at"] is None:
            yield f"{group['id']} is {group['disposition']}, closed at {group['closed_at']}"
    sizes = Counter(rollout["group_id"] for rollout in rows.rollouts)
    yield from (
        f"{group['id']} has {sizes[group['id']]} rollouts, its size is {group['size']}"
        for group in rows.groups
        if sizes[group["id"]] != group["size"]
    )
    groups = rows.group_by_id()
    for rollout in rows.rollouts:
        yield from _rollout(rollout, groups[rollout["group_id"]])


def _rollout(rollout: Record, group: Record) -> Iterator[Finding]:
    name = rollout["id"]
    if rollout["closed_at"] is None or rollout["end"] is None:
        yield f"{name} is open"
        return
    if rollout["verdict"] is None or rollout["disposition"] == PENDING:
        yield f"{name} ended {rollout['end']}: {rollout['verdict']}, {rollout['disposition']}"
    unnatural = {*INFRASTRUCTURE_ENDS, End.CANCELLED}
    if rollout["end"] in unnatural and rollout["verdict"] == "scored":
        yield f"{name} ended {rollout['end']} and is scored {rollout['reward']}"
    is_trained = str(rollout["disposition"]).startswith("trained")
    if is_trained and rollout["verdict"] != "scored":
        yield f"{name} is {rollout['disposition']} without a score"
    if is_trained and rollout["disposition"] != group["disposition"]:
        yield f"{name} is {rollout['disposition']}, its group {group['disposition']}"


def tries(rows: JobRows) -> Iterator[Finding]:
    """Tries 1 to the current one have one record each; only the last may have ended naturally."""
    by_rollout: dict[str, list[Record]] = {rollout["id"]: [] for rollout in rows.rollouts}
    for record in rows.tries:
        by_rollout[record["rollout_id"]].append(record)
    for rollout in rows.rollouts:
        yield from _tries(rollout, by_rollout[rollout["id"]])


def _tries(rollout: Record, records: Sequence[Record]) -> Iterator[Finding]:
    name = rollout["id"]
    numbers = [record["try"] for record in records]
    if numbers != list(range(1, rollout["try"] + 1)):
        yield f"{name} is at try {rollout['try']}, recorded are {numbers}"
        return
    hops = [*(record["hop"] for record in records), rollout["hop"]]
    if any(later < earlier for earlier, later in pairwise(hops)):
        yield f"{name}: hops {hops} go back"
    if records[-1]["end"] != rollout["end"]:
        yield f"{name} ended {rollout['end']}, its last try {records[-1]['end']}"
    allowed = {*INFRASTRUCTURE_ENDS, End.CANCELLED}
    for record in records[:-1]:
        if record["end"] not in allowed:
            yield f"{name}: try {record['try']} ended {record['end']} and another followed"


def effects(rows: JobRows, trajectories: Mapping[RolloutId, Trajectory]) -> Iterator[Finding]:
    """What stands in the sandbox's file equals what the messages say, line by line."""
    groups = rows.group_by_id()
    for name, trajectory in trajectories.items():
        is_diary = _environment_of(rows, groups[group_of(name)]).startswith("diary")
        file, expected = (DIARY, _entries) if is_diary else (CALLS, _calls)
        said = list(expected(trajectory))
        done = [json.loads(line) for line in trajectory.artefacts.get(file, "").splitlines()]
        if said != done:
            yield f"{name}: the trajectory says {said}, the sandbox holds {done}"


def _environment_of(rows: JobRows, group: Record) -> str:
    """Reference of the environment of a group."""
    uses = rows.spec["environments"]
    if group["purpose"] == "evaluation":
        uses = (rows.spec["evaluation"] or {}).get("environments") or uses
    return str(uses[group["environment"]]["ref"])


def _calls(trajectory: Trajectory) -> Iterator[Record]:
    """`calc`: calls that reach the sandbox, each with the answer that the trajectory holds."""
    answers = {
        str(message["tool_call_id"]): str(message["content"])
        for message in trajectory.messages
        if message["role"] == "tool"
    }
    for call in _tool_calls(trajectory):
        try:
            expression = json.loads(call["arguments"])["expression"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(expression, str) and EXPRESSION.fullmatch(expression):
            yield {"expression": expression, "result": answers.get(call["id"], "(no answer)")}


def _tool_calls(trajectory: Trajectory) -> Iterator[Record]:
    for message in _answered(trajectory):
        calls = message.get("tool_calls", ())
        assert isinstance(calls, list | tuple)
        yield from calls


def _entries(trajectory: Trajectory) -> Iterator[Record]:
    """`diary`: one line for each assistant message that it saw."""
    for turn, message in enumerate(_answered(trajectory)):
        yield {"turn": turn, "text": message["content"]}


def _answered(trajectory: Trajectory) -> Sequence[Record]:
    """Assistant messages that the environment got; one that was cut short never reaches it."""
    said: Sequence[Record] = [m for m in trajectory.messages if m["role"] == "assistant"]
    return said[:-1] if trajectory.end == End.TRUNCATED else said


def tokens(rows: JobRows, trajectories: Mapping[RolloutId, Trajectory]) -> Iterator[Finding]:
    """Each trajectory is its row's try, under versions that go up and that were published."""
    published = {(step["attempt_id"], step["step"]) for step in rows.steps}
    for rollout in rows.rollouts:
        trajectory = trajectories.get(rollout["id"])
        if trajectory is None:
            continue
        name = rollout["id"]
        if (trajectory.try_, trajectory.end) != (rollout["try"], rollout["end"]):
            yield f"{name}: the trajectory is of try {trajectory.try_}, end {trajectory.end}"
        if trajectory.hop > rollout["hop"]:
            yield f"{name}: hop {trajectory.hop} above the row's {rollout['hop']}"
        sampled = [v for part in trajectory.segments for v in part.versions if v >= 0]
        if any(later < earlier for earlier, later in pairwise(sampled)):
            yield f"{name}: versions go back: {sampled}"
        if any((rollout["attempt_id"], version) not in published for version in sampled):
            yield f"{name}: sampled by versions {sorted(set(sampled))}, not all published"
        if len(sampled) != rollout["sampled_tokens"]:
            yield f"{name}: {len(sampled)} sampled tokens, its row says {rollout['sampled_tokens']}"
