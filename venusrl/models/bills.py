"""Bills: where the seconds of a job went."""

from pydantic import Field

from venusrl.models._base import Answer


class BillLine(Answer):
    """Seconds of one resource in one bucket.

    `rollouts` is how many have this bucket as their own; `rollouts_url` lists them. The seconds of a
    failed try are `infrastructure` also where its rollout went on and was trained: `retried_url` lists
    those.
    """

    resource: str
    bucket: str
    seconds: float
    rollouts: int
    rollouts_url: str
    retried_url: str | None = None


class JudgeLine(Answer):
    """What graded rollouts asked of one judge; failures are no calls."""

    judge: str
    rollouts: int
    calls: int
    failed: int
    prompt_tokens: int
    sampled_tokens: int


class Bill(Answer):
    """Each resource with every bucket of the closed list; what is not measured stays at 0."""

    job_id: str
    is_final: bool
    """All attempts have ended and stand in the ledger; nothing changes any more."""
    wall_s: dict[str, float] = Field(default_factory=dict)
    """Seconds for which each resource was held; its lines sum to it."""
    lines: list[BillLine]
    judges: list[JudgeLine] = Field(default_factory=list)
    """Written with each rollout's verdict: a grading that is repeated counts once."""
