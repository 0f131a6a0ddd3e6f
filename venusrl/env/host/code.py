"""What can be said of a package's code without running it: syntax, and imports that nobody serves."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from venusrl.env.host.dependencies import modules
from venusrl.env.host.manifest import Finding

FILES_MAX: Final = 200
"""A package with more modules than this is a library; its import says what is wrong with it."""

SERVED: Final = frozenset({"venusrl"})
"""Beside the standard library, the package's own modules and its built requirements, all there is."""

UNSERVED_FOLDERS: Final = frozenset({"grader", "image", "tests"})
"""Their code runs elsewhere, or never."""


def check_code(folder: Path, dependencies: Path | None = None) -> list[Finding]:
    """Findings with the line as their pointer: `/12` of `env.py`."""
    findings: list[Finding] = []
    own = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if path.is_dir()
    }
    own |= modules(dependencies) if dependencies is not None else frozenset()
    for path in _modules(folder):
        name = path.relative_to(folder).as_posix()
        try:
            tree = ast.parse(path.read_bytes(), name)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            text = getattr(error, "msg", None) or str(error)
            findings.append(Finding(name, f"/{line}", f"not Python: {text}"))
            continue
        findings += _imports(name, tree, own)
    return findings


def _modules(folder: Path) -> list[Path]:
    found = [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] not in UNSERVED_FOLDERS
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    return found[:FILES_MAX]


def _imports(name: str, tree: ast.Module, own: set[str]) -> Iterator[Finding]:
    """Warnings: the import may be guarded, or in a script that the environment never loads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            tops = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            tops = [(node.module or "").partition(".")[0]]
        else:
            continue
        for top in tops:
            if top in own or top in SERVED or top in sys.stdlib_module_names:
                continue
            message = f"imports {top}, which is not in the standard library"
            hint = "use the standard library, files of the package, or pin it in requirements.txt"
            yield Finding(name, f"/{node.lineno}", message, hint, "warning")
