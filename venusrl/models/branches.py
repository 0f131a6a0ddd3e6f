"""Branches of rollouts: continuations from before a turn."""

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field

from venusrl.models._base import Answer, Wire
from venusrl.models.common import Id, Temperature

CONTINUATIONS_MAX: Final = 16
"""Live at once from one border."""


class BranchRequest(Wire):
    """Body of POST /v1/rollouts/{id}/branch."""

    turns: (
        Annotated[list[Annotated[int, Field(ge=0, le=9_999)]], Field(min_length=1, max_length=64)]
        | None
    ) = None
    """Before which sampled turns, counted from 0; null: before each of the rollout's, 64 at most."""
    n: Annotated[int, Field(ge=1, le=CONTINUATIONS_MAX)] = 8
    """Continuations from each border."""
    checkpoint: Id | None = None
    """Who goes on; null: the newest checkpoint of the rollout's job."""
    tool_output: Annotated[str, Field(max_length=100_000, pattern=r"^[^\x00]*$")] | None = None
    """What the model reads instead of the last tool's answer before the border."""
    temperature: Temperature | None = None
    """null: as the rollout sampled."""


class Continuation(Answer):
    """One continuation. Without a verdict `unscorable_reason` says why; never trained."""

    index: int
    end: str
    cause: str | None = None
    verdict: str
    reward: float | None = None
    passed: bool | None = None
    unscorable_reason: str | None = None
    components: dict[str, Any] = Field(default_factory=dict)
    turns: int
    tokens: int
    sampled_tokens: int
    files_sha256: str | None = None
    """Sum of its sandbox's files at the border, names and contents."""
    case: dict[str, Any] | None = None
    """As a line of the environment's `cases/*.jsonl`; null where no script can say it."""


class Border(Answer):
    """What the continuations from before one turn gave."""

    turn: int
    prefix_tokens: int
    """Of the recorded prompt of that turn; the continuations have the same ones."""
    live: int
    """Continuations that reached the border and were live there together."""
    files: int | None = None
    """In the sandbox's work folder at the border; null without a sandbox."""
    differing_files: list[str] = Field(default_factory=list)
    """Paths that are not the same in all of them, 20 at most."""
    scored: int
    passed: int
    pass_rate: float | None = None
    mean_reward: float | None = None
    continuations: list[Continuation]


class BranchResult(Answer):
    """What a branch gave; `borders` are the curve of pass rate by turn."""

    branch_id: str
    rollout_id: str
    checkpoint_id: str
    policy_version: int
    runtime: str
    restored: str
    """`files`: the recorded actions were run again in fresh sandboxes. Memory of the recorded ones is
    not restored."""
    tool_output: bool = False
    """Whether the last tool's answer before the border was replaced."""
    borders: list[Border]
    not_played: list[int] = Field(default_factory=list)
    """Turns for which the branch's time was up."""


class Branch(Answer):
    """A branch as an operation: `state` is pending, running, done or failed."""

    id: str
    rollout_id: str
    checkpoint_id: str
    turns: list[int]
    n: int
    state: str
    result: BranchResult | None = None
    error: dict[str, Any] | None = None
    created_at: datetime
