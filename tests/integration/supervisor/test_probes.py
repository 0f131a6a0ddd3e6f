"""The doctor tries what the platform does: a sandbox that does not start is found before any job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.settings import Settings
from supervisor import probes, services
from supervisor.probes import BWRAP_VARIABLE, NoSandboxError
from tests.support.requirements import requires


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bubblewrap that starts a plain command and no sandbox, as one without its library does."""
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\necho 'libcap.so: cannot open shared object file' >&2\nexit 127\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv(BWRAP_VARIABLE, str(program))
    for cached in (probes.working_bwrap, probes.bwrap_failure):
        cached.cache_clear()
    yield program
    for cached in (probes.working_bwrap, probes.bwrap_failure):
        cached.cache_clear()


def test_the_doctor_says_why_no_sandbox_starts(broken: Path) -> None:
    finding = probes.probe_bwrap()
    assert not finding.is_ok
    assert str(broken) in finding.detail
    assert "cannot open shared object file" in finding.detail
    assert finding.remedy


def test_a_platform_without_sandboxes_does_not_start(broken: Path) -> None:
    settings = Settings.from_env()
    with pytest.raises(NoSandboxError, match="cannot open shared object file"):
        services.make_plan(settings)


@requires("bwrap")
def test_a_sandbox_that_starts_is_found() -> None:
    assert probes.probe_bwrap().is_ok
