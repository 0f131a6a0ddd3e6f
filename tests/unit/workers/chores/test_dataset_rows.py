"""Rows of datasets: which lines are tasks, which texts are the same."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.chores import dataset_rows
from workers.chores.dataset_rows import check_splits, lines_of
from workers.chores.row_text import normalised


def lines(path: Path, *content: bytes) -> Path:
    """A file of lines."""
    path.write_bytes(b"\n".join(content))
    return path


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is 1+1?", "what  is 1+1", True),
        ("1 + 1", "1+1", False),
        ("1+1", "1-1", False),
        ("6/3", "63", False),
        ("\u00e9t\u00e9", "e\u0301te\u0301", True),
        ("\uff11", "1", True),
        ("a\u00a0b", "a b", True),
        ("It's", "its", True),
    ],
)
def test_texts_are_the_same_but_for_case_spacing_and_punctuation(
    one: str, other: str, same: bool
) -> None:
    assert (normalised(one) == normalised(other)) is same


@given(st.text())
def test_normalising_again_changes_nothing(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


@given(st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b), max_size=8))
def test_any_bytes_are_rows_or_faults_with_their_line(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes]
) -> None:
    path = lines(tmp_path_factory.mktemp("rows") / "train.jsonl", *content)
    numbers = [line.number for line in lines_of(path, "train")]
    assert numbers == [n for n, raw in enumerate(content, 1) if raw.strip()]


def test_a_row_without_an_id_is_named_by_its_place(tmp_path: Path) -> None:
    path = lines(tmp_path / "f", b'{"prompt": "a"}', b"", b'{"prompt": "b", "id": "x"}')
    assert [line.task.id for line in lines_of(path, "train") if line.task] == ["train-1", "x"]


def test_a_line_beyond_the_limit_is_one_fault_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_rows, "LINE_BYTES_MAX", 64)
    path = lines(tmp_path / "f", b'{"prompt": "' + b"a" * 500 + b'"}', b'{"prompt": "b"}')
    found = list(lines_of(path, "train"))
    assert [(line.number, line.task is None) for line in found] == [(1, True), (2, False)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"[]", "a task"),
        (b'{"prompt": "a", "id": ""}', "id"),
        (b'{"prompt": "a", "more": 1}', "unknown field more"),
        (b'{"prompt": [{"role": "other", "content": "x"}]}', "role"),
        (b'{"prompt": "a"', "no JSON"),
        (b"\xff", "no UTF-8"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_line_that_is_no_task_says_why(tmp_path: Path, row: bytes, said: str) -> None:
    (line,) = lines_of(lines(tmp_path / "f", row), "train")
    assert line.task is None
    assert said in line.fault


def test_an_id_occurs_once_in_a_split_and_may_in_two(tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": str(n), "id": "same"}).encode() for n in range(2)]
    other = json.dumps({"prompt": "other", "id": "same"}).encode()
    train, test = lines(tmp_path / "a", *rows), lines(tmp_path / "b", other)
    report = check_splits({"train": train, "test": test})
    assert [(one["pointer"], one["code"]) for one in report.findings] == [
        ("/train/2", "duplicate_id")
    ]
    assert not report.passed


def test_an_empty_split_fails_and_too_many_rows_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_rows, "ROWS_MAX", 2)
    rows = [json.dumps({"prompt": str(n)}).encode() for n in range(5)]
    splits = {"train": lines(tmp_path / "a", *rows), "test": lines(tmp_path / "b")}
    codes = [one["code"] for one in check_splits(splits).findings]
    assert codes == ["too_many_rows", "no_rows"]
