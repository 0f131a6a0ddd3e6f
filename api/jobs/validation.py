"""From a submitted spec to findings and a normalised spec with every `auto` resolved and explained.

One function for POST /v1/jobs/validate, for creation, branches and changes: what one of them refuses
the others refuse with the same findings.
"""

from typing import Any

from pydantic import ValidationError

from api.jobs import checks, granted
from api.jobs.availability import check_availability
from api.jobs.hints import spec_findings
from api.jobs.outcome import Outcome, Surroundings
from api.jobs.resolution import resolve
from api.jobs.scheduling import check_scheduling
from api.jobs.storable import unstorable
from venusrl.models.job_spec import JobSpec

__all__ = ["Outcome", "Surroundings", "unstorable", "validate"]


def validate(body: Any, around: Surroundings) -> Outcome:
    """Check and normalise a submitted spec."""
    outcome = Outcome(findings=unstorable(body))
    if outcome.findings:
        return outcome
    try:
        spec = JobSpec.model_validate(body)
    except ValidationError as error:
        outcome.findings = spec_findings(error.errors(include_url=False), body)
        return outcome
    normal = spec.model_dump(mode="json")
    checks.check_model(spec, around, outcome)
    checks.check_environments(spec, normal, around, outcome)
    checks.check_rollout(spec, outcome)
    check_scheduling(spec, outcome)
    checks.check_resources(spec, around, outcome)
    checks.check_lifetimes(spec, outcome)
    granted.check_secrets(spec, around, outcome)
    granted.check_judges(spec, around, outcome)
    check_availability(spec, outcome)
    if outcome.is_valid:
        resolve(spec, normal, around, outcome)
        outcome.spec = normal
    return outcome
