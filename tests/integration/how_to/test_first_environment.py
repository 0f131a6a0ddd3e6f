"""`docs/how-to/first-environment.md` as a newcomer follows it."""

import re
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.support.chat_server import Completion, chat_server, completion
from tests.support.how_to import ROOT, Command, Reader, WriteFile, steps_of
from tests.support.installation import running_installation
from tests.support.requirements import requires
from venusrl.client import Client

DOCUMENT: Final = ROOT / "docs" / "how-to" / "first-environment.md"

RISE_MIN: Final = 0.3
FLAT_MAX: Final = 0.15
"""25 held-out tasks: two of them more or less are 0.08."""


def sometimes_right(body: Mapping[str, Any], number: int) -> Completion:
    """A model that gets about three questions in ten right."""
    paid, price = re.findall(r"\d+", body["messages"][0]["content"])
    right = int(paid) - int(price)
    return completion(str(right if Random(number).random() < 0.3 else right + 1))


def follow_the_quick_part(reader: Reader) -> None:
    quick, _ = steps_of(DOCUMENT)
    with chat_server(sometimes_right) as model:
        for step in quick:
            if isinstance(step, WriteFile):
                reader.write(step)
            else:
                reader.run(step, {"OPENAI_BASE_URL": model.url})


def test_the_environment_is_twenty_lines_and_its_commands_do_what_they_say(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    reader = Reader(tmp_path, {})
    follow_the_quick_part(reader)
    assert len((tmp_path / "change" / "env.py").read_text().splitlines()) <= 20
    tested = reader.said["venus env test change"].splitlines()[-1]
    assert tested.startswith("passed: 2 cases")
    evaluated = reader.said["venus env eval change --model my-model -k 8"]
    assert "pass@8" in evaluated


def scores(client: Client, name: str) -> list[float]:
    """Held-out scores of the newest job of this name, by step."""
    job = next(one for one in client.jobs.list() if one.name == name)
    assert job.state == "succeeded", job
    found = sorted(client.jobs.evaluations(job.id), key=lambda one: one.step)
    return [one.score for one in found if one.score is not None]


def named(line: str, client: Client) -> str:
    """A command with the ids that the reader's own job printed."""
    job = next((one for one in client.jobs.list() if one.name == "change"), None)
    if job is None:
        return line
    newest = max(client.checkpoints.list(job.id), key=lambda one: one.step, default=None)
    line = line.replace("job_...", job.id)
    return line if newest is None else line.replace("ckpt_...", newest.id)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@requires("bwrap", "postgres", "torch")
def test_the_held_out_score_rises_and_the_shuffled_twin_stays_flat(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    # A platform as a reader has it: with patient leases, for two trainings on busy cores.
    with running_installation() as platform:
        with Client(platform.api, platform.admin_key) as admin:
            project = admin.projects.create("reader", admin.organizations.create("r").id)
            key = admin.keys.create("reader", project.id).secret
        reader = Reader(tmp_path, {"VENUS_API_URL": platform.api, "VENUS_API_KEY": key})
        with Client(platform.api, key) as client:
            follow_the_quick_part(reader)
            for step in steps_of(DOCUMENT)[1]:
                if isinstance(step, WriteFile):
                    reader.write(step)
                else:
                    reader.run(Command(named(step.line, client), step.expected))
            trained, twin = scores(client, "change"), scores(client, "change-twin")
    assert trained[-1] - trained[0] >= RISE_MIN, trained
    assert abs(twin[-1] - twin[0]) <= FLAT_MAX, twin
