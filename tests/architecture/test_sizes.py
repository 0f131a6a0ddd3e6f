"""Hard limits on size: what does not fit one screen is hard to check by eye."""

import ast
from typing import Final

from tests.architecture.tree import Function, Source, script_sources, sources, sources_of_tests

FILE_LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 70
NESTING_MAX: Final = 3
POSITIONAL_MAX: Final = 5

NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match)
"""Statements that open a level; `with` holds a resource and decides nothing."""


def everything() -> tuple[Source, ...]:
    return (*sources(), *script_sources(), *sources_of_tests())


def lines_of(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def nesting_of(node: ast.AST, depth: int = 0) -> int:
    """Deepest level of branching below `node`; `elif` stays on the level of its `if`."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        is_elif = (
            isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
            and len(node.orelse) == 1
        )  # fmt: skip
        opens = isinstance(child, NESTING) and not is_elif
        deepest = max(deepest, nesting_of(child, depth + opens))
    return deepest


def positional_of(function: Function) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len([name for name in names if name not in ("self", "cls")])


def is_called_by_name(source: Source) -> bool:
    """Pytest, FastAPI and typer pass arguments by name: their number is no matter of order."""
    return source.path.name == "routes.py" or source.name.startswith(("tests/", "venusrl/cli/"))


def test_no_file_is_too_long() -> None:
    counts = {source.name: source.text.count("\n") for source in everything()}
    assert {name: n for name, n in counts.items() if n > FILE_LINES_MAX} == {}


def test_no_function_is_too_long() -> None:
    found = [
        f"{source.name}:{function.lineno} {function.name} has {lines_of(function)} lines"
        for source in everything()
        for function in source.functions()
        if lines_of(function) > FUNCTION_LINES_MAX
    ]
    assert found == []


def test_no_function_nests_too_deep() -> None:
    found = [
        f"{source.name}:{function.lineno} {function.name} nests {nesting_of(function)} deep"
        for source in everything()
        for function in source.functions()
        if nesting_of(function) > NESTING_MAX
    ]
    assert found == []


def test_no_function_takes_too_many_positional_arguments() -> None:
    found = [
        f"{source.name}:{function.lineno} {function.name} takes {positional_of(function)}"
        for source in everything()
        if not is_called_by_name(source)
        for function in source.functions()
        if positional_of(function) > POSITIONAL_MAX
    ]
    assert found == []
