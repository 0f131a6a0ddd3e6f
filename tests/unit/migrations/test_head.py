"""The newest revision is read off the files, and a broken history is refused."""

from pathlib import Path

import pytest

from migrations.head import BrokenHistoryError, head_revision


def write(folder: Path, revision: str, parent: str | None) -> None:
    text = f"revision: str = {revision!r}\ndown_revision: str | None = {parent!r}\n"
    (folder / f"{revision}.py").write_text(text)


def test_the_head_is_the_revision_that_no_other_follows(tmp_path: Path) -> None:
    write(tmp_path, "0002", "0001")
    write(tmp_path, "0001", None)
    assert head_revision(tmp_path) == "0002"


def test_no_revision_means_no_head(tmp_path: Path) -> None:
    assert head_revision(tmp_path) is None


def test_two_heads_are_refused(tmp_path: Path) -> None:
    for revision, parent in (("0001", None), ("0002", "0001"), ("0003", "0001")):
        write(tmp_path, revision, parent)
    with pytest.raises(BrokenHistoryError):
        head_revision(tmp_path)


def test_the_tree_has_one_head() -> None:
    assert head_revision() is not None
