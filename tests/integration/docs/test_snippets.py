"""Every snippet of docs/ is at least well-formed; those of `docs/reference/client.md` run as they stand.

They run in a folder that has what they name, against a running platform.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support import requires
from tests.support.specs import small_job
from tests.support.stack import DIARY, TREE, Stack, running_stack
from workers.models.folder import builtin_path

FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

RUNS: Final = "docs/reference/client.md"

VENUS: Final = "import sys; sys.argv[0] = 'venus'; from venusrl.cli import main; main()"
"""The installed script, of this tree."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block."""

    file: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def snippets() -> list[Snippet]:
    """Every fenced block of the documentation that names its language."""
    found = []
    for path in [*sorted((TREE / "docs").rglob("*.md")), TREE / "README.md"]:
        text = path.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            name = str(path.relative_to(TREE))
            found.append(Snippet(name, line, match[1], match[2]))
    return found


@pytest.mark.parametrize("snippet", snippets(), ids=str)
def test_a_snippet_is_well_formed(snippet: Snippet) -> None:
    match snippet.language:
        case "python":
            ast.parse(snippet.text)
        case "json":
            json.loads(snippet.text)
        case "yaml":
            yaml.safe_load(snippet.text)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A running platform."""
    with running_stack() as stack:
        yield stack


@pytest.fixture
def workplace(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with everything that the snippets name."""
    del request
    shutil.copytree(DIARY, tmp_path / "my-environment")
    shutil.copytree(builtin_path("tiny-calc"), tmp_path / "model-folder")
    (tmp_path / "job.yaml").write_text(json.dumps(small_job("diary", stop={"max_steps": 1})))
    for split in ("train", "test"):
        lines = (json.dumps({"prompt": f"{split} {n}", "answer": "0"}) for n in range(3))
        (tmp_path / f"{split}.jsonl").write_text("".join(line + "\n" for line in lines))
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "snippet",
    [one for one in snippets() if one.file == RUNS and one.language in ("python", "sh")],
    ids=str,
)
@requires("postgres", "valkey", "bwrap")
def test_a_snippet_of_the_client_runs(snippet: Snippet, stack: Stack, workplace: Path) -> None:
    command = [sys.executable, "-c", snippet.text]
    if snippet.language == "sh":
        tool = f'venus() {{ "{sys.executable}" -c "$VENUS" "$@"; }}'
        command = ["sh", "-eu", "-c", f"{tool}\n{snippet.text}"]
    key = stack.admin.keys.create("docs", _project(stack))
    environ = {
        **os.environ,
        "PYTHONPATH": str(TREE),
        "VENUS": VENUS,
        "VENUS_API_URL": stack.client.base_url,
        "VENUS_API_KEY": key.secret,
    }
    done = subprocess.run(
        command, cwd=workplace, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{snippet.text}\n{done.stdout}\n{done.stderr}"


def _project(stack: Stack) -> str:
    return str(stack.query("select id from project limit 1")[0][0])
