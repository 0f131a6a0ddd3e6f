"""`requirements.txt` of a package: pins and nothing else, and the key of what they are built into.

A line is `name==version`, optionally followed by `--hash=sha256:...`; with a backslash at its end it
goes on in the next one. Everything else that pip would take (addresses, options, extras, markers,
ranges) is a finding with its line: what is installed must follow from the file alone.
"""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from venusrl.env.host.manifest import Finding, PackageInvalid

REQUIREMENTS_NAME: Final = "requirements.txt"

REQUIREMENTS_BYTES_MAX: Final = 256 << 10
"""Two hundred pins with many hashes each fit into it."""

PINS_MAX: Final = 200
"""More is an application, and takes longer to build than a validation may last."""

SHOWN_CHARS_MAX: Final = 80
"""Of a line that is refused."""

_PIN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?)\s*==\s*"
    r"(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63})"
)
_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_SEPARATORS: Final = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class Pin:
    """One requirement; `name` is normalised, `line` says where it stands."""

    name: str
    version: str
    hashes: tuple[str, ...]
    line: int

    @property
    def text(self) -> str:
        """As pip reads it, on one line."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash={one}" for one in self.hashes)])


@dataclass(frozen=True, slots=True)
class Requirements:
    """All pins, by name; `findings` says what else stands in the file."""

    pins: tuple[Pin, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def text(self) -> str:
        """The file that pip gets: never the author's own."""
        return "".join(f"{pin.text}\n" for pin in self.pins)

    @property
    def key(self) -> str:
        """Names what they are built into: the same pins on the same interpreter share it."""
        words = f"venus-dependencies-1\n{python_tag()}\n{self.text}"
        return hashlib.sha256(words.encode()).hexdigest()

    def line_of(self, name: str) -> int | None:
        """Where a package is pinned."""
        wanted = normal_name(name)
        return next((pin.line for pin in self.pins if pin.name == wanted), None)


def python_tag() -> str:
    """What decides which wheels fit: interpreter and platform."""
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"


def normal_name(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def read_requirements(folder: Path) -> Requirements:
    """The requirements of an unpacked package; none without a file."""
    path = folder / REQUIREMENTS_NAME
    if not path.is_file():
        return Requirements()
    if path.stat().st_size > REQUIREMENTS_BYTES_MAX:
        return _refused(0, f"exceeds {REQUIREMENTS_BYTES_MAX} bytes")
    try:
        return parse_requirements(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        return _refused(0, f"is not UTF-8: {error}")


def pinned(folder: Path) -> Requirements:
    """The same, raised as PackageInvalid where something is wrong."""
    found = read_requirements(folder)
    if found.findings:
        raise PackageInvalid(found.findings)
    return found


def parse_requirements(text: str) -> Requirements:
    """Every mistake is found, not only the first."""
    pins: dict[str, Pin] = {}
    findings: list[Finding] = []
    for number, line in _lines(text):
        pin = _pin(number, line)
        if isinstance(pin, Finding):
            findings.append(pin)
        elif pin.name in pins:
            findings.append(
                requirement_finding(number, "requirement_twice", f"pins {pin.name} twice")
            )
        else:
            pins[pin.name] = pin
    if len(pins) > PINS_MAX:
        findings.append(
            requirement_finding(0, "too_many_requirements", f"pins more than {PINS_MAX}")
        )
    if any(pin.hashes for pin in pins.values()):
        hint = "give hashes for all pins, or for none"
        findings += [
            requirement_finding(pin.line, "hash_missing", f"{pin.name} has no hash", hint)
            for pin in pins.values()
            if not pin.hashes
        ]
    return Requirements(tuple(pins[name] for name in sorted(pins)), tuple(findings))


def requirement_finding(line: int, code: str, message: str, hint: str = "") -> Finding:
    """A finding in the file; line 0 means the whole of it."""
    return Finding(REQUIREMENTS_NAME, f"/{line}" if line else "", message, hint, code=code)


def _refused(line: int, message: str) -> Requirements:
    return Requirements(findings=(requirement_finding(line, "requirement_invalid", message),))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with what they are continued by, each with the number of its first."""
    began, kept = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", line).strip()
        began = began if kept else number
        if line.endswith("\\"):
            kept += line[:-1] + " "
            continue
        if whole := (kept + line).strip():
            yield began, whole
        kept = ""
    if kept.strip():
        yield began, kept.strip()


def _pin(number: int, line: str) -> Pin | Finding:
    head, *rest = line.split(" --", 1)
    match = _PIN.fullmatch(head.strip())
    words = f"--{rest[0]}".split() if rest else []
    hashes = [_HASH.fullmatch(word) for word in words]
    if match is None or not all(hashes):
        message = f"is not name==version: {line[:SHOWN_CHARS_MAX]}"
        return requirement_finding(number, "requirement_not_pinned", message, _hint(line))
    found = tuple(sorted({one[1] for one in hashes if one}))
    return Pin(normal_name(match["name"]), match["version"], found, number)


def _hint(line: str) -> str:
    if line.startswith("-"):
        return "options are not served; the installation says which index is used"
    if "://" in line or " @ " in line:
        return "addresses are not served; pin a version of the index"
    if ";" in line:
        return "markers are not served; pin what this platform needs"
    if "[" in line:
        return "extras are not served; pin what the extra needs"
    return "write name==version, optionally with --hash=sha256:..."
