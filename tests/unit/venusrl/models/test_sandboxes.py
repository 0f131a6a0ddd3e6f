"""Bodies of sandboxes: what they refuse, and that client and server mean the same limits."""

from typing import get_args

import pytest
from pydantic import ValidationError

from domain import tenant_sandboxes as served
from venusrl.env.sandbox import OUTPUT_BYTES_MAX
from venusrl.models import sandboxes as wire
from venusrl.models.sandboxes import SandboxCreate, SandboxExec


def test_client_and_server_mean_the_same_limits() -> None:
    assert wire.MEMBERS_MAX == served.MEMBERS_MAX
    assert wire.LIFETIME_S_MAX == served.LIFETIME_S_MAX
    assert wire.EXEC_S_MAX == served.EXEC_S_MAX == served.TENANT_LIMITS.exec_timeout_s
    assert wire.OUTPUT_BYTES_MAX == served.TENANT_LIMITS.output_bytes_max == OUTPUT_BYTES_MAX
    assert SandboxCreate().lifetime_s == served.LIFETIME_S
    assert SandboxCreate().template == served.TEMPLATE


def test_client_and_server_know_the_same_states_and_causes() -> None:
    assert set(get_args(wire.SandboxState)) == set(served.SandboxState)
    assert set(get_args(wire.SandboxCause)) == set(served.SandboxEnd)


@pytest.mark.parametrize(
    "env",
    [
        {"": "x"},
        {"1A": "x"},
        {"A=B": "x"},
        {"A\n": "x"},
        {"A": "nul\x00"},
        {"A": "x" * 40_000},
        {f"A{number}": "" for number in range(65)},
    ],
    ids=["empty", "digit", "equals", "newline", "nul", "long", "many"],
)
def test_a_variable_that_no_program_can_have_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        SandboxCreate(env=env)


@pytest.mark.parametrize(
    "command",
    ["", [], [""], ["a\x00"], ["A=1", "ls"], "x" * 100_001, ["ls"] * 1025],
    ids=["empty", "none", "nameless", "nul", "variable", "long", "many"],
)
def test_a_command_that_cannot_be_run_is_refused(command: str | list[str]) -> None:
    with pytest.raises(ValidationError):
        SandboxExec(command=command)


def test_a_text_and_a_list_are_commands() -> None:
    assert SandboxExec(command="a=1; echo $a").command == "a=1; echo $a"
    assert SandboxExec(command=["ls", "a=b"]).command == ["ls", "a=b"]
