"""Everything is annotated; what others read carries a docstring; a TODO names its issue."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.tree import (
    PURE,
    Function,
    Source,
    is_public,
    script_sources,
    sources,
    sources_of_tests,
)

DOCUMENTED = (*(f"{folder}/" for folder in PURE), "venusrl/")
"""Folders whose every public name has a docstring: pure packages, client and environment kit."""

TODO = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")


def unannotated(function: Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [part for part in (arguments.vararg, arguments.kwarg) if part]
    missing = [
        part.arg for part in named if part.annotation is None and part.arg not in ("self", "cls")
    ]
    return missing + ([] if function.returns is not None else ["return"])


def is_overload(function: Function) -> bool:
    """Signatures of `typing.overload` are documented by the function that follows them."""
    names = [one.id for one in function.decorator_list if isinstance(one, ast.Name)]
    return "overload" in names


def public_definitions(
    node: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Public classes, functions and methods; special and overriding-by-convention names apart."""
    for child in node.body:
        if isinstance(child, ast.ClassDef) and is_public(child.name):
            yield prefix + child.name, child
            yield from public_definitions(child, f"{prefix}{child.name}.")
        elif (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            and is_public(child.name)
            and not is_overload(child)
        ):
            yield prefix + child.name, child


def must_be_documented(source: Source) -> bool:
    return source.name.startswith(DOCUMENTED) or source.path.name == "ports.py"


def test_every_function_is_annotated() -> None:
    found = [
        f"{source.name}:{function.lineno} {function.name}: {', '.join(unannotated(function))}"
        for source in (*sources(), *script_sources(), *sources_of_tests())
        for function in source.functions()
        if unannotated(function)
    ]
    assert found == []


def test_every_module_says_what_it_owns() -> None:
    every = (*sources(), *script_sources(), *sources_of_tests())
    assert [source.name for source in every if not ast.get_docstring(source.tree)] == []


def test_every_public_name_of_pure_packages_ports_and_client_has_a_docstring() -> None:
    found = [
        f"{source.name}:{node.lineno} {name}"
        for source in sources()
        if must_be_documented(source)
        for name, node in public_definitions(source.tree)
        if not ast.get_docstring(node)
    ]
    assert found == []


def test_every_todo_names_its_issue() -> None:
    this = __name__
    found = [
        f"{source.name}:{number}"
        for source in (*sources(), *script_sources(), *sources_of_tests())
        if source.module != this
        for number, line in enumerate(source.text.splitlines(), 1)
        if TODO.search(line)
    ]
    assert found == []
