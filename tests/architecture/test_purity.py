"""The pure packages decide; they read no clock, draw no chance, wait for nothing, log nothing."""

import ast
from collections.abc import Iterator
from typing import Final

from tests.architecture.tree import PACKAGES, Source, pure_sources, sources

ALLOWED_STANDARD: Final = frozenset(
    {
        "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "decimal", "enum",
        "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator",
        "re", "statistics", "string", "struct", "types", "typing",
    }
)  # fmt: skip
"""Standard modules without I/O, clock, chance or threads."""

ONLY_FROM: Final = {"random": {"Random"}}
"""Modules from which just these names may come: the type of an injected random source."""

ALLOWED_OURS: Final = {
    "domain": {"domain"},
    "kv": {"domain", "kv"},
    "scheduler": {"domain", "kv", "sandboxes.core", "scheduler.core"},
    "sandboxes": {"domain", "sandboxes.core"},
}

FORBIDDEN_CALLS: Final = frozenset({"hash", "id", "print", "input", "open", "exec", "eval"})
"""Built-ins whose answer differs between two runs, or that reach outside."""


def imports(source: Source) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Line, module and names of every import, wherever it stands."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", tuple(alias.name for alias in node.names)


def is_allowed(source: Source, module: str, names: tuple[str, ...]) -> bool:
    top = module.partition(".")[0]
    if top in PACKAGES:
        own = ALLOWED_OURS[source.module.partition(".")[0]]
        return any(f"{module}.".startswith(f"{allowed}.") for allowed in own)
    if top in ONLY_FROM:
        return bool(names) and set(names) <= ONLY_FROM[top]
    return top in ALLOWED_STANDARD


def test_pure_packages_import_nothing_that_acts() -> None:
    found = [
        f"{source.name}:{line} imports {module} {' '.join(names)}".rstrip()
        for source in pure_sources()
        for line, module, names in imports(source)
        if not is_allowed(source, module, names)
    ]
    assert found == []


def test_pure_packages_call_nothing_that_differs_between_runs() -> None:
    found = [
        f"{source.name}:{node.lineno} calls {node.func.id}"
        for source in pure_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in FORBIDDEN_CALLS
    ]
    assert found == []


def is_set_expression(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case _:
            return False


def test_pure_packages_do_not_iterate_over_a_set() -> None:
    found = [
        f"{source.name}:{node.iter.lineno}"
        for source in pure_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.For | ast.comprehension) and is_set_expression(node.iter)
    ]
    assert found == []


def test_the_pure_packages_are_there() -> None:
    folders = {source.name.split("/")[0] for source in pure_sources()}
    assert {"domain", "scheduler"} <= folders
    assert len(sources()) > len(folders)
