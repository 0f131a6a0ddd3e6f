"""Which files of a model folder the client sends."""

import json
from pathlib import Path

import pytest

from venusrl._errors import UploadUnreadable
from venusrl._models import FILES, INDEX, WEIGHTS, _content_of

PART = "model-00001-of-00001.safetensors"


def sent(folder: Path) -> list[str]:
    """Names of the parts with files."""
    return [piece.name for piece in _content_of("m", folder).pieces if isinstance(piece, Path)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With weights in one file that an index names."""
    for name in (*FILES, PART):
        (tmp_path / name).write_text(name)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": PART, "b": PART}}))
    return tmp_path


def test_an_index_and_what_it_names_go_where_there_is_no_single_file(folder: Path) -> None:
    assert sent(folder) == [*FILES, INDEX, PART]
    (folder / WEIGHTS).write_text("one")
    assert sent(folder) == [*FILES, WEIGHTS]


@pytest.mark.parametrize(
    ("index", "cause"),
    [
        ('{"weight_map": {"a": "../secret"}}', "leads out"),
        ('{"weight_map": {"a": "none.safetensors"}}', "lacks none.safetensors"),
        ('{"weight_map": []}', "no index"),
        ("[", "no index"),
    ],
)
def test_an_index_that_cannot_be_followed_is_unreadable(
    folder: Path, index: str, cause: str
) -> None:
    (folder / INDEX).write_text(index)
    with pytest.raises(UploadUnreadable, match=cause):
        sent(folder)
