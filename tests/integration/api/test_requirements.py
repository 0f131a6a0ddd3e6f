"""From an upload with requirements to a ready version, a task list, and what a node plays."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.errors import PayloadUnreadable
from infra.names import PREPARE_JOB, TEST_ENVIRONMENT, VALIDATE_ENVIRONMENT
from stores import tables as t
from stores.blobs import Blobs
from tests.integration.api.chores import do_chores
from tests.integration.api.world import SPEC, Tenant, World
from tests.integration.environments.helpers import write_package
from tests.support.requirements import requires
from tests.support.wheels import write_wheel
from venusrl._archive import pack
from venusrl.models.environments import EnvironmentTestReport
from workers.dependencies import Dependencies
from workers.fleet.packages import PackageRef, Packages

pytestmark = requires("bwrap")

SOURCE = """
import tinydep

class Env(Environment):
    async def reply(self, turn):
        print("asked \\x00", turn.message.content)
        if turn.message.content == "break":
            raise RuntimeError("broken on purpose \\x00 \\ud800")
        return None

    @reward()
    async def score(self, rollout):
        if rollout.answer_text == "?":
            return None
        return float(rollout.answer_text == tinydep.VERSION)
"""

CASES = [
    {"name": "right", "task": "train-0", "turns": [{"content": "1.2"}], "expect": {"total": 1}},
    {"name": "wrong", "task": "train-1", "turns": [{"content": "no"}], "expect": {"total": 0}},
]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that scores by a library which it pins."""
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, SOURCE, "sandbox = false\n")
    (folder / "requirements.txt").write_text("# scores\ntinydep==1.2\n")
    write_cases(folder, *CASES)
    return folder


@pytest.fixture
def wheels(world: World, tmp_path: Path) -> Path:
    """The folder that this installation takes wheels from."""
    folder = tmp_path / "wheels"
    write_wheel(folder, "tinydep", "1.2")
    world.settings = replace(world.settings, package_folder=folder)
    return folder


def write_cases(folder: Path, *cases: dict[str, Any]) -> None:
    (folder / "cases").mkdir(exist_ok=True)
    text = "".join(json.dumps(one) + "\n" for one in cases)
    (folder / "cases" / "all.jsonl").write_text(text)


def uploaded(tenant: Tenant, folder: Path, *, state: str = "building") -> dict[str, Any]:
    """The version as the upload answered it."""
    with tenant.http() as http:
        answer = http.post("/v1/environments/test/versions", content=pack(folder))
    assert (answer.status_code, answer.json().get("state")) == (201, state), answer.text
    version: dict[str, Any] = answer.json()
    return version


def version(tenant: Tenant, number: int = 1) -> dict[str, Any]:
    """The version as it is now."""
    with tenant.http() as http:
        found: dict[str, Any] = http.get(f"/v1/environments/test/versions/{number}").json()
    return found


def test_requirements_are_built_once_and_played_by_chores_and_nodes(
    world: World, tenant: Tenant, package: Path, wheels: Path, tmp_path: Path
) -> None:
    uploaded(tenant, package)
    assert do_chores(world, VALIDATE_ENVIRONMENT) == 1
    ready = version(tenant)
    assert (ready["state"], ready["findings"]) == ("ready", [])
    assert ready["dependencies"]["packages"] == {"tinydep": "1.2"}

    shutil.rmtree(wheels)
    (package / "notes.txt").write_text("another content, the same pins")
    uploaded(tenant, package)
    do_chores(world, VALIDATE_ENVIRONMENT)
    assert version(tenant, 2)["dependencies"] == ready["dependencies"]

    job = {**SPEC, "environments": [{"ref": "test"}], "evaluation": None}
    with tenant.http() as http:
        made = http.post("/v1/jobs", json=job)
        assert made.status_code == 201, made.text
        do_chores(world, PREPARE_JOB)
        assert http.get(f"/v1/jobs/{made.json()['id']}").json()["state"] == "queued"

    row = next(one for one in world.rows(t.environment_version) if one.version == 2)
    packages = Packages(Blobs(world.settings.object_store_url), tmp_path / "node" / "packages")
    fetched = asyncio.run(packages.fetch(PackageRef(row.package_uri, row.package_sha)))
    assert fetched.dependencies is not None
    assert fetched.dependencies.parent == tmp_path / "node" / "dependencies"
    assert (fetched.dependencies / "tinydep.py").is_file()


def test_a_failed_build_says_why_and_a_validation_again_may_mend_it(
    world: World, tenant: Tenant, package: Path, wheels: Path
) -> None:
    (package / "requirements.txt").write_text("# scores\ntinydep==1.2\nlate==3\n")
    uploaded(tenant, package)
    do_chores(world, VALIDATE_ENVIRONMENT)
    failed = version(tenant)
    (finding,) = failed["findings"]
    assert (failed["state"], failed["dependencies"]) == ("failed", None)
    assert finding["pointer"] == "/requirements.txt/3"
    assert finding["code"] == "requirement_not_found"
    assert str(wheels) not in finding["message"]

    write_wheel(wheels, "late", "3")
    with tenant.http() as http:
        http.post("/v1/environments/test/versions/1/validate")
    assert version(tenant)["state"] == "building"
    do_chores(world, VALIDATE_ENVIRONMENT)
    mended = version(tenant)
    assert (mended["state"], mended["findings"]) == ("ready", [])
    assert mended["dependencies"]["packages"] == {"late": "3", "tinydep": "1.2"}


def test_lines_that_are_no_pins_fail_the_version_at_once(
    world: World, tenant: Tenant, package: Path
) -> None:
    (package / "requirements.txt").write_text("tinydep>=1\n-e .\n")
    uploaded(tenant, package, state="validating")
    do_chores(world, VALIDATE_ENVIRONMENT)
    found = {one["pointer"]: one["code"] for one in version(tenant)["findings"]}
    assert found == {
        "/requirements.txt/1": "requirement_not_pinned",
        "/requirements.txt/2": "requirement_not_pinned",
    }


def test_a_ready_version_that_fails_again_is_refused_to_new_jobs(
    world: World, tenant: Tenant, package: Path, wheels: Path
) -> None:
    uploaded(tenant, package)
    do_chores(world, VALIDATE_ENVIRONMENT)
    shutil.rmtree(world.settings.home / "objects" / "dependencies")
    shutil.rmtree(wheels)
    wheels.mkdir()
    with tenant.http() as http:
        http.post("/v1/environments/test/versions/1/validate")
        assert version(tenant)["state"] == "ready"
        do_chores(world, VALIDATE_ENVIRONMENT)
        assert version(tenant)["state"] == "failed"
        refused = http.post("/v1/jobs", json={**SPEC, "environments": [{"ref": "test@1"}]})
    assert refused.json()["errors"][0]["code"] == "version_not_ready"


def test_a_build_that_is_damaged_or_missing_is_a_typed_outcome(
    world: World, tenant: Tenant, package: Path, wheels: Path, tmp_path: Path
) -> None:
    uploaded(tenant, package)
    do_chores(world, VALIDATE_ENVIRONMENT)
    objects = world.settings.home / "objects" / "dependencies"
    (archive,) = objects.glob("*.tar.gz")
    archive.write_bytes(b"damaged")
    shutil.rmtree(world.settings.home / "dependencies")
    with tenant.http() as http:
        asked = http.post("/v1/environments/test/versions/1/test-runs", json={}).json()
        do_chores(world, TEST_ENVIRONMENT)
        ended = http.get(f"/v1/operations/{asked['id']}").json()
    assert (ended["state"], ended["error"]["code"]) == ("failed", "payload_unreadable")
    shutil.rmtree(objects)
    dependencies = Dependencies(Blobs(world.settings.object_store_url), tmp_path / "node")
    with pytest.raises(PayloadUnreadable, match="not built for this machine"):
        asyncio.run(dependencies.folder(package))


def report_of(world: World, tenant: Tenant, **body: Any) -> EnvironmentTestReport:
    """The report of a test run."""
    with tenant.http() as http:
        path = "/v1/environments/test/versions/1/test-runs"
        asked = http.post(path, json={"split": "train", **body})
        assert asked.status_code == 202, asked.text
        do_chores(world, TEST_ENVIRONMENT)
        ended = http.get(f"/v1/operations/{asked.json()['id']}").json()
    assert ended["state"] == "done", ended
    return EnvironmentTestReport.model_validate(ended["result"])


def test_a_test_run_tells_every_verdict(
    world: World, tenant: Tenant, package: Path, wheels: Path
) -> None:
    write_cases(
        package,
        *CASES,
        {"name": "odd", "task": "train-2", "turns": [{"content": "?"}],
         "expect": {"total": {"unscorable": "bad_type"}}},
        {"name": "other", "task": "train-0", "turns": [{"content": "no"}], "expect": {"total": 1}},
        {"name": "breaks", "task": "train-0", "turns": [{"content": "break"}]},
        {"name": "lost \x00 \ud800", "task": "nowhere", "turns": [{"content": "1"}]},
        {"name": "elsewhere", "split": "test", "task": "test-0", "turns": [{"content": "1.2"}]},
    )  # fmt: skip
    uploaded(tenant, package)
    report = report_of(world, tenant)
    assert [(one.name, one.verdict, one.reward) for one in report.cases] == [
        ("right", "passed", 1.0),
        ("wrong", "passed", 0.0),
        ("odd", "passed", None),
        ("other", "failed", 0.0),
        ("breaks", "error", None),
    ]
    assert report.cases[2].components == {"score": "bad_type"}
    assert report.cases[3].findings[0].pointer == "/cases/all.jsonl/4/expect/total"
    assert "broken on purpose" in report.cases[4].findings[0].message
    assert [one.pointer for one in report.findings] == ["/cases/all.jsonl/6/task"]
    assert (report.passed, report.played) == (False, 5)
    assert report.mean_reward == pytest.approx(1 / 3)
    assert "asked \N{REPLACEMENT CHARACTER} 1.2" in report.log
    assert version(tenant)["state"] == "building"

    first = report_of(world, tenant, tasks=2)
    assert (first.passed, first.played) == (True, 2)
    nothing = report_of(world, tenant, split="other")
    assert not nothing.passed


def test_a_split_without_cases_is_said(
    world: World, tenant: Tenant, package: Path, wheels: Path
) -> None:
    uploaded(tenant, package)
    report = report_of(world, tenant, split="test")
    assert (report.passed, report.played) == (False, 0)
    assert report.findings[0].code == "no_cases"


def test_code_that_does_not_start_is_a_report_not_a_crash(
    world: World, tenant: Tenant, package: Path, wheels: Path
) -> None:
    (package / "env.py").write_text("import no_such_module\n")
    uploaded(tenant, package)
    report = report_of(world, tenant)
    assert report.findings[0].code == "import_failed"
    assert "no_such_module" in report.findings[0].message
