"""What only the scripted engine does: it replays a script, on a clock that the test holds."""

import asyncio
import json
from pathlib import Path

import pytest

from domain.engine import EngineRefused, Finish, Refusal, VersionSpan
from domain.ids import RolloutId
from infra.clock import ManualClock
from tests.support.engines import request
from tests.support.waiting import eventually
from workers.rollout.scripted.engine import ScriptedEngine, ScriptedSizes
from workers.rollout.scripted.script import Script, ScriptedAnswer, read_script


def engine(script: Script, clock: ManualClock | None = None) -> ScriptedEngine:
    return ScriptedEngine("s", ScriptedSizes(20, 96, 2), script, clock or ManualClock())


async def test_answers_are_replayed_in_order_and_the_last_one_stays() -> None:
    script = Script((ScriptedAnswer((1,), (-0.5,)), ScriptedAnswer((2, 3), versions=(4, 5))))
    replaying = engine(script)
    first, second, third = [
        await replaying.generate(request(str(i), rollout_id="r")) for i in "abc"
    ]
    assert (first.token_ids, first.logprobs) == ((1,), (-0.5,))
    assert second.version_spans == (VersionSpan(0, 1, 4), VersionSpan(1, 2, 5))
    assert third.token_ids == second.token_ids
    assert [r.request_id for r in replaying.requests] == ["req_a", "req_b", "req_c"]


async def test_each_rollout_has_its_own_place_and_the_longest_name_wins() -> None:
    script = Script(
        default=(ScriptedAnswer((1,)),),
        by_rollout={"_001": (ScriptedAnswer((2,)),), "3_001": (ScriptedAnswer((3,)),)},
    )
    replaying = engine(script)
    results = [
        await replaying.generate(request(name, rollout_id=name))
        for name in ("ro_x_0002_001", "ro_x_0003_001", "ro_x_0003_000")
    ]
    assert [r.token_ids for r in results] == [(2,), (3,), (1,)]


async def test_delays_pass_on_the_given_clock() -> None:
    clock = ManualClock()
    replaying = engine(Script((ScriptedAnswer((1,), delay_s=5.0, finish=Finish.LENGTH),)), clock)
    answer = asyncio.create_task(replaying.generate(request("a", rollout_id="r")))
    await eventually(lambda: replaying.stats().active == 1)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not answer.done()
    clock.advance(0.2)
    assert (await answer).finish is Finish.LENGTH


async def test_a_scripted_refusal_counts_as_a_call() -> None:
    script = Script((ScriptedAnswer(refusal=Refusal.QUEUE_FULL), ScriptedAnswer((1,))))
    replaying = engine(script)
    with pytest.raises(EngineRefused):
        await replaying.generate(request("a", rollout_id="r"))
    assert (await replaying.generate(request("b", rollout_id="r"))).token_ids == (1,)


def test_a_script_is_read_from_json(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    record = {
        "default": [{"token_ids": [1, 2], "finish": "length", "delay_s": 0.5}],
        "by_rollout": {"_003": [{"refusal": "queue_full"}]},
        "mismatched_versions": [2],
    }
    path.write_text(json.dumps(record))
    script = read_script(path)
    assert script.answer(RolloutId("ro_1"), 7) == ScriptedAnswer(
        (1, 2), finish=Finish.LENGTH, delay_s=0.5
    )
    assert script.answer(RolloutId("ro_1_003"), 0).refusal is Refusal.QUEUE_FULL
    assert script.mismatched_versions == {2}
