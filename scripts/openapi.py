"""Write `docs/reference/openapi.json` from the application, or check that it is up to date.

python scripts/openapi.py [--check]
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "openapi.json"


def render() -> str:
    """The document as committed: stable order, so that a diff shows only what changed."""
    from api.app import create_app

    return json.dumps(create_app().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    """Command-line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the file is out of date")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if importlib.util.find_spec("api") is None:
        sys.stderr.write("openapi: no api package in this tree\n")
        return 0
    text = render()
    if not arguments.check:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    sys.stderr.write(f"openapi: {TARGET.relative_to(ROOT)} is out of date: run `make openapi`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
