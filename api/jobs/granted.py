"""Checks of what a job gives its environment: secrets by variable, and judges."""

import re
from typing import Final

import httpx

from api.jobs.outcome import Outcome, Surroundings
from api.problems import escaped, near_names
from infra.outside import is_listed, is_private
from venusrl.models.job_spec import JobSpec
from venusrl.models.spec_rollout import Judge

RESERVED: Final = re.compile(
    r"PATH|HOME|LANG|TMPDIR|LC_.*|LD_.*|PYTHON.*|VENUS_.*|OMP_NUM_THREADS|OPENBLAS_NUM_THREADS"
)
"""Variables that the platform sets, or that would change how user code starts."""

PORT_MAX: Final = 65_535


def check_secrets(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    """Every secret that is named exists, and each environment gets those that it needs."""
    for variable, name in spec.secrets.items():
        pointer = f"/secrets/{escaped(variable)}"
        if RESERVED.fullmatch(variable):
            message = f"The variable {variable} belongs to the platform."
            outcome.error(pointer, "reserved_variable", message, "Use another name.")
        _check_known(name, pointer, around, outcome)
    manifests = [version.manifest or {} for version in outcome.versions.values()]
    declared = [variable for manifest in manifests for variable in manifest.get("secrets") or ()]
    for variable in dict.fromkeys(declared):
        if variable not in spec.secrets:
            message = f"The environment needs the variable {variable}."
            hint = f"Add secrets: {{{variable}: NAME}}, NAME being a secret of this project."
            outcome.error("/secrets", "missing_secret", message, hint)


def check_judges(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    """Judges are complete, at hosts that may be reached, with keys that exist."""
    for name, judge in spec.judges.items():
        pointer = f"/judges/{escaped(name)}"
        if judge.max_cost_usd is not None:
            message = "A judge's limit in money is not available yet."
            hint = "Leave it null; calls and tokens are in GET /v1/jobs/{id}/bill."
            outcome.error(f"{pointer}/max_cost_usd", "not_available", message, hint)
        if judge.base is not None:
            message = "Judges that the platform serves are not available yet."
            hint = "Use url and model: any OpenAI-compatible server."
            outcome.error(f"{pointer}/base", "not_available", message, hint)
        if judge.secret is not None:
            _check_known(judge.secret, f"{pointer}/secret", around, outcome)
        if judge.url is not None:
            _check_url(judge, judge.url, f"{pointer}/url", around, outcome)
        missing = [one for one in ("url", "model") if getattr(judge, one) is None]
        if missing and judge.base is None:
            message = f"A judge needs url and model; {' and '.join(missing)} is not given."
            hint = "For instance {url: https://HOST/v1, model: NAME, secret: NAME}."
            outcome.error(pointer, "judge_incomplete", message, hint)


def _check_url(
    judge: Judge, text: str, pointer: str, around: Surroundings, outcome: Outcome
) -> None:
    try:
        url = httpx.URL(text)
        port = url.port or (443 if url.scheme == "https" else 80)
    except (httpx.InvalidURL, ValueError) as error:
        outcome.error(pointer, "bad_url", f"This is no address: {error}.")
        return
    if not url.host or not 0 < port <= PORT_MAX:
        outcome.error(pointer, "bad_url", "The address names no host, or no port that exists.")
        return
    if url.userinfo:
        hint = "Store the key as a secret and name it under secret."
        outcome.error(pointer, "credentials_in_url", "The address holds credentials.", hint)
    allowed = is_listed(url.host, port, around.settings.judge_hosts)
    if not allowed and is_private(url.host):
        message = f"The host {url.host} is not a public one."
        hint = "The operator lists hosts of the own network in VENUS_JUDGE_HOSTS."
        outcome.error(pointer, "host_forbidden", message, hint)
    elif not allowed and judge.secret is not None and url.scheme == "http":
        outcome.warn(pointer, "plain_http", "The key travels unencrypted.", "Use https.")


def _check_known(name: str, pointer: str, around: Surroundings, outcome: Outcome) -> None:
    if name in around.secrets:
        return
    known = sorted(around.secrets)
    hint = "PUT /v1/secrets/{name} and `venus secrets set NAME` store one."
    if known:
        shown = ", ".join(known[:NAMES_SHOWN_MAX])
        hint = f"The project has {shown}.{near_names(name, known)}"
    message = f"There is no secret {name!r} in this project."
    outcome.error(pointer, "unknown_secret", message, hint)


NAMES_SHOWN_MAX: Final = 20
"""Names in a hint."""
