"""Text of specs: scalars of YAML 1.2, and documents that would cost more than a spec may."""

from collections.abc import Callable
from typing import Any

import pytest

from venusrl._spec import laid_over, parse_json, parse_spec
from venusrl.client import SpecUnreadable
from venusrl.env.host.manifest import PackageInvalid, parse_manifest

LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)

ITSELF = "labels: &a {b: *a}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("017", 17), ("0o17", 15), ("0x1F", 31), ("-5", -5), ("+5", 5), ("1:30", "1:30"),
        ("1_000", "1_000"), ("0b11", "0b11"), ("3e-4", 3e-4), ("yes", "yes"), ("true", True),
        ("2026-01-01", "2026-01-01"), ("'17'", "17"), ("1.5", 1.5), ("null", None),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert parse_spec(f"seed: {text}") == {"seed": value}
    assert laid_over({}, [f"seed={text}"]) == {"seed": value}


@pytest.mark.parametrize(
    "read",
    [
        lambda: parse_spec(LAUGHS),
        lambda: parse_spec(ITSELF),
        lambda: parse_spec("a: " + "[" * 3000 + "]" * 3000),
        lambda: parse_spec("a: " + "[" * 150 + "]" * 150),
        lambda: parse_spec("a: " + "9" * 5000),
        lambda: parse_json('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"),
        lambda: parse_json('{"a": ' + "9" * 5000 + "}"),
        lambda: laid_over({}, ["a=" + "[" * 3000]),
        lambda: laid_over({}, ["a=" + "9" * 5000]),
    ],
    ids=lambda _: "",
)
def test_a_document_that_no_spec_is_gets_a_typed_refusal(read: Callable[[], Any]) -> None:
    with pytest.raises(SpecUnreadable) as refused:
        read()
    assert len(str(refused.value)) < 1000


def test_a_manifest_of_any_depth_is_a_finding() -> None:
    for text in ("a = " + "[" * 5000 + "]" * 5000, "a = " + "9" * 5000):
        with pytest.raises(PackageInvalid):
            parse_manifest(text)
