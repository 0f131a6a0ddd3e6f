"""Each named mistake is found by the test that is named for it, and only the mistake makes it fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.registry import CALLS_VARIABLE, MUTANTS, NAME_VARIABLE, Mutant, source_of

ROOT = Path(__file__).resolve().parents[2]


def outcomes(tests: list[str], environ: dict[str, str]) -> dict[str, int]:
    """Run tests in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants.run", *tests],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert counts["errors"] == 0, done.stdout
    return counts


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code(mutant: Mutant) -> None:
    """Among the quick tests, unlike the killing: code that moved on takes its mutant along."""
    compile(source_of(mutant), mutant.name, "exec")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_called_and_killed(mutant: Mutant, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    environ = {NAME_VARIABLE: mutant.name, CALLS_VARIABLE: str(calls)}
    assert outcomes([*mutant.tests], environ)["failed"] >= 1, "it lives"
    assert sum(int(line) for line in calls.read_text().splitlines()) > 0, "it was never called"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_mutant_all_of_these_tests_pass() -> None:
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    counts = outcomes(tests, {NAME_VARIABLE: "", CALLS_VARIABLE: ""})
    assert counts["failed"] == 0
    assert counts["passed"] >= len(tests)


def test_names_of_mutants_are_the_twelve_that_were_asked_for() -> None:
    asked = {
        "no term fence", "no hop fence", "no epoch check", "prefix charged once a member",
        "promotion off by one", "eviction of a high page in its own tick", "gang in halves",
        "staleness by newest token", "double assignment", "unpaced start", "starvation",
        "unstable tie",
    }  # fmt: skip
    assert len(asked) == 12
    assert asked <= {mutant.name for mutant in MUTANTS}
