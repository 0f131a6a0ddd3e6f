"""Secrets never reach a log line, wherever they hide."""

import json
import subprocess
import sys
from pathlib import Path

from infra.logging import STRUCK, redact, redact_text, striking

ROOT = Path(__file__).parents[3]


def test_a_key_keeps_only_its_first_characters() -> None:
    assert redact_text("got vrl_abcdEFGH1234_x") == f"got vrl_abcd{STRUCK}"
    assert redact_text("got whsec_abcdEF/+12==.") == f"got whsec_abcd{STRUCK}."


def test_a_password_in_a_url_is_struck_and_its_user_stays() -> None:
    assert redact_text("postgresql://me:pw@db/x") == f"postgresql://me:{STRUCK}@db/x"


def test_nested_secrets_are_struck() -> None:
    record = redact(None, "info", {"request": {"headers": [{"Authorization": "Bearer x"}]}})
    assert record == {"request": {"headers": [{"Authorization": STRUCK}]}}


def test_lines_of_our_loggers_and_of_the_standard_library_are_json() -> None:
    code = """
import logging
from infra.logging import configure, get_logger
configure("api")
get_logger().bind(job_id="job_1").info("job.queued", api_key="k")
logging.getLogger("lib").warning("key vrl_abcd1234")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours, theirs = [json.loads(line) for line in done.stderr.splitlines()]
    assert (ours["event"], ours["job_id"], ours["api_key"]) == ("job.queued", "job_1", STRUCK)
    assert (theirs["process"], theirs["event"]) == ("api", f"key vrl_abcd{STRUCK}")


def test_values_that_the_process_holds_are_struck_wherever_they_stand() -> None:
    def strike(text: str) -> str:
        return text.replace("canary-value", STRUCK)

    record = {"cause": ValueError("canary-value"), "n": 1, "deep": [{"a": "x canary-value"}]}
    with striking(strike):
        assert redact(None, "info", dict(record)) == {
            "cause": STRUCK,
            "n": 1,
            "deep": [{"a": f"x {STRUCK}"}],
        }
    assert redact_text("canary-value") == "canary-value"
