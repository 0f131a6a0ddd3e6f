"""Jobs: submit, follow, wait, pause, resume, cancel, restart, branch, change."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from venusrl._errors import JobCancelled, JobFailed, JobPaused, WaitTimeout
from venusrl._events import Follower
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._spec import SpecSource, document_of
from venusrl._transport import Request, Transport
from venusrl.models.bills import Bill
from venusrl.models.jobs import Evaluation, Event, Job, Ledger, Metric, Validation
from venusrl.models.logs import Component, LogLine
from venusrl.models.schedule import Profile, RolloutSchedule, Schedule
from venusrl.models.spec_limits import Budget, Priority

JOBS = "/v1/jobs"

POINTS_LIMIT: Final = 10_000
"""The largest page of metric points."""

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""States that a job leaves only by a restart."""


class AsyncJobs:
    """`client.jobs`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def validate(self, spec: SpecSource) -> Validation:
        """Findings, and the normalised spec with every `auto` resolved; changes nothing."""
        request = Request("POST", f"{JOBS}/validate", body=document_of(spec))
        return await read(self._transport, request, Validation)

    async def create(self, spec: SpecSource) -> Job:
        """Submit a job: a spec, its document, or a YAML or JSON file.

        Raises Invalid with a pointer per finding.
        """
        return await read(self._transport, Request("POST", JOBS, body=document_of(spec)), Job)

    def list(self, state: str | None = None, newest_first: bool = True) -> AsyncIterator[Job]:
        """Jobs of the project."""
        params = {"state": state, "order": "desc" if newest_first else "asc"}
        return iterate(self._transport, JOBS, params, Job)

    async def get(self, job_id: str) -> Job:
        """One job."""
        return await read(self._transport, Request("GET", f"{JOBS}/{one(job_id)}"), Job)

    async def update(
        self,
        job_id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        priority: Priority | None = None,
        max_steps: int | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        etag: str | None = None,
    ) -> Job:
        """Change what is given, also while the job runs; with an `etag` only if the job has not
        changed since. `labels` and `budget` replace all of their kind.
        """
        fields = {
            "name": name,
            "labels": None if labels is None else dict(labels),
            "priority": priority,
            "max_steps": max_steps,
            "budget": _plain(budget),
        }
        body = {key: value for key, value in fields.items() if value is not None}
        headers = {} if etag is None else {"If-Match": etag}
        request = Request("PATCH", f"{JOBS}/{one(job_id)}", body=body, headers=headers)
        return await read(self._transport, request, Job)

    async def delete(self, job_id: str) -> None:
        """Delete an ended job with its trajectories, logs and checkpoints; Conflict before it ended.

        Checkpoints that are kept, or that something else starts from, stay.
        """
        await self._transport.send(Request("DELETE", f"{JOBS}/{one(job_id)}"))

    async def etag(self, job_id: str) -> str:
        """What `update` takes to notice a change by somebody else."""
        response = await self._transport.send(Request("GET", f"{JOBS}/{one(job_id)}"))
        return str(response.headers.get("ETag", ""))

    async def pause(self, job_id: str) -> Job:
        """Ask for a pause: a checkpoint, then everything is given back."""
        return await self._verb(job_id, "pause")

    async def resume(self, job_id: str) -> Job:
        """Ask to go on after a pause."""
        return await self._verb(job_id, "resume")

    async def cancel(self, job_id: str) -> Job:
        """Ask for the end, with a checkpoint of the last step."""
        return await self._verb(job_id, "cancel")

    async def restart(self, job_id: str, checkpoint: str | None = None) -> Job:
        """A new attempt of an ended job, from a checkpoint (the newest by default)."""
        return await self._verb(job_id, "restart", {"checkpoint": checkpoint})

    async def branch(
        self,
        job_id: str,
        checkpoint: str | None = None,
        *,
        name: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Job:
        """A new job from a copy of this one's spec and a checkpoint (the newest by default).

        `overrides` is part of a spec, laid over the copy. Steps are counted on from the checkpoint's.
        """
        body = {"checkpoint": checkpoint, "name": name, "overrides": dict(overrides or {})}
        return await self._verb(job_id, "branch", body)

    def events(
        self, job_id: str, *, after: int = 0, types: Sequence[str] = ()
    ) -> AsyncIterator[Event]:
        """Events so far, above `after`."""
        params = {"after": after, "types": ",".join(types) or None}
        return iterate(self._transport, f"{JOBS}/{one(job_id)}/events", params, Event)

    def logs(
        self,
        job_id: str,
        *,
        component: Component | None = None,
        rollout: str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[LogLine]:
        """Lines that environments and graders printed, by the end of the try that printed them."""
        params = {"component": component, "rollout": rollout, "after": after}
        return iterate(self._transport, f"{JOBS}/{one(job_id)}/logs", params, LogLine)

    async def follow(
        self, job_id: str, *, after: int = 0, types: Sequence[str] = ()
    ) -> AsyncIterator[Event]:
        """Events as they happen, each once and in order, until the job has ended.

        A broken connection is taken up again where it broke. After the last event of a failed job
        raises JobFailed with the cause; ConnectionFailed when the API stays away.
        """
        path = f"{JOBS}/{one(job_id)}/events"
        follower = Follower(self._transport, path, after, ",".join(types) or None)
        async with aclosing(follower.events()) as events:
            async for event in events:
                yield event
        job = await self.get(job_id)
        if job.state == "failed":
            raise JobFailed(job)

    async def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """The job once it succeeded.

        Raises JobFailed with the cause, JobCancelled, JobPaused when it is paused and only a person
        can make it go on, WaitTimeout.
        """
        async for _ in self._transport.polls(timeout_s):
            job = await self.get(job_id)
            if job.state == "failed":
                raise JobFailed(job)
            if job.state == "cancelled":
                raise JobCancelled(job)
            if job.state == "paused" and job.observed_generation >= job.generation:
                raise JobPaused(job)
            if job.state == "succeeded":
                return job
        raise WaitTimeout(f"job {job_id} has not ended within {timeout_s} s")

    async def wait_for(
        self, job_id: str, states: Sequence[str], timeout_s: float | None = None
    ) -> Job:
        """The job once it is in one of `states`, or has ended. Raises WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            job = await self.get(job_id)
            if job.state in states or job.state in ENDED:
                return job
        raise WaitTimeout(f"job {job_id} is not {' or '.join(states)} within {timeout_s} s")

    async def metrics(
        self, job_id: str, *, names: Sequence[str] = (), after_step: int | None = None
    ) -> Sequence[Metric]:
        """Points of the job's series, by attempt and step; a step has one point per series."""
        params = {"names": ",".join(names) or None, "after_step": after_step, "limit": POINTS_LIMIT}
        path = f"{JOBS}/{one(job_id)}/metrics"
        return [one async for one in iterate(self._transport, path, params, Metric)]

    async def evaluations(self, job_id: str) -> Sequence[Evaluation]:
        """Finished held-out evaluations, by attempt and step."""
        path = f"{JOBS}/{one(job_id)}/evaluations"
        return [one async for one in iterate(self._transport, path, {}, Evaluation)]

    async def progress(self, job_id: str) -> dict[str, Any]:
        """What the job does at this moment, and why it waits if it does."""
        response = await self._transport.send(Request("GET", f"{JOBS}/{one(job_id)}/progress"))
        answer = response.json()
        assert isinstance(answer, dict)
        return answer

    async def schedule(self, job_id: str, *, limit: int = 50) -> Schedule:
        """Groups in the order in which they are served, and what each of their rollouts waits for.

        At most `limit` groups are listed, the rest is counted.
        """
        path = f"{JOBS}/{one(job_id)}/schedule"
        return await read(self._transport, Request("GET", path, params={"limit": limit}), Schedule)

    async def schedule_of(self, job_id: str, rollout_id: str) -> RolloutSchedule:
        """What one rollout of the job waits for."""
        path = f"{JOBS}/{one(job_id)}/schedule/rollouts/{one(rollout_id)}"
        return await read(self._transport, Request("GET", path), RolloutSchedule)

    async def profile(self, job_id: str) -> Profile:
        """How well the job uses what it holds: active batch, keys and values, sandboxes, staleness."""
        return await read(self._transport, Request("GET", f"{JOBS}/{one(job_id)}/profile"), Profile)

    async def bill(self, job_id: str) -> Bill:
        """Where its engine-, trainer- and sandbox-seconds went; each line links to its rollouts."""
        return await read(self._transport, Request("GET", f"{JOBS}/{one(job_id)}/bill"), Bill)

    async def ledger(self, job_id: str) -> Ledger:
        """Every rollout of the job once, counted by purpose, end, verdict and disposition."""
        return await read(self._transport, Request("GET", f"{JOBS}/{one(job_id)}/ledger"), Ledger)

    async def _verb(self, job_id: str, verb: str, body: Mapping[str, Any] | None = None) -> Job:
        plain = None if body is None else dict(body)
        request = Request("POST", f"{JOBS}/{one(job_id)}/{verb}", body=plain)
        return await read(self._transport, request, Job)


def _plain(budget: Budget | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if budget is None:
        return None
    return budget.model_dump(mode="json") if isinstance(budget, Budget) else dict(budget)
