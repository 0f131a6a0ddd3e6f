"""`venus jobs schedule` and `venus jobs profile`: what waits for what, and how full everything is."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from venusrl.cli.output import AsJson, connected, write_fields, write_json, write_line, write_table

if TYPE_CHECKING:
    from venusrl.models.schedule import Profile, RolloutSchedule, Schedule, ScheduledGroup


def schedule(
    job_id: str,
    rollout: Annotated[str | None, typer.Option(help="What this one rollout waits for.")] = None,
    each: Annotated[bool, typer.Option("--rollouts", help="A line per rollout.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Groups to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Groups in the order in which they are served, and what their rollouts wait for."""
    with connected(as_json) as client:
        if rollout is not None:
            one = client.jobs.schedule_of(job_id, rollout)
            write_json(one) if as_json else _show_rollout(one)
            return
        found = client.jobs.schedule(job_id, limit=limit)
    if as_json:
        write_json(found)
        return
    _show_bounds(found)
    if not found.groups:
        return
    if each:
        detailed = ("lane", "rollout", "stage", "waits for", "seconds", "turn", "numbers")
        write_table(detailed, [row for group in found.groups for row in _rollout_rows(group)])
    else:
        columns = ("lane", "group", "eta s", "staleness", "last step", "rollouts")
        write_table(columns, [_group_row(group) for group in found.groups])
    if found.groups_left_out:
        write_line(f"and {found.groups_left_out} more groups")


def profile(job_id: str, as_json: AsJson = False) -> None:
    """Active batch against configured, keys and values, sandboxes, throughput, staleness."""
    with connected(as_json) as client:
        found = client.jobs.profile(job_id)
    if as_json:
        write_json(found)
        return
    _show_profile(found)


def _show_bounds(found: "Schedule") -> None:
    upcoming = found.next_group
    fields: dict[str, object] = {"job": f"{found.job_id} is {found.state}"}
    if found.written_at is not None:
        fields |= {
            "step": "all are committed"
            if found.filling_step is None
            else f"{found.filling_step} is being filled, {found.need} groups to come",
            "lanes": _counts({name: count for name, count in found.lanes.items() if count}),
            "next group": None
            if upcoming is None
            else f"{upcoming.reason} {_numbers(upcoming.numbers)}".rstrip(),
            "said": _age(found.written_at),
        }
    write_fields(fields)


def _show_rollout(one: "RolloutSchedule") -> None:
    write_fields(
        {
            "rollout": one.id,
            "group": one.group_id if one.lane is None else f"{one.group_id} ({one.lane})",
            "job": f"{one.job_id} is {one.job_state}",
            "stage": one.stage,
            "waits for": one.wait_reason,
            "numbers": _numbers(one.numbers) or None,
            "since": None if one.since is None else _age(one.since),
            "try": f"{one.current_try}, hop {one.hop}",
            "turn": f"{one.turn}, {one.tokens} tokens",
            "host": one.host,
        }
    )


def _group_row(group: "ScheduledGroup") -> tuple[object, ...]:
    reasons = Counter(str(one.wait_reason) for one in group.rollouts)
    eta = None if group.eta_s is None else f"{group.eta_s:.1f}"
    last = group.last_valid_step
    return group.lane, group.id, eta, group.staleness, last, _counts(reasons)


def _rollout_rows(group: "ScheduledGroup") -> list[tuple[object, ...]]:
    return [
        (
            group.lane, one.id, one.stage, one.wait_reason,
            None if one.since is None else f"{_seconds(one.since):.0f}",
            one.turn, _numbers(one.numbers) or None,
        )
        for one in group.rollouts
    ]  # fmt: skip


def _show_profile(found: "Profile") -> None:
    from venusrl.cli.watch import ENDED

    active, sandboxes = found.active_batch, found.sandboxes
    fields: dict[str, object] = {"job": f"{found.job_id} is {found.state}"}
    if found.state in ENDED:
        fields |= {
            "holds": "nothing, it has ended",
            "hit rate": _percent(found.hit_rate),
            "failed tries": _percent(found.failed_share),
        }
    elif active is not None and sandboxes is not None:
        used = sandboxes.used_bytes
        fields |= {
            "open groups": f"{active.open_groups} of {active.open_groups_max}"
            f" ({active.async_ratio:g} x {active.groups_per_batch})",
            "rollouts": f"{active.running_rollouts} on {active.engine_slots} slots,"
            f" {active.waiting_rollouts} wait",
            "kv use": _percent(found.kv_usage),
            "hit rate": _percent(found.hit_rate),
            "sandboxes": f"{sandboxes.held} held, {sandboxes.free} of {sandboxes.total} free",
            "memory": f"{_mib(sandboxes.declared_bytes)} declared, "
            + (f"{_mib(used)} used" if used is not None else f"{sandboxes.used_bytes_reason}"),
            "tokens/s": found.tokens_per_s,
            "failed tries": _percent(found.failed_share),
        }
    fields["staleness"] = _counts(found.staleness) or None
    fields["said"] = None if found.written_at is None else _age(found.written_at)
    write_fields(fields)
    if found.state in ENDED:
        return
    if found.engines:
        columns = ("engine", "version", "rollouts", "active", "waiting", "slots", "kv use",
                   "hit rate", "evictions", "preemptions", "tokens/s")  # fmt: skip
        rows = [
            (one.host, one.policy_version, one.rollouts, _whole(one.active), _whole(one.waiting),
             _whole(one.slots), _percent(one.kv_usage), _percent(one.hit_rate),
             _whole(one.evictions), _whole(one.preemptions), _whole(one.tokens_per_s))
            for one in found.engines
        ]  # fmt: skip
        write_table(columns, rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _numbers(numbers: Mapping[str, float]) -> str:
    """`name=value`; times are shown as seconds from now."""
    now = datetime.now(UTC).timestamp()
    times = {"until": 1.0, "asked_at": -1.0}
    shown = {
        name: f"{(value - now) * times[name]:.0f}s" if name in times else f"{value:g}"
        for name, value in numbers.items()
    }
    return " ".join(f"{name}={text}" for name, text in shown.items())


def _seconds(since: datetime) -> float:
    return max((datetime.now(UTC) - since).total_seconds(), 0.0)


def _age(since: datetime) -> str:
    return f"{_seconds(since):.0f} s ago"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
