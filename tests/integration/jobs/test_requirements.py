"""A job whose environment pins a library, on a running platform."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.environments.helpers import write_package
from tests.integration.jobs.test_jobs import ENDS_WITHIN_S, submitted
from tests.support import requires
from tests.support.stack import Stack, StackPlan, running_stack
from tests.support.wheels import write_wheel

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

SOURCE = """
import tinydep

class Env(Environment):
    @classmethod
    def load(cls, split, config):
        for number in range(8):
            yield Task(f"{split}-{number}", (Message("user", f"{tinydep.BASE + number}+1"),), "x")

    @reward()
    async def score(self, rollout):
        return tinydep.score(rollout.answer_text)
"""

LIBRARY = "BASE = 10\ndef score(text): return float(len(text) % 2)\n"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A platform that takes wheels from a folder."""
    write_wheel(tmp_path / "wheels", "tinydep", files={"tinydep.py": LIBRARY})
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    plan = StackPlan(environ={"VENUS_PACKAGE_FOLDER": str(tmp_path / "wheels")})
    with running_stack(plan) as stack:
        yield stack


def test_a_job_is_graded_by_a_library_that_its_environment_pins(
    stack: Stack, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    write_package(package, SOURCE, "sandbox = false\n")
    (package / "requirements.txt").write_text("tinydep==1.0\n")
    version = stack.client.environments.push(package)
    assert version.dependencies is not None
    job = submitted(stack, "test")
    stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    scored = "select distinct verdict, reward in (0, 1) from rollout r where job_id = %s"
    assert stack.query(scored, job.id) == [("scored", True)]
