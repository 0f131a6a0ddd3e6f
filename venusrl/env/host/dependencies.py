"""Builds a package's requirements into a folder: wheels only, in a process of its own, within limits.

What goes wrong is a finding of `requirements.txt` with a closed code and the end of pip's output. The
folder is only ever read: it comes last on the environment's path, after the standard library, the kit
and the package, and may not hold a module of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from venusrl.env.host import install
from venusrl.env.host.manifest import Finding, PackageInvalid
from venusrl.env.host.requirements import Requirements, requirement_finding

INDEX_VARIABLE: Final = "VENUS_PACKAGE_INDEX"
FOLDER_VARIABLE: Final = "VENUS_PACKAGE_FOLDER"
"""Settings of an installation, and of a machine on which `venus env` runs."""

BUILD_S: Final = 150.0
"""Half of what a whole validation may take; two hundred wheels from a near index fit into it."""

BUILD_BYTES_MAX: Final = 512 << 20
"""Of the folder, and of what is downloaded for it: it lies on every node that plays the package."""

BUILD_FILES_MAX: Final = 20_000
"""Each file costs an inode on every node."""

WATCH_S: Final = 0.25
"""Between two looks at the size; a wheel unpacks tens of megabytes meanwhile."""

TAIL_CHARS: Final = 2000
"""Of pip's output: the last lines hold the cause."""

RESERVED: Final = frozenset({"venusrl", "environments"})
"""Top-level modules of the platform's kit."""

PASSED_VARIABLES: Final = (
    "PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""All that pip sees of the environment, beside its own variables; no secret of the platform."""

PIP_VARIABLES: Final = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE",
    "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_TRUSTED_HOST", "PIP_TIMEOUT", "PIP_RETRIES",
)  # fmt: skip
"""Where packages come from; where they go is not pip's configuration to say."""

_NOT_FOUND: Final = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)==")
_BAD_HASH: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)==.* from ", re.MULTILINE)
_AWAY: Final = re.compile(r"connection broken|ConnectionError|Max retries|ReadTimeoutError")
_PLACE: Final = re.compile(r"^Looking in (links|indexes):.*$\n?", re.MULTILINE)
_ADDRESS: Final = re.compile(r"\b(?:https?|file)://\S+|\bhost='[^']*', port=\d+")


@dataclass(frozen=True, slots=True)
class PackageSource:
    """Where wheels come from: a folder (then nothing is downloaded), an index, or what pip says."""

    folder: Path | None = None
    index: str = ""

    @classmethod
    def of_machine(cls, environ: Mapping[str, str]) -> PackageSource:
        """What the variables say."""
        folder = environ.get(FOLDER_VARIABLE)
        return cls(Path(folder) if folder else None, environ.get(INDEX_VARIABLE, ""))

    def options(self) -> list[str]:
        """For pip's command line."""
        if self.folder is not None:
            return ["--isolated", "--no-index", "--find-links", str(self.folder)]
        return ["--isolated", "--index-url", self.index] if self.index else []

    def variables(self) -> dict[str, str]:
        """The environment of the process."""
        is_named = self.folder is not None or bool(self.index)
        names = PASSED_VARIABLES if is_named else (*PASSED_VARIABLES, *PIP_VARIABLES)
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {**kept, "PIP_CONFIG_FILE": os.devnull} if is_named else kept


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Bounds of one build."""

    seconds: float = BUILD_S
    bytes: int = BUILD_BYTES_MAX
    files: int = BUILD_FILES_MAX


@dataclass(frozen=True, slots=True)
class Built:
    """A folder of installed wheels."""

    packages: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0


async def build(
    requirements: Requirements,
    target: Path,
    source: PackageSource,
    limits: BuildLimits | None = None,
) -> Built:
    """Install the pins as the folder `target`, whole or not at all. Raises PackageInvalid."""
    bounds = limits or BuildLimits()
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".build-", dir=target.parent))
    try:
        said = await _install(requirements, staging, source, bounds)
        wheels = staging / "wheels"
        built = Built(said["packages"], _size(wheels, bounds))
        if findings := [*_unmet(requirements, said["unmet"]), *_shadows(wheels)]:
            raise PackageInvalid(tuple(findings))
        _make_read_only(wheels)
        _move(wheels, target)
        return built
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def modules(folder: Path) -> frozenset[str]:
    """Top-level names that can be imported from a built folder."""
    found = set()
    for path in folder.iterdir():
        if path.is_dir() and not path.name.endswith((".dist-info", ".data")):
            found.add(path.name)
        elif path.suffix in (".py", ".so"):
            found.add(path.name.partition(".")[0])
    return frozenset(found)


async def _install(
    requirements: Requirements, staging: Path, source: PackageSource, limits: BuildLimits
) -> Any:
    listed, output, wheels = staging / "pins.txt", staging / "output", staging / "wheels"
    listed.write_text(requirements.text)
    wheels.mkdir()
    (staging / "tmp").mkdir()
    with output.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(install.__file__)),
            *(str(limits.bytes), str(listed), str(wheels), *source.options()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            env={**source.variables(), "TMPDIR": str(staging / "tmp")},
            start_new_session=True,
        )
        try:
            await _watch(process, staging, limits)
        finally:
            await _end(process)
    text = output.read_text(errors="replace")
    if process.returncode == 0:
        return json.loads(text.rstrip().rpartition("\n")[2])
    raise PackageInvalid((_failure(requirements, process.returncode, text, staging),))


async def _watch(process: asyncio.subprocess.Process, staging: Path, limits: BuildLimits) -> None:
    """Wait for the end within the limits. Raises PackageInvalid."""
    try:
        async with asyncio.timeout(limits.seconds):
            while process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), WATCH_S)
                await asyncio.to_thread(_size, staging, limits)
    except TimeoutError:
        message = f"was not built within {limits.seconds:g} s"
        finding = requirement_finding(0, "build_timeout", message, "pin fewer or smaller packages")
        raise PackageInvalid((finding,)) from None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _size(folder: Path, limits: BuildLimits) -> int:
    """Bytes below a folder. Raises PackageInvalid beyond the limits."""
    total = files = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(base, name).lstat().st_size
                files += 1
    if total > limits.bytes or files > limits.files:
        message = f"exceeds {limits.bytes} bytes or {limits.files} files when installed"
        hint = "pin smaller packages"
        raise PackageInvalid((requirement_finding(0, "build_too_large", message, hint),))
    return total


def _failure(requirements: Requirements, status: int | None, output: str, staging: Path) -> Finding:
    if status == install.EXIT_NO_PIP:
        hint = "install pip into the environment that runs venus"
        return requirement_finding(0, "pip_missing", "there is no pip to build with", hint)
    tail = _tail(output, staging)
    if "DO NOT MATCH THE HASHES" in output:
        named = _BAD_HASH.search(output)
        line = (requirements.line_of(named[1]) if named else None) or 0
        message = f"a wheel has another hash than the pinned one: {tail}"
        return requirement_finding(line, "hash_mismatch", message, "pin the hashes of this version")
    if _AWAY.search(output):
        message = f"the package index did not answer: {tail}"
        return requirement_finding(0, "index_unreachable", message, "validate the version again")
    if named := _NOT_FOUND.search(output):
        message = f"no wheel of {named[1]} in this version fits: {tail}"
        hint = "pin a version that has a wheel for this platform; nothing is built from source"
        line = requirements.line_of(named[1]) or 0
        return requirement_finding(line, "requirement_not_found", message, hint)
    if "File too large" in output:
        return requirement_finding(0, "build_too_large", f"a file is too large: {tail}")
    return requirement_finding(0, "build_failed", f"pip failed: {tail}")


def _tail(output: str, staging: Path) -> str:
    """The end of pip's output without this machine's paths and the index's address."""
    text = _ADDRESS.sub("(address)", _PLACE.sub("", output)).replace(str(staging), "")
    return text.strip()[-TAIL_CHARS:]


def _unmet(requirements: Requirements, unmet: Sequence[Sequence[Any]]) -> list[Finding]:
    findings = []
    for of, needs, found in unmet:
        line = requirements.line_of(of) or 0
        if found is None:
            message, code = f"{of} needs {needs}, which is not pinned", "requirement_missing"
        else:
            message, code = f"{of} needs {needs}, but {found} is pinned", "requirement_conflict"
        findings.append(requirement_finding(line, code, message, "pin a version that fits"))
    return findings


def _shadows(folder: Path) -> list[Finding]:
    """Refuse a module of the platform's name; all others come after what they would hide."""
    return [
        requirement_finding(
            0, "requirement_shadows", f"a wheel brings the platform's module {name}"
        )
        for name in sorted(modules(folder) & RESERVED)
    ]


def _make_read_only(folder: Path) -> None:
    """Readable for every user, because environments run as their own; writable for nobody."""
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)
        Path(base).chmod(0o755)


def _move(built: Path, target: Path) -> None:
    """Appear whole; another build of the same key may have been first."""
    try:
        built.rename(target)
    except OSError:
        if not target.is_dir():
            raise
