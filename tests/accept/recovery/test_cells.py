"""The matrix names every failpoint of the code, and every draw holds each kind of strike."""

import ast
from collections.abc import Iterator
from random import Random

from tests.accept.recovery.cells import CELLS_DRAWN, ELSEWHERE, FAILPOINTS, all_cells, draw
from tests.architecture.tree import ROOT, Source, sources

FUNCTION = "hit"


def failpoints_of(source: Source, constants: dict[str, set[str]]) -> Iterator[str]:
    """Names given to `hit`: literals, or constants of the tree by their own name."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[argument]):
                if called == FUNCTION:
                    yield from _texts(argument, constants)


def _texts(argument: ast.expr, constants: dict[str, set[str]]) -> set[str]:
    match argument:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return constants.get(name, set())
    return set()


def constants_of_tree() -> dict[str, set[str]]:
    """Module-level `NAME: Final = "some.text"` by name."""
    found: dict[str, set[str]] = {}
    for node in (node for source in sources() for node in source.tree.body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                found.setdefault(name, set()).update({text} if "." in text else ())
    return found


def test_the_matrix_names_every_failpoint_of_the_code() -> None:
    constants = constants_of_tree()
    found = {name for source in sources() for name in failpoints_of(source, constants)}
    assert found == {failpoint.name for failpoint in FAILPOINTS} | ELSEWHERE


def test_every_failpoint_has_its_line_in_the_documentation() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    assert [one.name for one in FAILPOINTS if f"`{one.name}`" not in text] == []


def test_every_draw_holds_each_kind_of_strike_at_different_failpoints() -> None:
    kinds = {(cell.strike, cell.victim) for cell in all_cells()}
    for number in range(20):
        drawn = draw(Random(number), CELLS_DRAWN)
        assert {(cell.strike, cell.victim) for cell in drawn} == kinds
        assert len(set(drawn)) == CELLS_DRAWN
        assert len({cell.failpoint.name for cell in drawn}) >= CELLS_DRAWN - 6


def test_the_same_commit_draws_the_same_cells() -> None:
    assert draw(Random("a commit"), CELLS_DRAWN) == draw(Random("a commit"), CELLS_DRAWN)
