"""The OpenAPI document: what FastAPI cannot see of our routes is added here.

Bodies that our own code validates, problems instead of FastAPI's own error form, the event stream,
uploads and downloads, and how to authenticate.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from api.bodies import ARCHIVES
from api.examples import add_examples
from api.problems import CODES, MEDIA_TYPE
from domain.model_files import DESCRIPTION_FILES, INDEX_FILE, SHARD, WEIGHTS_FILE
from venusrl.models.common import ProblemDocument
from venusrl.models.job_spec import JobSpec
from venusrl.models.jobs import Event
from venusrl.models.models import ModelCreate

Json = dict[str, Any]

OPEN_PATHS: Final = frozenset({"/healthz", "/metrics", "/v1/jobs/schema"})
"""Routes that need no key."""

BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


MODEL_BODY: Final[Json] = {
    "application/json": {"schema": {"$ref": "#/components/schemas/ModelCreate"}},
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "required": ["name", *DESCRIPTION_FILES],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z][a-z0-9._-]{0,62}$"},
                **dict.fromkeys((*DESCRIPTION_FILES, WEIGHTS_FILE, INDEX_FILE), BINARY["schema"]),
            },
            "patternProperties": {f"^{SHARD.pattern}$": BINARY["schema"]},
            "anyOf": [{"required": [WEIGHTS_FILE]}, {"required": [INDEX_FILE]}],
            "additionalProperties": False,
        }
    },
}


def publish(app: FastAPI) -> None:
    """Make the application's document whole."""
    original = app.openapi

    def openapi() -> Json:
        document = original()
        if "Problem" not in document["components"]["schemas"]:
            _complete(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _complete(document: Json) -> None:
    schemas = document["components"]["schemas"]
    for name, model in ADDED:
        _add_schema(schemas, name, model)
    schemas["Problem"]["properties"]["code"]["enum"] = sorted(CODES)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    for path, operation in _operations(document):
        _describe_problems(operation)
        operation["parameters"] = [
            one
            for one in operation.get("parameters", ())
            if one["name"] not in ("authorization", "x-api-key")
        ]
        if path not in OPEN_PATHS:
            operation["security"] = [{"bearer": []}, {"header": []}]
    _describe_bodies(document["paths"])
    add_examples(document["paths"])


ADDED: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("Problem", ProblemDocument),
    ("JobSpec", JobSpec),
    ("Event", Event),
    ("ModelCreate", ModelCreate),
)
"""Records that no route names in its signature."""


def _add_schema(schemas: Json, name: str, model: type[BaseModel]) -> None:
    """Add a model; parts of the spec are `Spec...`, since answers have an Evaluation too."""
    prefix = "Spec" if model is JobSpec else ""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    for part, inner in schema.pop("$defs", {}).items():
        schemas[prefix + part] = inner
    schemas[name] = schema


def _operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _describe_problems(operation: Json) -> None:
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for described_below in ("422", "501"):
        operation["responses"].pop(described_below, None)
    for family, words in (("4XX", "Refused; `code` says why."), ("5XX", "Failed; try again.")):
        operation["responses"][family] = {"description": words, "content": {MEDIA_TYPE: problem}}


def _describe_bodies(paths: Json) -> None:
    for path in ("/v1/jobs", "/v1/jobs/validate"):
        spec = {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}}
        paths[path]["post"]["requestBody"] = {"required": True, "content": spec}
    upload = paths["/v1/environments/{name}/versions"]["post"]
    upload["requestBody"] = {"required": True, "content": dict.fromkeys(ARCHIVES, BINARY)}
    dataset = paths["/v1/datasets/{name}/versions"]["post"]
    splits = {"type": "object", "additionalProperties": BINARY["schema"], "minProperties": 1}
    dataset["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": splits}},
    }
    paths["/v1/models"]["post"]["requestBody"] = {"required": True, "content": deepcopy(MODEL_BODY)}
    file = paths["/v1/sandboxes/{sandbox_id}/files"]
    file["put"]["requestBody"] = {
        "required": True,
        "content": {"application/octet-stream": BINARY},
    }
    file["get"]["responses"]["200"] = {
        "description": "The file.",
        "content": {"application/octet-stream": BINARY},
    }
    events = paths["/v1/jobs/{job_id}/events"]["get"]["responses"]["200"]["content"]
    # One server-sent event's data; the stream ends with an event named `end`.
    events["text/event-stream"] = {"itemSchema": {"$ref": "#/components/schemas/Event"}}
    export = paths["/v1/jobs/{job_id}/rollouts/export"]["get"]["responses"]
    export["200"] = {
        "description": "One record a rollout.",
        "content": {
            "application/x-ndjson": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": BINARY,
        },
    }
    download = paths["/v1/checkpoints/{checkpoint_id}/files/{name}"]["get"]["responses"]
    for status, words in (("200", "The whole file."), ("206", "The asked part.")):
        download[status] = {
            "description": words,
            "content": {"application/octet-stream": BINARY},
        }
