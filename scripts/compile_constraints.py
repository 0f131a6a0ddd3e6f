"""Write `constraints/*.txt` anew: every version pinned, every file's hash, no address.

    python scripts/compile_constraints.py [--upgrade]

Needs `uv` in PATH (or named in UV). Universal: one file serves every supported Python and machine.
torch and what only its accelerator builds need are left out and installed by `scripts/make_venv.py`
(docs/adr/0003).
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FILES = {
    "base.txt": [],
    "all.txt": ["--extra", "server", "--extra", "train", "--extra", "dev", "--extra", "reference"],
}

LEFT_OUT = re.compile(r"^(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)(==|\s)")

HEADER = "# Made by scripts/compile_constraints.py; install with pip --require-hashes --no-deps.\n"


def compile_file(name: str, extras: list[str], upgrade: bool) -> None:
    """Compile one file in place; pins that are still allowed stay unless `upgrade`."""
    path = ROOT / "constraints" / name
    command = [
        os.environ.get("UV", "uv"), "pip", "compile", "pyproject.toml", *extras,
        "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url",
        "--no-emit-find-links", "--no-header", "--no-annotate", "--quiet",
        "--output-file", str(path), *(["--upgrade"] if upgrade else []),
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    path.write_text(HEADER + without_torch(path.read_text()))


def without_torch(text: str) -> str:
    """Drop the entries that `scripts/make_venv.py` installs, with their hash lines."""
    kept, is_dropping = [], False
    for line in text.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            is_dropping = bool(LEFT_OUT.match(line))
        if not is_dropping and not line.startswith("#"):
            kept.append(line)
    return "".join(kept)


def main() -> int:
    """Command-line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest allowed versions")
    arguments = parser.parse_args()
    for name, extras in FILES.items():
        compile_file(name, extras, arguments.upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
