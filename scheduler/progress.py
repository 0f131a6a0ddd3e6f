"""The scheduler's view of a job as the document that the API serves under `/progress`."""

from collections import Counter, deque
from datetime import UTC, datetime
from typing import Final

from domain.ids import AttemptId
from domain.plan import JobPlan
from domain.states import HostKind
from scheduler.core.views import JobView
from scheduler.hosts import Hosts

WINDOW_S: Final = 20.0
"""Tokens per second are averaged over this window: a few steps of the smallest job."""


class Throughput:
    """Sampled tokens of closed rollouts by attempt over a sliding window."""

    def __init__(self) -> None:
        self._closed: dict[AttemptId, deque[tuple[float, int]]] = {}

    def count(self, attempt: AttemptId, tokens: int, now: float) -> None:
        """A rollout closed with this many sampled tokens."""
        self._closed.setdefault(attempt, deque()).append((now, tokens))

    def rate(self, attempt: AttemptId, now: float) -> float:
        """Sampled tokens per second over the window."""
        closed = self._closed.get(attempt, deque())
        while closed and closed[0][0] < now - WINDOW_S:
            closed.popleft()
        if not closed:
            return 0.0
        return sum(tokens for _, tokens in closed) / max(now - closed[0][0], 1.0)

    def forget(self, attempt: AttemptId) -> None:
        """The attempt ended."""
        self._closed.pop(attempt, None)


def progress_of(
    view: JobView, plan: JobPlan, tokens_per_s: float, hosts: Hosts
) -> dict[str, object]:
    """What a person wants to see of a running job, and why it waits if it does."""
    return {
        "state": view.state.value,
        "step": view.committed_step,
        "max_steps": max(plan.max_steps, view.committed_step),
        "filling_step": view.filling_step,
        "queue_position": view.queue_position,
        "reason": view.reason,
        "predicted_start": _time(view.start.at),
        "predicted_start_reason": view.start.reason,
        "blocked": view.blocked,
        "groups": {
            "open": len(view.open_groups),
            "complete": len(view.complete_groups),
            "assigned": len(view.assigned_groups),
            "per_batch": plan.groups_per_batch,
            "promoted": len(view.promoted_groups),
            "critical": len(view.critical_groups),
        },
        "staleness": {str(k): v for k, v in sorted(Counter(view.assigned_staleness).items())},
        "rollouts": {"running": view.running_rollouts, "waiting": len(view.waiting_rollouts)},
        "sandboxes": view.sandboxes,
        "failed_share": round(view.failed_share, 4),
        "tokens_per_s": round(tokens_per_s, 1),
        "checkpoint_step": view.checkpoint_step,
        "evaluation": None
        if view.evaluation is None
        else {
            "step": view.evaluation.step,
            "opened": view.evaluation.opened,
            "unfinished": view.evaluation.unfinished,
            "tasks": plan.evaluation.tasks if plan.evaluation else 0,
        },
        "hosts": [
            {
                "id": host.host_id,
                "kind": host.kind.value,
                "epoch": host.epoch,
                "policy_version": host.version if host.kind is HostKind.ENGINE else None,
                "rollouts": host.load,
                "figures": _figures(hosts, host.host_id),
            }
            for host in view.hosts
        ],
    }


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()


def _figures(hosts: Hosts, host_id: str) -> dict[str, float]:
    found = [peer.figures for peer in hosts.connected.values() if peer.host_id == host_id]
    return found[0] if found else {}
