"""`venus.toml`: what a package says of itself, read into a `Manifest` with a finding a mistake."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, cast

from venusrl.env.messages import Json

MANIFEST_NAME: Final = "venus.toml"
"""The file that makes a folder an environment package."""

MANIFEST_BYTES_MAX: Final = 256 << 10
"""A manifest is written by hand; a larger one is not one."""

SDK_VERSION: Final = 1
"""The version of `venusrl.env` that packages are written against."""

ADAPTERS: Final[Mapping[str, str]] = {
    "reasoning_gym": "environments.adapters.reasoning_gym:ReasoningGym",
}
"""Entry class by adapter name."""

_NAME: Final = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
_VERSION: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")
_ENTRY: Final = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
_VARIABLE: Final = re.compile(
    r"^(?!(PATH|HOME|LANG|TMPDIR|(LC_|LD_|PYTHON|VENUS_).*)$)[A-Z_][A-Z0-9_]{0,62}$"
)
_ARTEFACT: Final = re.compile(r"^(?!/)(?!.*(^|/)\.\.?(/|$))[^\x00-\x1f\\]{1,200}$")

Severity = Literal["error", "warning"]
"""Whether a finding forbids use."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend: where it is, what is wrong, and what to do about it."""

    file: str
    pointer: str
    message: str
    hint: str = ""
    severity: Severity = "error"
    code: str = "package_invalid"


class PackageInvalid(Exception):
    """The package cannot be used; `findings` holds at least one error."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        first = findings[0]
        super().__init__(f"{first.file}{first.pointer}: {first.message}")
        self.findings = findings


@dataclass(frozen=True, slots=True)
class EnvironmentLimits:
    """Bounds of one environment. Seconds of one call, of one rollout (`wall_s`), and of memory."""

    max_turns: int = 16
    wall_s: float = 600.0
    start_s: float = 60.0
    load_s: float = 120.0
    setup_s: float = 60.0
    reply_s: float = 60.0
    blocked_s: float = 15.0
    memory_mb: int = 1024
    pids: int = 64


LIMIT_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "max_turns": (1, 1000),
    "wall_s": (1, 86_400),
    "start_s": (1, 600),
    "load_s": (1, 600),
    "setup_s": (0.1, 1800),
    "reply_s": (0.1, 3600),
    "blocked_s": (1, 300),
    "memory_mb": (64, 65_536),
    "pids": (8, 4096),
}
"""What a package may ask for; memory and pids end at what a node can give to one process."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A package's declarations. `entry` is always a class, for an adapter the adapter's own."""

    name: str
    version: str
    entry: str
    adapter: str | None = None
    resumable: bool = True
    sandbox: bool = True
    grading_sandbox: bool = False
    rewrites_history: bool = False
    secrets: tuple[str, ...] = ()
    network_allow: tuple[str, ...] = ()
    artefacts: tuple[str, ...] = ()
    limits: EnvironmentLimits = EnvironmentLimits()
    config: Mapping[str, Json] = field(default_factory=dict)


def parse_manifest(text: str) -> Manifest:
    """Read `venus.toml`; PackageInvalid carries every mistake found, not only the first."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # too long a number, too deep a nesting
        raise PackageInvalid((Finding(MANIFEST_NAME, "", f"not TOML: {error}"),)) from error
    reader = _Reader(cast("dict[str, Json]", table))
    manifest = reader.manifest()
    if reader.findings:
        raise PackageInvalid(tuple(reader.findings))
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an unpacked package."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise _refused("is missing", "a package is a folder with a venus.toml")
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise _refused(f"exceeds {MANIFEST_BYTES_MAX} bytes")
    try:
        return parse_manifest(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise _refused(f"is not UTF-8: {error}") from error


def _refused(message: str, hint: str = "") -> PackageInvalid:
    return PackageInvalid((Finding(MANIFEST_NAME, "", message, hint),))


class _Reader:
    """Takes known keys out of the table and keeps what is wrong with them."""

    def __init__(self, table: dict[str, Json]) -> None:
        self._table = table
        self.findings: list[Finding] = []

    def manifest(self) -> Manifest:
        """The manifest, of defaults where a key is wrong; `findings` decides whether it counts."""
        known = {
            "name", "version", "sdk", "entry", "adapter", "harness", "resumable", "sandbox",
            "grading_sandbox", "rewrites_history", "secrets", "network", "artefacts", "limits", "config",
        }  # fmt: skip
        self._unknown(self._table, "", known)
        if self._table.get("sdk") != SDK_VERSION:
            self._add("/sdk", f"must be {SDK_VERSION}", "write sdk = 1")
        if self._table.get("harness", "chat") != "chat":
            self._add("/harness", "only the platform's turn loop is served", 'write "chat"')
        network = self._section("network")
        self._unknown(network, "/network", {"allow"})
        adapter = self._adapter()
        return Manifest(
            name=self._matching("name", _NAME, "lower-case letters, digits, - and _"),
            version=self._matching("version", _VERSION, 'for instance "1"'),
            entry=ADAPTERS.get(adapter, "") if adapter else self._entry(),
            adapter=adapter,
            resumable=self._flag("resumable", True),
            sandbox=self._flag("sandbox", adapter is None),
            grading_sandbox=self._flag("grading_sandbox", False),
            rewrites_history=self._flag("rewrites_history", False),
            secrets=self._variables(),
            network_allow=self._texts(network, "allow", "/network"),
            artefacts=self._artefacts(),
            limits=self._limits(),
            config=self._section("config"),
        )

    def _add(self, pointer: str, message: str, hint: str = "") -> None:
        self.findings.append(Finding(MANIFEST_NAME, pointer, message, hint))

    def _unknown(self, table: Mapping[str, Json], pointer: str, known: set[str]) -> None:
        for key in sorted(set(table) - known):
            near = get_close_matches(key, sorted(known), n=1)
            self._add(f"{pointer}/{key}", "unknown key", f"did you mean {near[0]}?" if near else "")

    def _section(self, key: str) -> dict[str, Json]:
        value = self._table.get(key, {})
        if isinstance(value, dict):
            return value
        self._add(f"/{key}", "must be a table")
        return {}

    def _adapter(self) -> str | None:
        value = self._table.get("adapter")
        if value is None:
            return None
        if not isinstance(value, str) or value not in ADAPTERS:
            self._add("/adapter", "unknown adapter", f"known: {', '.join(ADAPTERS)}")
            return None
        if "entry" in self._table:
            self._add("/entry", "an adapter brings its own entry", "remove entry or adapter")
        return value

    def _entry(self) -> str:
        value = self._table.get("entry")
        if isinstance(value, str) and _ENTRY.match(value):
            return value
        if "adapter" not in self._table:
            self._add("/entry", "must be module:Class", 'for instance "env:Calc"')
        return ""

    def _matching(self, key: str, pattern: re.Pattern[str], hint: str) -> str:
        value = self._table.get(key)
        if isinstance(value, str) and pattern.match(value):
            return value
        missing = key not in self._table
        self._add(f"/{key}", "is missing" if missing else f"must match {pattern.pattern}", hint)
        return ""

    def _flag(self, key: str, default: bool) -> bool:
        value = self._table.get(key, default)
        if isinstance(value, bool):
            return value
        self._add(f"/{key}", "must be true or false")
        return default

    def _texts(self, table: Mapping[str, Json], key: str, pointer: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            return tuple(cast("list[str]", value))
        self._add(f"{pointer}/{key}", "must be an array of text")
        return ()

    def _variables(self) -> tuple[str, ...]:
        names = self._texts(self._table, "secrets", "")
        for number, name in enumerate(names):
            if not _VARIABLE.match(name):
                hint = "upper-case letters, digits and _; not a variable of the platform"
                self._add(f"/secrets/{number}", f"{name} is no name of a variable", hint)
            elif name in names[:number]:
                self._add(f"/secrets/{number}", f"{name} is named twice")
        return names

    def _artefacts(self) -> tuple[str, ...]:
        paths = self._texts(self._table, "artefacts", "")
        for number, path in enumerate(paths):
            if not _ARTEFACT.match(path):
                self._add(f"/artefacts/{number}", "must be a plain relative path")
        return paths

    def _limits(self) -> EnvironmentLimits:
        section = self._section("limits")
        self._unknown(section, "/limits", set(LIMIT_BOUNDS))
        chosen: dict[str, float] = {}
        for key, (low, high) in LIMIT_BOUNDS.items():
            value = section.get(key)
            whole = isinstance(getattr(EnvironmentLimits(), key), int)
            if value is None:
                continue
            right_type = isinstance(value, int if whole else (int, float))
            number = cast("float", value)
            if not right_type or isinstance(value, bool) or not low <= number <= high:
                kind = "a whole number" if whole else "a number"
                self._add(f"/limits/{key}", f"must be {kind} from {low:g} to {high:g}")
            else:
                chosen[key] = number
        defaults = EnvironmentLimits()
        return EnvironmentLimits(
            max_turns=int(chosen.get("max_turns", defaults.max_turns)),
            wall_s=chosen.get("wall_s", defaults.wall_s),
            start_s=chosen.get("start_s", defaults.start_s),
            load_s=chosen.get("load_s", defaults.load_s),
            setup_s=chosen.get("setup_s", defaults.setup_s),
            reply_s=chosen.get("reply_s", defaults.reply_s),
            blocked_s=chosen.get("blocked_s", defaults.blocked_s),
            memory_mb=int(chosen.get("memory_mb", defaults.memory_mb)),
            pids=int(chosen.get("pids", defaults.pids)),
        )
