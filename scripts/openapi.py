"""Write the published documents from the code, or check that they are up to date.

python scripts/openapi.py [--check]

`docs/reference/openapi.json` comes from the application, `docs/reference/job-spec.schema.json` from the
model of the job spec.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def _text(document: Mapping[str, Any]) -> str:
    """A document as committed: stable order, so that a diff shows only what changed."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def render() -> str:
    """The OpenAPI document."""
    from api.app import create_app

    return _text(create_app().openapi())


def render_job_schema() -> str:
    """The JSON Schema of a job spec."""
    from venusrl.models.job_schema import job_schema

    return _text(job_schema())


DOCUMENTS: Final[Mapping[Path, Callable[[], str]]] = {
    REFERENCE / "openapi.json": render,
    REFERENCE / "job-spec.schema.json": render_job_schema,
}


def main() -> int:
    """Command-line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is out of date")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if importlib.util.find_spec("api") is None:
        sys.stderr.write("openapi: no api package in this tree\n")
        return 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    status = 0
    for path, made in DOCUMENTS.items():
        text = made()
        if not arguments.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.stderr.write(
                f"openapi: {path.relative_to(ROOT)} is out of date: run `make openapi`\n"
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
