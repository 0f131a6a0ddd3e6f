"""One rollout as a record of the open export schema: its row, and its tokens as a chain of nodes.

A node is a run of tokens of one kind: `context` was read by the model, `sampled` was written by it.
A segment is a chain of its own; a node names its parent. A rewritten history begins another segment,
in which tokens of earlier turns are context.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from domain.trajectory import Segment, TurnSpan
from domain.trajectory import Trajectory as StoredTrajectory

SCHEMA: Final = "venusrl.trajectory/1"
"""Raised when a field changes its meaning; fields may be added to it."""

ROW_FIELDS: Final = (
    *("id", "group_id", "job_id", "attempt_id", "index", "task_id", "purpose"),
    "environment",
    *("end", "cause", "verdict", "reward", "unscorable_reason", "advantage", "disposition"),
    *("bucket", "oldest_version", "newest_version", "components"),
    *("tokens", "sampled_tokens"),
)

TIMES: Final = ("created_at", "closed_at")
"""Of the row, as text of RFC 3339; the second is null while the rollout is open."""

NO_TRAJECTORY: Final = "no_trajectory"
"""Error of a rollout that is open, or that ended without a trajectory."""

UNREADABLE: Final = "payload_unreadable"
"""Error of a rollout whose stored trajectory is damaged or gone."""


def record_of(
    row: Mapping[str, Any], stored: StoredTrajectory | None, error: str | None
) -> dict[str, Any]:
    """The whole record; without tokens it says why under `error`."""
    record: dict[str, Any] = {"schema": SCHEMA, **{name: row[name] for name in ROW_FIELDS}}
    record |= {name: _said(row[name]) for name in TIMES}
    record |= {"try": row["try"], "nodes": [], "turns": [], "messages": [], "metrics": {}}
    record |= {"rewrites": []}
    if stored is not None:
        record |= {
            "nodes": list(nodes_of(row["id"], stored)),
            "turns": [_turn_of(span) for span in stored.turns],
            "messages": list(stored.messages),
            "rewrites": list(stored.rewrites),
            "metrics": dict(stored.metrics),
        }
    return record | {"error": error}


def _said(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def nodes_of(rollout_id: str, stored: StoredTrajectory) -> Iterator[dict[str, Any]]:
    """Nodes of all segments, in order."""
    for number, segment in enumerate(stored.segments):
        parent = None
        for place, (start, end) in enumerate(_runs(segment)):
            node_id = f"{rollout_id}/{number}/{place}"
            yield {
                "id": node_id,
                "parent": parent,
                "segment": number,
                "kind": "sampled" if segment.mask[start] else "context",
                "start": start,
                "token_ids": list(segment.token_ids[start:end]),
                "mask": list(segment.mask[start:end]),
                "logprobs": list(segment.logprobs[start:end]),
                "versions": list(segment.versions[start:end]),
            }
            parent = node_id


def _runs(segment: Segment) -> Iterator[tuple[int, int]]:
    start = 0
    for _, run in groupby(segment.mask):
        end = start + sum(1 for _ in run)
        yield start, end
        start = end


def _turn_of(span: TurnSpan) -> dict[str, Any]:
    return {
        "turn": span.turn,
        "start": span.start,
        "sampled_end": span.sampled_end,
        "end": span.end,
        "tool_calls": span.tool_calls,
        "finish": span.finish,
        "generate_s": span.generate_s,
        "tool_s": span.tool_s,
        "segment": span.segment,
    }
