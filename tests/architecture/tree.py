"""The source tree as parsed files, shared by the architecture tests."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

PACKAGES: Final = (
    "api", "benchmarks", "domain", "environments", "infra", "kv", "migrations", "sandboxes",
    "scheduler", "simulation", "stores", "supervisor", "venusrl", "workers",
)  # fmt: skip
"""Top-level names of ours; those not in the tree yet are simply empty."""

PURE: Final = ("domain", "kv", "scheduler/core", "sandboxes/core")

GENERATED: Final = ("migrations/versions/",)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path from the root, for messages."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """Dotted module name."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


def _read(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(GENERATED):
            text = path.read_text()
            yield Source(path, text, ast.parse(text, name))


@cache
def sources() -> tuple[Source, ...]:
    """Every source file of ours, tests and scripts apart."""
    return tuple(source for package in PACKAGES for source in _read(ROOT / package))


@cache
def sources_of_tests() -> tuple[Source, ...]:
    """Every file under tests/."""
    return tuple(_read(ROOT / "tests"))


@cache
def script_sources() -> tuple[Source, ...]:
    """Every script."""
    return tuple(_read(ROOT / "scripts"))


def pure_sources() -> Iterator[Source]:
    """Files of the pure packages."""
    return (source for source in sources() if source.name.startswith(tuple(p + "/" for p in PURE)))


def is_public(name: str) -> bool:
    """Whether a name is meant for others."""
    return not name.startswith("_")
