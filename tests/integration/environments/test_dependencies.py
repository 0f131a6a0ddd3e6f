"""Requirements are built from wheels alone, and come last where an environment looks for modules."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from environments.checks import check_package
from environments.dependencies import pack_dependencies, unpack_dependencies
from environments.package import content_hash
from stores.blobs import Blobs
from tests.integration.environments.helpers import opened, write_package
from tests.support.requirements import requires
from tests.support.sandbox_port import RecordingSandboxes
from tests.support.wheels import sha256_of, write_wheel
from venusrl.env.host.dependencies import BuildLimits, Built, PackageSource, build, modules
from venusrl.env.host.manifest import Finding, PackageInvalid, read_manifest
from venusrl.env.host.process import start_environment
from venusrl.env.host.requirements import parse_requirements
from venusrl.env.messages import Message
from workers.dependencies import Dependencies

GRADED = """
import tinydep

class Env(Environment):
    async def reply(self, turn):
        return [Message("user", f"{tinydep.VERSION} {tinydep.__file__}")]

    @reward()
    async def score(self, rollout):
        return float(rollout.answer_text)
"""

GO = Message("assistant", "go")


async def built(tmp_path: Path, pins: str, limits: BuildLimits | None = None) -> Built:
    """Build pins against the wheels of this test."""
    source = PackageSource(tmp_path / "wheels")
    return await build(parse_requirements(pins), tmp_path / "built", source, limits)


async def refused(tmp_path: Path, pins: str, limits: BuildLimits | None = None) -> Finding:
    """The only finding of a build that must fail; nothing is left of it."""
    with pytest.raises(PackageInvalid) as error:
        await built(tmp_path, pins, limits)
    assert not (tmp_path / "built").exists()
    assert not list(tmp_path.glob(".build-*"))
    (one,) = error.value.findings
    assert str(tmp_path / ".build") not in one.message
    return one


async def test_pinned_wheels_are_built_and_nobody_may_write_them(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tinydep", "1.2")
    write_wheel(tmp_path / "wheels", "tinydep", "9.0")
    made = await built(tmp_path, "tinydep==1.2\n")
    assert made.packages == {"tinydep": "1.2"}
    assert made.bytes > 0
    folder = tmp_path / "built"
    assert modules(folder) == {"tinydep"}
    module = folder / "tinydep.py"
    assert module.read_text() == "VERSION = '1.2'\n"
    assert not module.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    assert module.stat().st_mode & stat.S_IROTH


async def test_a_version_that_is_not_there_is_found_at_its_line(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tinydep", "1.2")
    one = await refused(tmp_path, "# pins\ntinydep==7\n")
    assert (one.pointer, one.code) == ("/2", "requirement_not_found")
    assert "No matching distribution" in one.message
    assert "Looking in" not in one.message


async def test_a_package_without_a_wheel_is_never_built_from_source(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "tinydep-1.2.tar.gz").write_bytes(b"setup.py would run here")
    assert (await refused(tmp_path, "tinydep==1.2\n")).code == "requirement_not_found"


async def test_what_a_wheel_needs_must_be_pinned_too(tmp_path: Path) -> None:
    needs = ["other>=2", 'never==1; python_version < "3"', 'extra==1; extra == "more"']
    write_wheel(tmp_path / "wheels", "tinydep", requires=needs)
    write_wheel(tmp_path / "wheels", "other", "1.0")
    write_wheel(tmp_path / "wheels", "other", "2.5")
    one = await refused(tmp_path, "tinydep==1.0\n")
    assert (one.pointer, one.code) == ("/1", "requirement_missing")
    assert "other>=2" in one.message
    one = await refused(tmp_path, "other==1.0\ntinydep==1.0\n")
    assert (one.pointer, one.code) == ("/2", "requirement_conflict")
    assert (await built(tmp_path, "other==2.5\ntinydep==1.0\n")).packages["other"] == "2.5"


async def test_another_content_than_the_pinned_hash_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "wheels", "tinydep")
    one = await refused(tmp_path, f"tinydep==1.0 --hash=sha256:{'0' * 64}\n")
    assert (one.pointer, one.code) == ("/1", "hash_mismatch")
    assert await built(tmp_path, f"tinydep==1.0 --hash={sha256_of(wheel)}\n")


async def test_a_build_ends_at_its_limits(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tinydep", files={"tinydep.py": "x" * 300_000})
    one = await refused(tmp_path, "tinydep==1.0\n", BuildLimits(bytes=100_000))
    assert one.code == "build_too_large"
    one = await refused(tmp_path, "tinydep==1.0\n", BuildLimits(files=1))
    assert one.code == "build_too_large"
    one = await refused(tmp_path, "tinydep==1.0\n", BuildLimits(seconds=0.01))
    assert one.code == "build_timeout"


@pytest.mark.parametrize("name", ["venusrl", "environments"])
async def test_a_wheel_with_a_module_of_the_platform_is_refused(tmp_path: Path, name: str) -> None:
    write_wheel(tmp_path / "wheels", "tinydep", files={f"{name}/__init__.py": "raise SystemExit"})
    one = await refused(tmp_path, "tinydep==1.0\n")
    assert one.code == "requirement_shadows"
    assert name in one.message


async def test_an_archive_brings_the_same_tree_elsewhere(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tinydep")
    await built(tmp_path, "tinydep==1.0\n")
    pack_dependencies(tmp_path / "built", tmp_path / "archive")
    for _ in range(2):
        unpack_dependencies(tmp_path / "archive", tmp_path / "elsewhere")
    assert content_hash(tmp_path / "elsewhere") == content_hash(tmp_path / "built")


async def answered(package: Path, dependencies: Path) -> str:
    """What the package's environment says in its first reply."""
    manifest = read_manifest(package)
    environment = await start_environment(package, manifest, {}, dependencies=dependencies)
    try:
        seen = await environment.reply(await opened(environment), 0, GO)
        assert seen.messages is not None
        return seen.messages[0].content
    finally:
        await environment.stop()


@requires("bwrap")
async def test_an_environment_imports_what_it_pins(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tinydep", "1.2")
    await built(tmp_path, "tinydep==1.2\n")
    package = tmp_path / "package"
    package.mkdir()
    write_package(package, GRADED, "sandbox = false\n")
    (package / "requirements.txt").write_text("tinydep==1.2\n")
    report = await check_package(package, {}, RecordingSandboxes(), tmp_path / "built")
    assert report.passed, report.findings
    assert not any("imports tinydep" in one.message for one in report.findings)
    said = await answered(package, tmp_path / "built")
    assert said == "1.2 /venus/dependencies/tinydep.py"


@requires("bwrap")
async def test_nothing_built_hides_the_standard_library_the_kit_or_the_package(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "built"
    for name in ("json", "venusrl", "environments", "mine", "sitecustomize"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('hidden')\n")
    (folder / "evil.pth").write_text("import sys; sys.exit('a pth ran')\n")
    package = tmp_path / "package"
    package.mkdir()
    source = """
import json, mine
import venusrl.env.tools, venusrl.env.values

class Env(Environment):
    async def reply(self, turn):
        try:
            open("/venus/dependencies/json/__init__.py", "w")
        except OSError as error:
            return [Message("user", f"{mine.X} {type(error).__name__}")]
"""
    write_package(package, source)
    (package / "mine.py").write_text("X = 'mine'\n")
    said = await answered(package, folder)
    assert said.startswith("mine ")
    assert said != "mine FileNotFoundError"


async def test_pip_sees_nothing_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_TARGET", "/tmp/elsewhere")
    configured = PackageSource()
    assert "PIP_INDEX_URL" in configured.variables()
    assert not {"DATABASE_URL", "PIP_TARGET"} & configured.variables().keys()
    for named in (PackageSource(index="http://127.0.0.1:9"), PackageSource(Path("/wheels"))):
        assert named.variables()["PIP_CONFIG_FILE"] == os.devnull
        assert "PIP_INDEX_URL" not in named.variables()


async def test_an_index_that_is_away_is_said_and_its_address_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_TIMEOUT", "1")
    pins = parse_requirements("tinydep==1.0\n")
    with pytest.raises(PackageInvalid) as error:
        await build(pins, tmp_path / "built", PackageSource())
    (one,) = error.value.findings
    assert one.code == "index_unreachable"
    assert "secret" not in one.message
    assert "127.0.0.1" not in one.message


async def test_of_two_builds_at_once_everybody_uses_the_first(tmp_path: Path) -> None:
    pins = parse_requirements("tinydep==1.0\n")
    sources = []
    for name in ("one", "other"):
        write_wheel(tmp_path / name, "tinydep", files={"tinydep.py": f"FROM = {name!r}\n"})
        sources.append(PackageSource(tmp_path / name))
    blobs = Blobs((tmp_path / "objects").as_uri())
    made = await asyncio.gather(
        *(Dependencies(blobs, tmp_path / "home").ensure(pins, source) for source in sources)
    )
    assert made[0] == made[1]
    (tmp_path / "requirements.txt").write_text("tinydep==1.0\n")
    seen = set()
    for node in ("node-1", "node-2"):
        folder = await Dependencies(blobs, tmp_path / node).folder(tmp_path)
        assert folder is not None
        seen.add((folder / "tinydep.py").read_text())
    assert len(seen) == 1
