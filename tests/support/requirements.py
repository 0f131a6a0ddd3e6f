"""Skips that are declared, probed once, listed at the end, and turned into failures on demand.

A test says `@requires("bwrap")`. Where the machine cannot, it is skipped with the remedy; where
`VENUS_REQUIRE` names the capability (comma-separated, or `all`), it fails instead, so that a
machine that is known to be able never skips silently.
"""

import os
from functools import cache

import pytest

from supervisor.probes import CAPABILITIES, Finding

REQUIRE_VARIABLE = "VENUS_REQUIRE"


def requires(*capabilities: str) -> pytest.MarkDecorator:
    """Mark a test (or a module's `pytestmark`) as needing these capabilities of the machine."""
    unknown = set(capabilities) - CAPABILITIES.keys()
    assert not unknown, f"no probe for {sorted(unknown)}"
    return pytest.mark.requires(*capabilities)


@cache
def probe(capability: str) -> Finding:
    """The machine's answer, asked once per test process."""
    return CAPABILITIES[capability]()


def demanded() -> frozenset[str]:
    """Capabilities that must be there, from the environment."""
    named = {part.strip() for part in os.environ.get(REQUIRE_VARIABLE, "").split(",")} - {""}
    return frozenset(CAPABILITIES) if "all" in named else frozenset(named)


def enforce(capability: str) -> None:
    """Skip or fail the running test when the machine lacks the capability."""
    finding = probe(capability)
    if finding.is_ok:
        return
    text = f"requires {capability}: {finding.detail}"
    if capability in demanded():
        pytest.fail(f"{text} (demanded by {REQUIRE_VARIABLE}). {finding.remedy}", pytrace=False)
    pytest.skip(text)
