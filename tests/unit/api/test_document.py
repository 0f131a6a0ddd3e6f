"""The OpenAPI document: whole, and honest about bodies, problems and streams."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.app import create_app
from api.bodies import ARCHIVES
from api.document import OPEN_PATHS


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document, as JSON."""
    return dict(json.loads(json.dumps(create_app().openapi())))


def references(value: Any) -> Iterator[str]:
    """Every $ref below a value."""
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_names_a_schema(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_answers_and_parts_of_the_spec_keep_their_own_schemas(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "score" in schemas["Evaluation"]["properties"]
    assert "every_steps" in schemas["SpecEvaluation"]["properties"]
    assert schemas["JobSpec"]["required"] == ["name", "model", "environments"]


def test_every_operation_says_problems_and_needs_a_key(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"4XX", "5XX"} <= set(operation["responses"]), (method, path)
            is_open = path in OPEN_PATHS
            keys: Any = None if is_open else [{"bearer": []}, {"header": []}]
            assert operation.get("security") == keys, (method, path)
            assert operation["summary"]
            assert operation["description"], (method, path)


def test_every_post_takes_an_idempotency_key(document: dict[str, Any]) -> None:
    without = [
        path
        for path, methods in document["paths"].items()
        if "post" in methods
        and "Idempotency-Key" not in {one["name"] for one in methods["post"]["parameters"]}
    ]
    assert without == ["/v1/jobs/validate"], "validation changes nothing"


def test_streams_and_files_are_described(document: dict[str, Any]) -> None:
    paths = document["paths"]
    events = paths["/v1/jobs/{job_id}/events"]["get"]["responses"]["200"]["content"]
    assert set(events) == {"application/json", "text/event-stream"}
    upload = paths["/v1/environments/{name}/versions"]["post"]["requestBody"]["content"]
    assert set(upload) == {*ARCHIVES}


def test_two_renderings_are_the_same() -> None:
    app = create_app()
    assert app.openapi() == app.openapi() == create_app().openapi()
