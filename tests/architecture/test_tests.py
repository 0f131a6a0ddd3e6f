"""Tests wait by `eventually` only, have sentences for names, and lie in packages."""

import ast
from collections.abc import Iterator

from tests.architecture.tree import ROOT, Source, sources_of_tests

WAITING = "tests/support/waiting.py"
"""The one file that may sleep."""

WORDS_MIN = 4
"""`test_` and three words: less says what is called, not what holds."""


def sleeps(source: Source) -> Iterator[int]:
    """Lines that call sleep with anything but 0 (which only yields to other tasks)."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep")):
                is_yield = [isinstance(a, ast.Constant) and a.value == 0 for a in node.args]
                if is_yield != [True]:
                    yield node.lineno
            case ast.ImportFrom(module="time" | "asyncio", names=names):
                if any(alias.name == "sleep" for alias in names):
                    yield node.lineno


def test_no_test_sleeps() -> None:
    found = [
        f"{source.name}:{line}"
        for source in sources_of_tests()
        if source.name != WAITING
        for line in sleeps(source)
    ]
    assert found == []


def test_every_test_name_is_a_sentence() -> None:
    found = [
        f"{source.name}:{function.lineno} {function.name}"
        for source in sources_of_tests()
        for function in source.functions()
        if function.name.startswith("test_")
        and source.path.name.startswith("test_")
        and len(function.name.split("_")) < WORDS_MIN
    ]
    assert found == []


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {source.path.parent for source in sources_of_tests()}
    missing = [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert sorted(str(folder.relative_to(ROOT)) for folder in missing) == []
