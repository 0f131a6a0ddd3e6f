"""Numbers and booleans of request bodies are what they say: no `true` for 1, no `"5"` for 5."""

from collections.abc import Iterator
from datetime import UTC, datetime
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from venusrl.models._base import Wire
from venusrl.models.checkpoints import CheckpointPatch, GenerateRequest
from venusrl.models.environments import EnvironmentTest
from venusrl.models.jobs import JobPatch
from venusrl.models.tenancy import KeyCreate, KeyRotate
from venusrl.models.webhooks import WebhookCreate, WebhookPatch, WebhookRotate


def requests() -> list[type[Wire]]:
    """Every model of a request, imported above or by them."""
    found, left = [], [Wire]
    while left:
        made = left.pop().__subclasses__()
        found += made
        left += made
    return found


def scalars(annotation: Any) -> Iterator[type]:
    """Numbers and booleans among the branches of an annotation."""
    if annotation in (int, float, bool):
        yield annotation
    if get_origin(annotation) in (Union, UnionType):
        for branch in get_args(annotation):
            yield from scalars(branch)


FIELDS = [
    (model, name, kind)
    for model in requests()
    for name, field in model.model_fields.items()
    for kind in scalars(field.annotation)
]


@pytest.mark.parametrize(
    ("model", "name", "kind"), FIELDS, ids=[f"{m.__name__}.{n}-{k.__name__}" for m, n, k in FIELDS]
)
def test_nothing_is_read_as_a_number_or_a_boolean_that_is_none(
    model: type[BaseModel], name: str, kind: type
) -> None:
    wrong: list[Any] = ["1", "true"] + ([1, 0] if kind is bool else [True])
    for value in wrong:
        with pytest.raises(ValidationError) as refused:
            model.model_validate({name: value})
        assert any(error["loc"][:1] == (name,) for error in refused.value.errors())


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (JobPatch, {"max_steps": 5, "budget": {"max_wall_hours": 2}, "labels": {"a": "b"}}),
        (CheckpointPatch, {"keep": True, "ttl_days": None}),
        (GenerateRequest, {"prompt": "1+1", "temperature": 1, "seed": 3, "max_tokens": 8}),
        (EnvironmentTest, {"tasks": 2, "temperature": 0.5}),
        (WebhookCreate, {"url": "https://a.example", "types": ["*"], "active": False}),
        (WebhookPatch, {"active": None}),
        (WebhookRotate, {"grace_s": 60}),
        (KeyRotate, {"grace_s": 60}),
    ],
)
def test_what_is_right_stays_right(model: type[BaseModel], body: dict[str, Any]) -> None:
    assert model.model_validate(body).model_dump(exclude_unset=True).keys() == body.keys()


def test_a_time_is_text_with_a_zone() -> None:
    read = KeyCreate.model_validate({"name": "k", "expires_at": "2027-01-01T01:00:00+01:00"})
    assert read.expires_at == datetime(2027, 1, 1, tzinfo=UTC)
    assert KeyCreate(name="k", expires_at=datetime(2027, 1, 1, tzinfo=UTC)).expires_at is not None
    for wrong in (1893456000, True, "1893456000", "2027-01-01", "2027-01-01T00:00:00", "soon"):
        with pytest.raises(ValidationError):
            KeyCreate.model_validate({"name": "k", "expires_at": wrong})
