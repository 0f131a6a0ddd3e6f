"""The JSON Schema of a job spec, for editors and for clients in other languages."""

from typing import Any, Final

from venusrl.models.job_spec import JobSpec

SCHEMA_ID: Final = "https://venusrl.dev/schemas/job-spec.v1.json"
"""Names this version of the form; the API serves it under /v1/jobs/schema."""


def job_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what a user writes; the server checks more against project and pool."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **JobSpec.model_json_schema(),
    }
