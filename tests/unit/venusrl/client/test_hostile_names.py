"""Whatever a caller gives as an id or name: no verb asks for another address, or crashes."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.unit.venusrl.client.playing import Script, problem
from venusrl import Client
from venusrl.client import NotFound, UsageError

HOSTILE = ("", " ", ".", "..", "../jobs", "a/b", "a\nb", "a\x00b", "x" * 501)
"""Refused before anything is sent."""

STRANGE = ("job?state=x", "a#b", "a%2fb", "ü", "job_1 ", "a;b")
"""Sent as one part of the address."""

IN_ADDRESS = frozenset(
    {"job_id", "checkpoint_id", "group_id", "rollout_id", "key_id", "operation_id"}
)
"""Parameters that are ids in an address wherever they occur."""

BY_NAME = frozenset(
    {
        *(("environments", verb) for verb in ("get", "versions", "version")),
        *(("datasets", verb) for verb in ("get", "versions", "version", "preview", "delete")),
        *(("models", verb) for verb in ("get", "delete")),
    }
)
"""Verbs whose `name` stands in the address."""

FILLERS: dict[str, Any] = {"job_id": "job_1", "rollout_id": "ro_1", "branch_id": "op_1", "turn": 1,
                           "index": 0, "number": 1, "prompt": "p", "states": ("paused",),
                           "file": "/dev/null", "folder": "/tmp", "timeout_s": 1.0}  # fmt: skip

BODIES = frozenset({("keys", "create"), ("models", "from_checkpoint")})
"""Ids there are part of a body."""


def verbs() -> Iterator[tuple[str, str, str]]:
    """Noun, verb and the parameter that names the object."""
    with Client("http://api", "k") as client:
        methods = [
            (noun, verb, getattr(it, verb))
            for noun, it in vars(client).items()
            for verb in dir(it)
            if not noun.startswith("_") and not verb.startswith("_")
        ]
    for noun, verb, method in methods:
        if not callable(method) or (noun, verb) in BODIES:
            continue
        for name in inspect.signature(method).parameters:
            if name in IN_ADDRESS or (name == "name" and (noun, verb) in BY_NAME):
                yield noun, verb, name


VERBS = list(verbs())


def called(client: Client, noun: str, verb: str, name: str, value: str) -> Any:
    """Call the verb with this value and nothing else that matters."""
    method: Callable[..., Any] = getattr(getattr(client, noun), verb)
    given: dict[str, Any] = {}
    for one in inspect.signature(method).parameters.values():
        if one.name == name:
            given[one.name] = value
        elif one.default is one.empty and one.kind is not one.VAR_KEYWORD:
            given[one.name] = FILLERS[one.name]
    positional = [
        given.pop(one.name)
        for one in inspect.signature(method).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.name in given
    ]
    found = method(*positional, **given)
    return list(found) if isinstance(found, Iterator) else found


def test_there_are_verbs_to_try() -> None:
    assert len(VERBS) > 35
    assert ("rollouts", "spans", "rollout_id") in VERBS


@pytest.mark.parametrize(("noun", "verb", "name"), VERBS, ids=[f"{n}.{v}" for n, v, _ in VERBS])
def test_a_name_that_would_be_another_address_is_refused_unsent(
    noun: str, verb: str, name: str
) -> None:
    script = Script([problem(404, "not_found")])
    with script.client() as client:
        for value in HOSTILE:
            if noun == "models" and value == "a/b":
                continue  # References of hub revisions hold slashes.
            with pytest.raises(UsageError):
                called(client, noun, verb, name, value)
    assert script.requests == []


@pytest.mark.parametrize(("noun", "verb", "name"), VERBS, ids=[f"{n}.{v}" for n, v, _ in VERBS])
def test_a_strange_name_stays_one_part_of_the_address(noun: str, verb: str, name: str) -> None:
    plain, script = Script([problem(404, "not_found")]), Script([problem(404, "not_found")])
    with plain.client() as client, pytest.raises(NotFound):
        called(client, noun, verb, name, "plain")
    with script.client() as client:
        for value in STRANGE:
            with pytest.raises(NotFound):
                called(client, noun, verb, name, value)
    (expected,) = plain.requests
    for request in script.requests:
        assert request.method == expected.method
        assert request.url.raw_path.count(b"/") == expected.url.raw_path.count(b"/")
        assert request.url.query == expected.url.query


@pytest.mark.parametrize("key", ["vrl_ü", "vrl_a\nb", "vrl_\x00"])
def test_a_key_that_no_header_holds_is_refused_unsent(key: str) -> None:
    with pytest.raises(UsageError, match="key"):
        Client("http://api", key)


def test_white_space_around_a_key_is_no_part_of_it() -> None:
    seen: list[str] = []

    def play(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return problem(404, "not_found")

    transport = httpx.MockTransport(play)
    with Client("http://api", " vrl_k\n", transport=transport) as client, pytest.raises(NotFound):
        client.jobs.get("job_1")
    assert seen == ["Bearer vrl_k"]


@pytest.mark.parametrize(
    "address",
    [
        "http://[",
        "http://a b\x00",
        "http://api:port",
        "http://a b",
        "api.example",
        "ftp://api",
        "http://",
    ],
)
def test_an_address_that_is_none_is_refused_before_any_request(address: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Client(address, "vrl_k", transport=httpx.MockTransport(lambda request: problem(404, "x")))
