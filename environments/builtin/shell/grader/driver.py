"""Calls the agent's functions with the inputs of one task's hidden tests and prints the results.

Runs in the grading sandbox only. It knows inputs, never what they should give. An exception of the
agent's code is a result too, and equals no expected one.
"""

import importlib
import json
import os
import resource
import sys
from pathlib import Path

MEMORY_BYTES = 256 << 20
"""Below the sandbox's own: a solution that eats memory fails its test and not its grader."""


def main(task: str) -> None:
    """Say that we run, then import and call what the agent wrote, with its output thrown away."""
    calls = calls_of(task)
    answer = os.dup(1)
    os.write(answer, b"driver ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.path.insert(0, os.getcwd())
    results = [outcome(*call) for call in calls]
    os.write(answer, json.dumps(results).encode() + b"\n")


def calls_of(task: str) -> list[tuple[str, str, list[object]]]:
    """Module, function and arguments of each hidden test of a task."""
    with Path(__file__).with_name("hidden.jsonl").open(encoding="ascii") as lines:
        for line in lines:
            record = json.loads(line)
            if record["task"] == task:
                return [tuple(call) for call in record["calls"]]
    raise SystemExit(f"no hidden tests of {task}")


def outcome(module: str, function: str, arguments: list[object]) -> object:
    """What one call gives, as JSON can say it."""
    try:
        result = getattr(importlib.import_module(module), function)(*arguments)
        return json.loads(json.dumps(result))
    except BaseException as error:  # noqa: BLE001 - the agent's code may raise anything
        return {"raised": type(error).__name__}


if __name__ == "__main__":
    main(sys.argv[1])
