"""The newest revision, read off the files: importing Alembic costs a second, this does not."""

import ast
from pathlib import Path
from typing import Final

VERSIONS: Final = Path(__file__).with_name("versions")


class BrokenHistoryError(RuntimeError):
    """The revisions do not form one line with one newest end."""


def head_revision(folder: Path = VERSIONS) -> str | None:
    """The revision that no other follows; None when there is no revision yet."""
    parents = dict(_revision_and_parent(path) for path in sorted(folder.glob("*.py")))
    heads = parents.keys() - set(parents.values())
    if not parents:
        return None
    if len(heads) != 1:
        raise BrokenHistoryError(f"expected one head revision, found {sorted(heads)}")
    return heads.pop()


def _revision_and_parent(path: Path) -> tuple[str, str | None]:
    values: dict[str, str | None] = {}
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                values[name] = value if isinstance(value, str) else None
            case _:
                continue
    revision = values.get("revision")
    if revision is None:
        raise BrokenHistoryError(f"{path.name} names no revision")
    return revision, values.get("down_revision")
