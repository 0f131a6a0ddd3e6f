"""How well a running job uses what it holds, as the document that the API serves under `/profile`."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from domain.ids import AttemptId
from domain.plan import JobPlan
from domain.sandbox import SandboxLimits
from domain.states import HostKind
from scheduler.core.views import HostView, JobView, ScheduleView
from scheduler.hosts import Hosts

NOT_MEASURED: Final = "no node that reports memory is connected"

USED_STEP: Final = 1 << 20
"""Used bytes are told in whole MiB, or each sample would be a change of the profile."""

ENGINE_FIGURES: Final = (
    "slots", "active", "waiting", "kv_pages", "kv_pages_used", "cached_tokens",
    "prefilled_tokens", "sampled_tokens", "preemptions", "evictions", "tokens_per_s", "busy_s",
    "engaged_s", "prefill_s", "steps", "attended_tokens", "kv_read_tokens",
)  # fmt: skip
"""What is taken over from an engine host's heartbeat as it is."""


def profile_of(
    view: ScheduleView, job: JobView, plan: JobPlan, tokens_per_s: float, hosts: Hosts
) -> dict[str, object]:
    """Used against configured: groups, slots, keys and values, sandboxes; and what comes out."""
    engines = [
        _engine(host, hosts.connected[host.host_id].figures if _is_there(hosts, host) else {})
        for host in job.hosts
        if host.kind is HostKind.ENGINE
    ]
    used = used_bytes(plan.attempt_id, hosts)
    return {
        "active_batch": {
            "open_groups": view.open_groups,
            "open_groups_max": view.open_max,
            "groups_per_batch": plan.groups_per_batch,
            "async_ratio": plan.async_ratio,
            "running_rollouts": job.running_rollouts,
            "waiting_rollouts": len(job.waiting_rollouts),
            "engine_slots": view.slots,
        },
        "kv_usage": _share(engines, "kv_pages_used", "kv_pages"),
        "hit_rate": hit_rate(engines),
        "engines": engines,
        "sandboxes": {
            "held": job.sandboxes,
            "free": view.sandboxes_free,
            "total": view.sandboxes_total,
            "declared_bytes": job.sandboxes * SandboxLimits().memory_bytes,
            "used_bytes": used,
            "used_bytes_reason": NOT_MEASURED if used is None else None,
        },
        "tokens_per_s": round(tokens_per_s, 1),
        "filling_staleness": {
            str(k): count for k, count in sorted(Counter(job.assigned_staleness).items())
        },
        "failed_share": round(job.failed_share, 4),
    }


def used_bytes(attempt_id: AttemptId, hosts: Hosts) -> int | None:
    """Private memory and overhead of an attempt's sandboxes by the last samples; None: nobody says."""
    figures = [
        peer.figures
        for peer in hosts.connected.values()
        if peer.kind is HostKind.NODE and "private_bytes" in peer.figures
    ]
    if not figures:
        return None
    used = sum(one.get(f"private_bytes/{attempt_id}", 0.0) for one in figures)
    return round(used / USED_STEP) * USED_STEP


def hit_rate(engines: list[dict[str, object]]) -> float | None:
    """Prompt tokens that were not computed again, of all prompt tokens since the hosts started."""
    cached, prefilled = _total(engines, "cached_tokens"), _total(engines, "prefilled_tokens")
    return round(cached / (cached + prefilled), 4) if cached + prefilled else None


def _is_there(hosts: Hosts, host: HostView) -> bool:
    peer = hosts.connected.get(host.host_id)
    return peer is not None and peer.epoch == host.epoch


def _engine(host: HostView, figures: Mapping[str, float]) -> dict[str, object]:
    known: dict[str, object] = {name: figures.get(name) for name in ENGINE_FIGURES}
    return {
        "host": host.host_id,
        "epoch": host.epoch,
        "policy_version": host.version,
        "rollouts": host.load,
        **known,
        "kv_usage": _share([known], "kv_pages_used", "kv_pages"),
        "hit_rate": hit_rate([known]),
    }


def _share(engines: list[dict[str, object]], used: str, whole: str) -> float | None:
    total = _total(engines, whole)
    return round(_total(engines, used) / total, 4) if total else None


def _total(engines: list[dict[str, object]], name: str) -> float:
    values = (engine[name] for engine in engines)
    return sum(value for value in values if isinstance(value, float))
