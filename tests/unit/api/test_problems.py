"""Problem documents: pointers and near names."""

import pytest
from pydantic import BaseModel, ValidationError

from api.problems import escaped, findings_of, near_names, not_found


class Inner(BaseModel):
    """A part."""

    size: int


class Outer(BaseModel):
    """A whole."""

    parts: dict[str, Inner]


def test_a_pointer_escapes_what_a_key_may_hold() -> None:
    assert escaped("a/b~c") == "a~1b~0c"
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"parts": {"a/b": {"size": "x"}}})
    (finding,) = findings_of(caught.value.errors())
    assert finding.pointer == "/parts/a~1b/size"


def test_only_the_leading_body_is_left_out_of_a_pointer() -> None:
    error = {"loc": ("body", "parts", "body"), "type": "missing", "msg": "Field required"}
    assert findings_of([error])[0].pointer == "/parts/body"


def test_the_place_in_broken_json_is_no_pointer() -> None:
    error = {"loc": ("body", 12), "type": "json_invalid", "msg": "JSON decode error"}
    assert findings_of([error])[0].pointer == ""


def test_near_names_are_few_and_near() -> None:
    known = ["calc", "calc2", "calculator", "calk", "weather"]
    near = near_names("clac", known)
    assert near.startswith(" Near: ")
    assert "calc" in near
    assert "weather" not in near
    assert near_names("zzzzzz", known) == ""


def test_an_unknown_object_is_named() -> None:
    problem = not_found("job", "job_x")
    assert (problem.status, problem.code) == (404, "not_found")
    assert "'job_x'" in problem.detail
