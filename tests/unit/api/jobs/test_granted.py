"""What a job may give its environment: secrets that exist, judges that can be reached."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from api.jobs.granted import check_judges, check_secrets
from api.jobs.outcome import Outcome, Surroundings
from infra.settings import Settings
from venusrl.models.job_spec import JobSpec

JUDGE = {"url": "https://judge.example/v1", "model": "gpt"}

AROUND = Surroundings({}, {}, Settings.from_env({}), frozenset({"hub", "judge-key"}))


def found(around: Surroundings = AROUND, declared: tuple[str, ...] = (), **spec: Any) -> Outcome:
    """Findings of both checks."""
    outcome = Outcome()
    outcome.versions["/environments/0"] = SimpleNamespace(manifest={"secrets": declared})
    body = {"name": "j", "model": {"base": "tiny-calc"}, "environments": [{"ref": "calc"}], **spec}
    parsed = JobSpec.model_validate(body)
    check_secrets(parsed, around, outcome)
    check_judges(parsed, around, outcome)
    return outcome


def codes(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Pointer, code and severity of each finding."""
    return [(one.pointer, one.code, one.severity) for one in outcome.findings]


def test_secrets_and_judges_that_exist_are_accepted() -> None:
    given = {"TOKEN": "hub"}
    judges = {"j": JUDGE | {"secret": "judge-key"}}
    assert codes(found(declared=("TOKEN",), secrets=given, judges=judges)) == []


def test_an_unknown_secret_is_found_with_near_names_wherever_it_is_named() -> None:
    outcome = found(secrets={"TOKEN": "hubb"}, judges={"j": JUDGE | {"secret": "judge-keys"}})
    assert codes(outcome) == [
        ("/secrets/TOKEN", "unknown_secret", "error"),
        ("/judges/j/secret", "unknown_secret", "error"),
    ]
    assert "Near: hub." in outcome.findings[0].hint
    assert "Near: judge-key" in outcome.findings[1].hint


def test_a_project_without_secrets_is_told_how_to_store_one() -> None:
    outcome = found(replace(AROUND, secrets=frozenset()), secrets={"TOKEN": "hub"})
    assert "venus secrets set" in outcome.findings[0].hint


def test_a_variable_that_the_package_needs_and_does_not_get_is_found() -> None:
    outcome = found(declared=("TOKEN", "LICENCE"), secrets={"TOKEN": "hub"})
    assert codes(outcome) == [("/secrets", "missing_secret", "error")]
    assert "LICENCE" in outcome.findings[0].hint


@pytest.mark.parametrize("variable", ["PATH", "LD_PRELOAD", "PYTHONPATH", "VENUS_X", "HOME"])
def test_variables_of_the_platform_are_reserved(variable: str) -> None:
    outcome = found(secrets={variable: "hub"})
    assert codes(outcome) == [(f"/secrets/{variable}", "reserved_variable", "error")]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "http://localhost/v1",
        "http://[::1]/v1",
        "http://169.254.169.254/latest",
        "https://10.0.0.1/v1",
        "https://[::ffff:192.168.0.1]/v1",
    ],
)
def test_a_judge_inside_the_own_network_is_refused_unless_it_is_listed(url: str) -> None:
    judges = {"j": JUDGE | {"url": url}}
    assert codes(found(judges=judges)) == [("/judges/j/url", "host_forbidden", "error")]
    hosts = "127.0.0.1,localhost,::1,169.254.169.254,10.0.0.1,::ffff:192.168.0.1,::ffff:c0a8:1"
    allowing = Settings.from_env({"VENUS_JUDGE_HOSTS": hosts})
    assert codes(found(replace(AROUND, settings=allowing), judges=judges)) == []


def test_credentials_in_the_address_are_refused() -> None:
    outcome = found(judges={"j": JUDGE | {"url": "https://user:key@judge.example/v1"}})
    assert codes(outcome) == [("/judges/j/url", "credentials_in_url", "error")]
    assert "key@" not in outcome.findings[0].message


def test_a_key_over_plain_http_is_a_warning() -> None:
    judge = JUDGE | {"url": "http://judge.example/v1", "secret": "judge-key"}
    assert codes(found(judges={"j": judge})) == [("/judges/j/url", "plain_http", "warning")]


@pytest.mark.parametrize("url", ["http://:80/v1", "https://a:99999999/v1", "https://a:b/v1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    outcome = found(judges={"j": JUDGE | {"url": url}})
    assert codes(outcome) == [("/judges/j/url", "bad_url", "error")]


@pytest.mark.parametrize("judge", [{}, {"url": JUDGE["url"]}, {"model": "gpt"}])
def test_a_judge_needs_url_and_model(judge: dict[str, Any]) -> None:
    assert codes(found(judges={"j": judge})) == [("/judges/j", "judge_incomplete", "error")]
