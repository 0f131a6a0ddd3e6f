"""The environment process strikes its secrets before it cuts lines and details, so that none is halved."""

import os
from collections.abc import Iterator

import pytest

from venusrl.env._runner import hidden
from venusrl.env._runner.faults import DETAIL_CHARS_MAX, RunnerFault
from venusrl.env._runner.logs import LINE_CHARS_MAX, LogStream
from venusrl.env.redaction import STRUCK

SECRET = "canary-0a1b2c3d4e5f-end"


@pytest.fixture(autouse=True)
def _given() -> Iterator[None]:
    hidden.take({"TOKEN": SECRET})
    yield
    del os.environ["TOKEN"]
    hidden.take({})


def texts(log: LogStream) -> list[str]:
    """Lines that wait for the parent."""
    return [str(frame["text"]) for frame in log.take()]


def test_user_code_finds_the_variable() -> None:
    assert os.environ["TOKEN"] == SECRET


@pytest.mark.parametrize("before", range(LINE_CHARS_MAX - len(SECRET), LINE_CHARS_MAX + 1))
def test_a_secret_at_the_cut_of_a_long_line_is_struck_whole(before: int) -> None:
    log = LogStream(lambda: None)
    log.write("x" * before)
    for character in SECRET:
        log.write(character)
    log.write("y" * LINE_CHARS_MAX + "\n")
    whole = "".join(texts(log))
    assert STRUCK in whole
    assert "canary" not in whole
    assert "5f-end" not in whole


def test_an_endless_line_goes_out_in_parts_without_the_secret() -> None:
    log = LogStream(lambda: None)
    for _ in range(50):
        log.write("z" * 1000 + SECRET)
    log.end_lines("")
    whole = "".join(texts(log))
    assert whole.count(STRUCK) == 50
    assert whole.count("z") == 50_000


def test_a_secret_at_the_cut_of_a_detail_is_struck_whole() -> None:
    detail = RunnerFault("raised", "x" * (DETAIL_CHARS_MAX - 8) + SECRET).detail
    assert "canary" not in detail
    assert len(detail) == DETAIL_CHARS_MAX
