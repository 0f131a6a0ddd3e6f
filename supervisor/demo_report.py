"""What a demo's job came to: scores, times, the curve, one answer; read through the public API."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from venusrl.cli.curve import draw
from venusrl.cli.watch import Snapshot
from venusrl.client import Client, VenusError
from venusrl.models.checkpoints import Checkpoint
from venusrl.models.jobs import Evaluation, Job
from venusrl.models.rollouts import Trajectory

ROLLOUTS_SHOWN: Final = 1
"""One transcript is enough to see what was learned."""


@dataclass(frozen=True, slots=True)
class Start:
    """When the demo began, by the clock that the platform's timestamps use, and how it came up."""

    at: datetime
    time_to_ready_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one demo. Scores are means of held-out tasks; times are seconds.

    `train_s` runs from the job's start to its last step. Training overlaps the first evaluation, so
    that one is not taken off; the last begins after the last step.
    """

    job_id: str
    state: str
    seed: int
    control: str | None
    score_before: float | None
    score_after: float | None
    rise: float | None
    tasks: int
    unscorable: int
    steps: int
    job_s: float | None
    evaluation_s: float
    train_s: float | None
    time_to_ready_s: float
    time_to_first_step_s: float | None
    reward_curve: Sequence[float]
    checkpoint_id: str | None
    checkpoint_sha: str | None

    def as_json(self) -> Mapping[str, object]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Look:
    """One held-out task: what the trained model is asked and what it says, twice."""

    prompt: str
    answer: str
    transcript: Sequence[str]
    reward: float | None


def summarize(client: Client, snapshot: Snapshot, start: Start) -> Summary:
    """Read what the job left behind."""
    job = client.jobs.get(snapshot.job.id)
    evaluations = [
        one for one in client.jobs.evaluations(job.id) if one.attempt_id == job.attempt_id
    ]
    before, after = _first_and_last(evaluations)
    checkpoint = newest_checkpoint(client, job)
    evaluation_s = sum(one.seconds for one in evaluations)
    steps_at = _step_times(client, job)
    return Summary(
        job_id=job.id,
        state=job.state,
        seed=int(job.spec.get("seed", 0)),
        control=job.spec.get("algorithm", {}).get("control"),
        score_before=before.score if before else None,
        score_after=after.score if after else None,
        rise=_rise(before, after),
        tasks=after.tasks if after else 0,
        unscorable=sum(one.unscorable for one in evaluations),
        steps=after.step if after else len(snapshot.curve),
        job_s=_between(job.started_at, job.ended_at),
        evaluation_s=round(evaluation_s, 3),
        train_s=_between(job.started_at, steps_at[-1] if steps_at else None),
        time_to_ready_s=round(start.time_to_ready_s, 3),
        time_to_first_step_s=_between(start.at, steps_at[0] if steps_at else None),
        reward_curve=[round(value, 6) for value in snapshot.curve],
        checkpoint_id=checkpoint.id if checkpoint else None,
        checkpoint_sha=checkpoint.weights_sha if checkpoint else None,
    )


def newest_checkpoint(client: Client, job: Job) -> Checkpoint | None:
    """The ready checkpoint of the latest step."""
    ready = [one for one in client.checkpoints.list(job.id) if one.state == "ready"]
    return max(ready, key=lambda one: (one.step, one.id), default=None)


def look(client: Client, summary: Summary) -> Look | None:
    """Ask the checkpoint a held-out question, and fetch how the last evaluation answered it."""
    if summary.checkpoint_id is None:
        return None
    rollouts = client.rollouts.list(
        summary.job_id,
        purpose="evaluation",
        disposition=f"evaluated({summary.steps})",
    )
    for rollout in islice(rollouts, ROLLOUTS_SHOWN):
        trajectory = client.rollouts.trajectory(rollout.id)
        prompt = _question(trajectory)
        answer = client.checkpoints.generate(summary.checkpoint_id, prompt)
        return Look(prompt, answer.text, _transcript(trajectory), rollout.reward)
    return None


def verdict(summary: Summary, min_rise: float) -> str | None:
    """Why the demo did not show what it should; None when it did."""
    if summary.state != "succeeded":
        return f"the job is {summary.state}"
    if summary.rise is None:
        return "there are not two evaluations to compare"
    if summary.control is not None:
        is_flat = summary.rise < min_rise
        return None if is_flat else f"the control rose by {summary.rise:.3f}: it must not learn"
    if summary.rise < min_rise:
        return f"the held-out score rose by {summary.rise:.3f}, less than {min_rise}"
    return None


def report(summary: Summary, seen: Look | None, api: str) -> list[str]:
    """The lines that a person reads at the end."""
    lines = ["", "mean reward by step", *draw(summary.reward_curve), ""]
    fields = {
        "held-out score": f"{_number(summary.score_before)} -> {_number(summary.score_after)}"
        f"  ({summary.tasks} tasks)",
        "job": f"{api}/v1/jobs/{summary.job_id}",
        "checkpoint": f"{summary.checkpoint_id or 'none'}  weights {summary.checkpoint_sha or '-'}",
        "time": f"{_seconds(summary.train_s)} to the last step, {_seconds(summary.evaluation_s)} "
        f"evaluation; ready after {_seconds(summary.time_to_ready_s)}, "
        f"first step after {_seconds(summary.time_to_first_step_s)}",
    }
    if seen is not None:
        fields["asked"] = seen.prompt
        fields["generated"] = seen.answer.strip()
        fields["held-out run"] = f"{' '.join(seen.transcript)}  (reward {_number(seen.reward)})"
    width = max(len(name) for name in fields)
    return [*lines, *(f"{name.ljust(width)}  {value}" for name, value in fields.items())]


def failure_lines(client: Client, job: Job) -> list[str]:
    """Why a job is not what was hoped for: its failure or reason, and its last events."""
    lines = [f"{job.id} is {job.state}" + (f": {job.queue_reason}" if job.queue_reason else "")]
    if job.failure is not None:
        hint = f": {job.failure.hint}" if job.failure.hint else ""
        lines.append(f"failure {job.failure.code} of {job.failure.component or '-'}{hint}")
    try:
        events = list(client.jobs.events(job.id))[-8:]
    except VenusError as error:
        return [*lines, f"its events cannot be read: {error}"]
    return [*lines, *(f"  {one.created_at:%H:%M:%S} {one.type} {one.body}" for one in events)]


def _first_and_last(
    evaluations: Sequence[Evaluation],
) -> tuple[Evaluation | None, Evaluation | None]:
    """The one at step 0 and a later one; the same evaluation is never both."""
    ordered = sorted(evaluations, key=lambda one: one.step)
    before = ordered[0] if ordered and ordered[0].step == 0 else None
    after = ordered[-1] if ordered and ordered[-1].step > 0 else None
    return before, after


def _rise(before: Evaluation | None, after: Evaluation | None) -> float | None:
    if before is None or after is None or before.score is None or after.score is None:
        return None
    return round(after.score - before.score, 6)


def _step_times(client: Client, job: Job) -> list[datetime]:
    """When each step was committed, in order."""
    return [one.created_at for one in client.jobs.events(job.id, types=("step.committed",))]


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else round((end - start).total_seconds(), 3)


def _question(trajectory: Trajectory) -> str:
    asked = [one for one in trajectory.messages if one.get("role") == "user"]
    return str(asked[0]["content"]) if asked else ""


def _transcript(trajectory: Trajectory) -> list[str]:
    return [f"{one.get('role')}[{str(one.get('content', '')).strip()}]"
            for one in trajectory.messages]  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
