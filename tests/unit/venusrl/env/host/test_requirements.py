"""Pins are read, everything else is a finding with its line."""

from pathlib import Path

import pytest

from venusrl.env.host import requirements
from venusrl.env.host.manifest import PackageInvalid
from venusrl.env.host.requirements import (
    PINS_MAX,
    REQUIREMENTS_BYTES_MAX,
    parse_requirements,
    pinned,
    read_requirements,
)

HASH = "sha256:" + "a" * 64


def found(text: str) -> list[tuple[str, str]]:
    """Pointers and codes."""
    return [(one.pointer, one.code) for one in parse_requirements(text).findings]


def test_pins_are_normalised_and_sorted() -> None:
    read = parse_requirements("# why\n\nPy_YAML == 6.0.1  # yes\nattrs==23.1.0\n")
    assert read.findings == ()
    assert read.text == "attrs==23.1.0\npy-yaml==6.0.1\n"
    assert read.line_of("PY.yaml") == 3


def test_hashes_may_stand_on_the_lines_that_follow() -> None:
    other = "sha256:" + "b" * 64
    read = parse_requirements(f"attrs==23.1.0 \\\n    --hash={other} \\\n    --hash={HASH}\n")
    assert read.findings == ()
    assert read.pins[0].line == 1
    assert read.text == f"attrs==23.1.0 --hash={HASH} --hash={other}\n"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("attrs", "write name==version"),
        ("attrs>=1", "write name==version"),
        ("attrs==1.*", "write name==version"),
        ("attrs===1", "write name==version"),
        ("attrs==1,<2", "write name==version"),
        ("attrs @ https://example.org/a.whl", "addresses"),
        ("git+https://example.org/a", "addresses"),
        ("-e .", "options"),
        ("--index-url https://example.org", "options"),
        ("-r other.txt", "options"),
        ("attrs[all]==1", "extras"),
        ('attrs==1; python_version < "3"', "markers"),
        ("attrs==1 --hash=md5:abc", "write name==version"),
        ("attrs==1 --config-settings=x", "write name==version"),
        ("./attrs.whl", "write name==version"),
    ],
)
def test_what_is_no_pin_is_a_finding_at_its_line(line: str, hint: str) -> None:
    (one,) = parse_requirements(f"six==1.0\n{line}\n").findings
    assert (one.file, one.pointer, one.code) == (
        "requirements.txt",
        "/2",
        "requirement_not_pinned",
    )
    assert one.hint.startswith(hint)


def test_every_mistake_is_found() -> None:
    assert found("a\nb==1\nB==2\n-e .\n") == [
        ("/1", "requirement_not_pinned"),
        ("/3", "requirement_twice"),
        ("/4", "requirement_not_pinned"),
    ]


def test_hashes_are_given_for_all_or_for_none() -> None:
    assert found(f"a==1 --hash={HASH}\nb==1\n") == [("/2", "hash_missing")]


def test_too_many_pins_are_refused() -> None:
    text = "".join(f"a{number}==1\n" for number in range(PINS_MAX + 1))
    assert found(text) == [("", "too_many_requirements")]


def test_the_key_follows_from_pins_and_interpreter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = parse_requirements("a==1\nb==2\n").key
    assert parse_requirements("# c\nB==2\nA == 1\n").key == one
    assert parse_requirements("a==1\nb==3\n").key != one
    monkeypatch.setattr(requirements, "python_tag", lambda: "another")
    assert parse_requirements("a==1\nb==2\n").key != one


def test_a_folder_without_the_file_needs_nothing(tmp_path: Path) -> None:
    assert read_requirements(tmp_path).pins == ()
    (tmp_path / "requirements.txt").write_bytes(b"\xff")
    assert read_requirements(tmp_path).findings[0].code == "requirement_invalid"
    (tmp_path / "requirements.txt").write_bytes(b" " * (REQUIREMENTS_BYTES_MAX + 1))
    with pytest.raises(PackageInvalid, match="exceeds"):
        pinned(tmp_path)
