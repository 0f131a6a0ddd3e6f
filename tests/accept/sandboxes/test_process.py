"""Times of the `process` runtime: a group's forks with their first answers, one command, a pause.

Shared machines run this: the best of some rounds counts, all are printed with `-s`.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from sandboxes.ports import Sandbox
from sandboxes.runtimes.process import ProcessRuntime
from tests.support.requirements import requires
from tests.support.sandboxes import process_runtime, python, shell, spec

pytestmark = [pytest.mark.accept, requires("zygote")]

MEMBERS: Final = 16
ROUNDS: Final = 5
GROUP_S_MAX: Final = 0.5
"""Sixteen forks and the first answer of each, in all, the zygote being warm."""

CALLS: Final = 200
CALL_P50_S_MAX: Final = 0.010
IDLE_BYTES_MAX: Final = 3 << 20
PAUSE_S_MAX: Final = 0.1


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    async with process_runtime(tmp_path) as made:
        began = time.perf_counter()
        await made.fork([spec(MEMBERS)])
        print(f"\nfirst sandbox with its zygote: {time.perf_counter() - began:.3f} s")
        assert made.zygote_failure is None
        yield made


async def group(runtime: ProcessRuntime) -> tuple[tuple[Sandbox, ...], float, float]:
    """A group, the time of its forks, and the time until its last first answer."""
    began = time.perf_counter()
    made = await runtime.fork([spec(index) for index in range(MEMBERS)])
    forked = time.perf_counter() - began
    answers = await asyncio.gather(*(python(one, "print(1)") for one in made))
    assert [one.stdout for one in answers] == [b"1\n"] * MEMBERS
    return made, forked, time.perf_counter() - began


async def test_sixteen_forks_and_first_answers(runtime: ProcessRuntime) -> None:
    best = GROUP_S_MAX * 10
    for _ in range(ROUNDS):
        made, forked, answered = await group(runtime)
        idle = max(one.stats().private_bytes for one in made)
        print(f"{MEMBERS} forks {forked:.3f} s, answers {answered:.3f} s, private {idle >> 10} KiB")
        best = min(best, answered)
        assert idle < IDLE_BYTES_MAX
        await asyncio.gather(*(runtime.destroy(one.key) for one in made))
    assert best < GROUP_S_MAX


@pytest.mark.parametrize("kind", ["exec", "python"])
async def test_one_call_there_and_back(runtime: ProcessRuntime, kind: str) -> None:
    (made,) = await runtime.fork([spec(0)])
    medians = []
    for _ in range(ROUNDS):
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            await (shell(made, "true") if kind == "exec" else python(made, "1"))
            times.append(time.perf_counter() - began)
        deciles = statistics.quantiles(times, n=10)
        medians.append(statistics.median(times))
        print(f"{kind}: p50 {medians[-1] * 1e3:.2f} ms, p90 {deciles[-1] * 1e3:.2f} ms")
    assert min(medians) < CALL_P50_S_MAX


async def test_a_pause_and_a_resume(runtime: ProcessRuntime) -> None:
    (made,) = await runtime.fork([spec(0)])
    await shell(made, "for i in 1 2 3 4; do sleep 60 & done; echo")
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await runtime.pause(made.key)
        await runtime.resume(made.key)
        times.append(time.perf_counter() - began)
    print(f"pause and resume of 5 processes: p50 {statistics.median(times) * 1e3:.2f} ms")
    assert statistics.median(times) < PAUSE_S_MAX
