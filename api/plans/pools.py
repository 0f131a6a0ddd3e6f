"""The pool that a plan asks about: what the checks of a spec take for the installation."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from api.jobs.checks import check_resources
from api.jobs.outcome import Outcome, Surroundings
from api.problems import Finding
from infra.settings import Settings
from venusrl.models.job_spec import JobSpec
from venusrl.models.plans import PlanPool

NO_BOUND: Final = 10**9
"""Tokens that an engine of the table may hold: its own memory bounds the simulated job, not this
installation's."""

OF_POOL: Final = {
    "/rollout/group_size": "/pool/sandboxes",
    "/evaluation/rollouts_per_task": "/pool/sandboxes",
    "/resources/rollout_gpus/min": "/pool/engines",
}
"""By what does not fit: which part of the pool is to blame where the spec was not changed there."""


def settings_for(settings: Settings, pool: PlanPool) -> Settings:
    """This installation with the machines that were asked for; planning larger ones is the point."""
    limits, hosts = settings.limits, replace(settings.pool, trainers=max(settings.pool.trainers, 1))
    if pool.engines is not None:
        hosts = replace(hosts, engines=pool.engines)
    if pool.sandboxes is not None:
        # All of them on one node, as they are simulated.
        limits, hosts = replace(limits, sandboxes=pool.sandboxes), replace(hosts, nodes=1)
    if pool.engine is not None:
        limits = replace(limits, context_tokens=NO_BOUND, kv_pages=NO_BOUND)
    return replace(settings, limits=limits, pool=hosts)


def misfits(spec: JobSpec, settings: Settings, changed: Collection[str]) -> list[Finding]:
    """What of a changed spec the pool never holds, at the place that was changed or in the pool."""
    outcome = Outcome()
    check_resources(spec, Surroundings({}, {}, settings), outcome)
    placed = []
    for one in outcome.findings:
        is_changed = one.pointer in changed or one.pointer not in OF_POOL
        placed.append(
            replace(one, pointer=f"/changes{one.pointer}" if is_changed else OF_POOL[one.pointer])
        )
    return placed


def without_signal(group_size: int, above: str) -> list[Finding]:
    """A finding where no group ever trains; a job may be submitted so, a plan of it has no end."""
    if group_size > 1:
        return []
    message = "A group of one has no signal: its advantage is zero, and no step is ever made."
    return [Finding(f"{above}/rollout/group_size", "no_signal", message, "Use at least 2.")]
