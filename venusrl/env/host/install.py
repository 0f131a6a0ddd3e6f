"""A program of its own: installs wheels into a folder, within limits, and says what is still missing.

`python -I install.py LIMITS REQUIREMENTS TARGET OPTIONS...`. Its last line of output is JSON. Wheels are
unpacked and never run: nothing is built, and what they depend on must be pinned too.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import resource
import runpy
import signal
import sys
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h: nobody waits for a build whose parent died."""

EXIT_NO_PIP: Final = 69
EXIT_PIP: Final = 70
"""Exit statuses: there is no pip; pip failed, its output says why."""


def main() -> None:
    """Entry of the program."""
    file_bytes, requirements, target = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        importlib.import_module("pip")
    except ImportError:
        sys.exit(EXIT_NO_PIP)
    if status := _pip(requirements, target, sys.argv[4:]):
        sys.stdout.write(f"pip ended with status {status}\n")
        sys.exit(EXIT_PIP)
    sys.stdout.write(json.dumps(_installed(Path(target))) + "\n")


def _pip(requirements: str, target: str, options: list[str]) -> int:
    sys.argv = [
        *("pip", "install", "--target", target, "--requirement", requirements),
        *("--only-binary", ":all:", "--no-deps", "--no-compile", "--no-cache-dir", "--no-input"),
        *("--disable-pip-version-check", "--no-warn-conflicts", "--progress-bar", "off"),
        *("--no-color", *options),
    ]
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _installed(target: Path) -> dict[str, Any]:
    """Packages by name, and requirements of theirs that nothing here meets: [of, needs, found]."""
    parsed = [
        HeaderParser().parsestr(path.read_text(encoding="utf-8", errors="replace"))
        for path in sorted(target.glob("*.dist-info/METADATA"))
    ]
    tools = _packaging()
    versions = {tools.canonicalize_name(one["Name"]): str(one["Version"]) for one in parsed}
    unmet = [
        [str(one["Name"]), text, versions.get(name)]
        for one in parsed
        for text in one.get_all("Requires-Dist") or ()
        for name in [_unmet(tools, text, versions)]
        if name is not None
    ]
    return {"packages": versions, "unmet": unmet}


def _unmet(tools: Any, text: str, versions: dict[str, str]) -> str | None:
    """The name of a requirement that holds here and is not met."""
    needed = tools.Requirement(text)
    if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
        return None
    name = str(tools.canonicalize_name(needed.name))
    found = versions.get(name)
    is_met = found is not None and needed.specifier.contains(found, prereleases=True)
    return None if is_met else name


class _Tools:
    """What is needed of the library that reads requirements; pip brings it along."""

    def __init__(self, parent: str) -> None:
        self.Requirement = importlib.import_module(f"{parent}.requirements").Requirement
        self.canonicalize_name = importlib.import_module(f"{parent}.utils").canonicalize_name


def _packaging() -> _Tools:
    try:
        return _Tools("pip._vendor.packaging")
    except ImportError:
        return _Tools("packaging")


if __name__ == "__main__":
    main()
