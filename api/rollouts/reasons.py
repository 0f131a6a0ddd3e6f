"""One sentence for what became of a rollout, from its row, its group's and its step's."""

from collections.abc import Mapping
from typing import Any, Final

from domain.states import INFRASTRUCTURE_ENDS, DropReason
from stores.rollouts import History

DROPPED: Final[Mapping[str, str]] = {
    DropReason.ZERO_VARIANCE: "every member of its group that counts has the same reward,"
    " so that its gradient is zero",
    DropReason.STALE: "its group was complete only after its oldest token had become too old"
    " for any step that could take it",
    DropReason.UNSALVAGEABLE: "too few members of its group could still end well",
    DropReason.UNSCORABLE: "it has no verdict that counts, or too few members of its group have one",
    DropReason.SHRUNK: "its group was trained without it",
    DropReason.PAYLOAD_LOST: "the stored tokens of its group could not be read",
    DropReason.DIVERGED: "the step that it was part of diverged and was not applied",
    DropReason.CANCELLED: "the job ended or was cancelled first",
}
"""Why a drop happens, by its reason."""


def reason_of(row: Any, history: History) -> str:
    """Why the rollout was trained, evaluated or dropped, or what it waits for."""
    kind, _, argument = row.disposition.rstrip(")").partition("(")
    match kind:
        case "trained":
            return f"Step {argument} trained it with an advantage of {row.advantage or 0.0:g}."
        case "evaluated":
            return f"It is part of the evaluation of step {argument}.{_unscorable(row)}"
        case "dropped":
            cause = history.group.cause or row.cause
            told = DROPPED.get(argument, argument)
            return f"Not trained: {told}.{_ended(row)}{_unscorable(row)}{_caused(cause)}"
        case _:
            return _waiting(row, history)


def _waiting(row: Any, history: History) -> str:
    if row.closed_at is None:
        return f"It runs: try {row._mapping['try']}, placement {row.hop}, {len(history.tries)} tries ended."
    if history.group.graded_at is None:
        return f"It ended ({row.end}) and waits for the verdicts of its group."
    if history.step is None:
        return "It has its verdict and waits for a step."
    return f"It waits for the commit of step {history.step.step}."


def _ended(row: Any) -> str:
    if row.end in INFRASTRUCTURE_ENDS:
        return f" Its last try failed: {row.end}{f' ({row.cause})' if row.cause else ''}."
    return f" It ended with {row.end}." if row.end else ""


def _unscorable(row: Any) -> str:
    return f" It is unscorable: {row.unscorable_reason}." if row.unscorable_reason else ""


def _caused(cause: str | None) -> str:
    return f" Cause: {cause}" if cause else ""
