"""Runs named tests in this process, under the mutant that the environment names; prints what came out."""

import json
import sys

import pytest

from tests.mutants.registry import apply_from_environment


class Outcomes:
    """Counts tests by outcome; what breaks outside of a test's own call is an error."""

    def __init__(self) -> None:
        self.counts = {"passed": 0, "failed": 0, "errors": 0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        if report.when == "call":
            self.counts["passed"] += report.passed
            self.counts["failed"] += report.failed
        else:
            self.counts["errors"] += report.failed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count what cannot be collected."""
        self.counts["errors"] += report.failed


def main(tests: list[str]) -> None:
    """Run the tests, print one line of JSON."""
    apply_from_environment()
    outcomes = Outcomes()
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    pytest.main(arguments, plugins=[outcomes])
    sys.stdout.write("\n" + json.dumps(outcomes.counts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
