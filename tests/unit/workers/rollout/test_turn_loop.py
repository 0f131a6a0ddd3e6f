"""One rollout's try: turns, ends, recovery from the journal, versions (F4, F5, F14)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from domain.engine import NAN_LOGITS, Finish, KvMode, PauseMode, Refusal
from domain.events import TurnFinished, TurnSampled
from domain.schedule import WaitReason
from domain.states import End
from domain.wire import JournalTurn, TakeTurn
from infra.clock import ManualClock
from tests.support import eventually
from tests.unit.workers.rollout.builders import (
    AgentTwin,
    Rig,
    calculator,
    ids,
    limits,
    place,
    reply,
    scripted,
    text,
    tool,
)
from workers.rollout.agent_client import AgentRefusal
from workers.rollout.episode import Ending
from workers.rollout.outcomes import EngineFault, Superseded, TryEnded
from workers.rollout.scripted.script import ScriptedAnswer
from workers.rollout.turn_loop import turn_seed


def rig(clock: ManualClock, *answers: ScriptedAnswer | str, **changed: object) -> Rig:
    return Rig(scripted(*answers, clock=clock), clock, **changed)  # type: ignore[arg-type]


async def test_turns_run_until_the_environment_says_that_it_is_done(clock: ManualClock) -> None:
    one = rig(clock, "c1+1;", "c2+0;", "a2;")
    loop = one.loop()
    assert await loop.run() == Ending(End.DONE)
    assert text(loop.episode.segments()[0].token_ids) == "^1+1=c1+1;r2;c2+0;r2;a2;"
    assert loop.episode.drift == 0
    assert one.agent.replies_run == 3


async def test_every_request_holds_all_ids_before_it_and_fits_the_context(
    clock: ManualClock,
) -> None:
    one = rig(clock, "c1+1;", "c2+0;", "a2;", limits=limits(max_tokens_per_turn=90))
    await one.loop().run()
    prompts = [request.token_ids for request in one.engine.requests]
    assert [text(prompt) for prompt in prompts] == [
        "^1+1=",
        "^1+1=c1+1;r2;",
        "^1+1=c1+1;r2;c2+0;r2;",
    ]
    for request in one.engine.requests:
        assert len(request.token_ids) + request.sampling.max_tokens <= 96
        assert request.sampling.stop_token_ids == (ids(";")[0],)


async def test_each_turn_that_goes_on_is_reported_with_its_counts(clock: ManualClock) -> None:
    one = rig(clock, "c1+1;", "a2;")
    await one.loop().run()
    (finished,) = one.sent
    assert finished == TurnFinished(
        rollout_id=one.place.rollout_id,
        try_=1,
        hop=1,
        turn=1,
        tokens=13,
        sampled_tokens=5,
        oldest_version=3,
        tool_s=0.25,
    )


async def test_a_gap_is_reported_when_the_tool_has_begun_and_turns_count_from_one(
    clock: ManualClock,
) -> None:
    silent = AgentTwin(answer=lambda turn: None)
    one = rig(clock, "c1+1;", agent=silent)
    running = asyncio.create_task(one.loop().run())
    await eventually(lambda: one.sent)
    assert one.sent == [TurnSampled(one.place.rollout_id, 1, 1, 1, 10, 0.0)]
    assert [turn.token_ids for turn in silent.turns] == [ids("c1+1;")]
    await cancelled(running)


async def test_the_agent_hears_before_each_turn_that_it_is_generated_and_for_how_long(
    clock: ManualClock,
) -> None:
    slow = ScriptedAnswer(ids("c1+1;"), delay_s=4.0)
    one = rig(clock, slow, "a2;", place=place(rank=7))
    running = asyncio.create_task(one.loop().run())
    await eventually(lambda: one.agent.hints)
    assert one.agent.turns == [], "said before the turn, not with it"
    await eventually(lambda: bool(one.engine.requests))
    clock.advance(4.0)
    await running
    assert [(hint.turn, hint.hop, hint.rank) for hint in one.agent.hints] == [(0, 1, 7), (1, 1, 7)]
    assert [hint.expected_s for hint in one.agent.hints] == [0.0, 4.0]


async def test_the_next_host_tells_the_turn_that_was_answered_and_no_gap_that_goes_on(
    clock: ManualClock,
) -> None:
    one = rig(clock, "c1+1;", "c2+0;", agent=AgentTwin())
    one.agent.answer = lambda turn: calculator(turn) if turn.turn == 0 else None
    running = asyncio.create_task(one.loop().run())
    await eventually(lambda: len(one.agent.turns) == 2)
    await cancelled(running)
    one.sent.clear()
    loop = one.loop(hop=2)
    running = asyncio.create_task(loop.run())
    await eventually(lambda: loop.episode.intent is not None)
    await eventually(lambda: one.agent.hop == 2)
    assert one.sent == []
    assert (loop.episode.turns, loop.episode.finished_turns) == (2, 1)
    one.agent.turns[1] = reply(1, tool("2", "call_1_0"))
    await cancelled(running)
    await cancelled(asyncio.create_task(one.loop(hop=3).run()), after=lambda: one.sent)
    told = one.sent[0]
    assert isinstance(told, TurnFinished)
    assert (told.hop, told.turn, told.tool_s) == (3, 2, 0.5)


async def cancelled(
    running: "asyncio.Task[Ending]", after: Callable[[], object] = lambda: True
) -> None:
    """The host is gone once `after` holds."""
    await eventually(after)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_turn_cut_by_its_limit_ends_truncated_and_never_reaches_the_environment(
    clock: ManualClock,
) -> None:
    cut = ScriptedAnswer(ids("c12345+1"), finish=Finish.LENGTH)
    one = rig(clock, cut)
    assert await one.loop().run() == Ending(End.TRUNCATED, "max_tokens_per_turn")
    assert one.agent.turns == []


async def test_an_overlong_tool_reply_ends_as_context_overflow_and_spares_the_engine(
    clock: ManualClock,
) -> None:
    def flood(turn: TakeTurn) -> JournalTurn:
        return reply(turn.turn, tool("1" * 70_000))

    one = rig(clock, "c1+1;", agent=AgentTwin(answer=flood))
    ending = await one.loop().run()
    assert ending.end is End.CONTEXT_OVERFLOW
    assert "70000 characters" in (ending.cause or "")
    assert len(one.engine.requests) == 1
    assert one.engine.stats().refused == 0


async def test_a_malformed_call_gets_its_reply_and_the_rollout_goes_on(
    clock: ManualClock,
) -> None:
    taken = []

    def grumble(turn: TakeTurn) -> JournalTurn:
        taken.append(turn.assistant)
        calls = turn.assistant.get("tool_calls", ())
        assert isinstance(calls, (list, tuple))
        messages = tuple(tool("0", str(call["id"])) for call in calls)
        return reply(turn.turn, *messages, done=not calls)

    one = rig(clock, "c;", "a2;", agent=AgentTwin(answer=grumble))
    assert await one.loop().run() == Ending(End.DONE)
    calls = taken[0]["tool_calls"]
    assert isinstance(calls, list)
    (call,) = calls
    assert call["id"] == "call_0_0"
    assert call["error"].startswith("empty: ")
    assert "tool_calls" not in taken[1]


async def test_wall_time_ends_a_generation_that_has_sampled_nothing(clock: ManualClock) -> None:
    one = rig(clock, ScriptedAnswer(ids("a2;"), delay_s=1000.0))
    loop = one.loop()
    running = asyncio.create_task(loop.run())
    await eventually(lambda: one.engine.stats().active == 1)
    clock.advance(60.0)
    assert await running == Ending(End.TIMEOUT, "60 s")
    assert one.engine.stats().active == 0
    assert loop.episode.turns == 0


async def test_wall_time_ends_a_generation_with_the_tokens_that_it_had(
    clock: ManualClock,
) -> None:
    part = ScriptedAnswer(ids("a2"), finish=Finish.ABORT, delay_s=1000.0)
    one = rig(clock, part)
    loop = one.loop()
    running = asyncio.create_task(loop.run())
    await eventually(lambda: one.engine.stats().active == 1)
    clock.advance(60.0)
    assert await running == Ending(End.TIMEOUT, "60 s")
    assert text(loop.episode.segments()[0].token_ids) == "^1+1=a2"
    assert loop.episode.spans[-1].finish == "abort"


async def test_wall_time_ends_a_reply_that_never_comes(clock: ManualClock) -> None:
    one = rig(clock, "c1+1;", agent=AgentTwin(answer=lambda turn: None))
    loop = one.loop()
    running = asyncio.create_task(loop.run())
    await eventually(lambda: one.agent.turns)
    clock.advance(60.0)
    assert await running == Ending(End.TIMEOUT, "60 s")
    assert loop.episode.sampled_tokens == 5, "what was sampled and journalled is kept"


async def test_a_new_host_awaits_an_open_reply_and_samples_nothing_again(
    clock: ManualClock,
) -> None:
    agent = AgentTwin(answer=lambda turn: None)
    one = rig(clock, "c1+1;", "a2;", agent=agent)
    first = asyncio.create_task(one.loop().run())
    await eventually(lambda: agent.turns)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    agent.answer = AgentTwin().answer
    second = Rig(scripted("a2;", clock=clock), clock, agent)
    loop = second.loop(hop=2)
    assert await loop.run() == Ending(End.DONE)
    assert text(loop.episode.segments()[0].token_ids) == "^1+1=c1+1;r2;a2;"
    assert len(second.engine.requests) == 1, "only the turn after the journalled one"
    assert agent.replies_run == 2


async def test_a_rebuilt_buffer_equals_the_one_that_was_lost(clock: ManualClock) -> None:
    one = rig(clock, "c1+1;", "c2+0;", "a2;")
    first = one.loop()
    await first.run()
    one.agent.turns = one.agent.turns[:2]
    second = Rig(scripted("a2;", clock=clock), clock, one.agent).loop(hop=2)
    await second.run()
    assert second.episode.segments()[0] == first.episode.segments()[0]
    assert second.episode.messages == first.episode.messages


async def test_a_journal_that_ended_is_closed_without_sampling(clock: ManualClock) -> None:
    one = rig(clock, "a2;")
    await one.loop().run()
    requests = len(one.engine.requests)
    assert await one.loop(hop=2).run() == Ending(End.DONE)
    assert len(one.engine.requests) == requests


async def test_a_journal_with_a_hole_fails_the_try(clock: ManualClock) -> None:
    one = rig(clock, "a2;")
    one.agent.turns = [JournalTurn(1, (1,), (0.0,), (0,), "stop", True, (), False, 0.0)]
    with pytest.raises(TryEnded) as failed:
        await one.loop().run()
    assert failed.value.end is End.ENV_FAILED


async def test_an_opening_without_text_fails_the_try_and_spares_the_engine(
    clock: ManualClock,
) -> None:
    one = rig(clock, "a2;", agent=AgentTwin(opening=()))
    with pytest.raises(TryEnded, match="empty_prompt"):
        await one.loop().run()
    assert not one.engine.requests


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("env_failed", End.ENV_FAILED),
        ("sandbox_lost", End.SANDBOX_LOST),
        ("unknown", End.SANDBOX_LOST),
        ("intent", End.ENV_FAILED),
    ],
)
async def test_a_refusal_of_the_agent_ends_the_try_with_its_cause(
    reason: str, end: End, clock: ManualClock
) -> None:
    one = rig(clock, "a2;", agent=AgentTwin(refusal=AgentRefusal(reason, "because")))
    with pytest.raises(TryEnded) as failed:
        await one.loop().run()
    assert failed.value.end is end
    assert "because" in failed.value.cause


async def test_a_lost_agent_ends_the_try_as_a_lost_sandbox(clock: ManualClock) -> None:
    one = rig(clock, "a2;", agent=AgentTwin(lost=True))
    with pytest.raises(TryEnded) as failed:
        await one.loop().run()
    assert (failed.value.end, failed.value.cause) == (End.SANDBOX_LOST, "node_agent_lost")


async def test_a_newer_hop_silences_this_one(clock: ManualClock) -> None:
    one = rig(clock, "a2;", agent=AgentTwin(hop=5))
    with pytest.raises(Superseded):
        await one.loop().run()


async def test_an_error_of_the_engine_is_a_fault_of_the_process(clock: ManualClock) -> None:
    one = rig(clock, ScriptedAnswer(finish=Finish.ERROR, error="boom"))
    with pytest.raises(EngineFault, match="boom"):
        await one.loop().run()


async def test_logits_that_are_no_numbers_fail_the_try_and_not_the_process(
    clock: ManualClock,
) -> None:
    one = rig(clock, ScriptedAnswer(finish=Finish.ERROR, error=NAN_LOGITS))
    with pytest.raises(TryEnded) as failed:
        await one.loop().run()
    assert (failed.value.end, failed.value.cause) == (End.ENGINE_LOST, NAN_LOGITS)


async def test_a_closed_engine_is_a_fault_of_the_process(clock: ManualClock) -> None:
    one = rig(clock, "a2;")
    await one.engine.close()
    with pytest.raises(EngineFault):
        await one.loop().run()


async def test_a_full_queue_is_waited_for(clock: ManualClock) -> None:
    one = rig(clock, ScriptedAnswer(refusal=Refusal.QUEUE_FULL), "a2;")
    loop = one.loop()
    running = asyncio.create_task(loop.run())
    await eventually(lambda: one.engine.stats().refused == 1)
    await eventually(lambda: loop.phase is WaitReason.WAITS_FOR_SLOT)
    assert await advanced(clock, running) == Ending(End.DONE)


async def test_a_bad_request_fails_the_try_and_not_the_process(clock: ManualClock) -> None:
    one = rig(clock, ScriptedAnswer(refusal=Refusal.BAD_SAMPLING))
    with pytest.raises(TryEnded, match="engine_refused bad_sampling"):
        await one.loop().run()


async def test_cancelling_a_rollout_frees_its_slot_and_its_timer(clock: ManualClock) -> None:
    one = rig(clock, ScriptedAnswer(ids("a2;"), delay_s=1000.0))
    running = asyncio.create_task(one.loop().run())
    await eventually(lambda: one.engine.stats().active == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert one.engine.stats().active == 0
    assert len(asyncio.all_tasks()) == 1


async def test_tokens_keep_the_version_that_made_them_when_a_sync_lands_during_the_turn(
    clock: ManualClock,
) -> None:
    async def sync_lands(engine: object) -> None:
        await one.engine.pause(PauseMode.KEEP, KvMode.KEEP)
        one.engine._serving = type(one.engine._serving)(4, "sha4", 0)
        await one.engine.resume()

    one = rig(clock, ScriptedAnswer(ids("c1+1;"), delay_s=5.0), "a2;")
    loop = one.loop()
    running = asyncio.create_task(loop.run())
    await eventually(lambda: one.engine.stats().active == 1)
    await sync_lands(one.engine)
    clock.advance(5.0)
    await running
    sampled_versions = [v for v in loop.episode.segments()[0].versions if v >= 0]
    assert sampled_versions == [3] * 5 + [4] * 3
    assert loop.episode.oldest_version == 3


async def test_an_engine_without_a_policy_samples_nothing_until_it_has_one(
    clock: ManualClock,
) -> None:
    one = Rig(scripted("a2;", clock=clock, version=-1), clock)
    running = asyncio.create_task(one.loop().run())
    await eventually(lambda: one.agent.hop == 1)
    assert not one.engine.requests
    one.engine._serving = type(one.engine._serving)(0, "sha0", 0)
    one.gate.aim(None)
    assert await running == Ending(End.DONE)


async def test_an_evaluation_rollout_is_sampled_under_its_version_only(
    clock: ManualClock,
) -> None:
    one = rig(clock, "a2;", place=place(evaluation=True, pinned_version=3))
    assert await one.loop().run() == Ending(End.DONE)
    assert one.engine.requests[0].weights_sha == "sha3"


@pytest.mark.parametrize(
    "answer",
    [
        ScriptedAnswer(ids("a2;"), versions=(3, 3, 4)),
        ScriptedAnswer(refusal=Refusal.WEIGHTS_MISMATCH),
    ],
)
async def test_an_evaluation_rollout_with_a_token_of_another_version_fails_its_try(
    answer: ScriptedAnswer, clock: ManualClock
) -> None:
    one = rig(clock, answer, place=place(evaluation=True, pinned_version=3))
    with pytest.raises(TryEnded) as failed:
        await one.loop().run()
    assert (failed.value.end, failed.value.cause) == (End.ENGINE_LOST, "version_split")


async def test_an_evaluation_rollout_of_a_version_that_is_not_coming_fails_its_try(
    clock: ManualClock,
) -> None:
    one = rig(clock, "a2;", place=place(evaluation=True, pinned_version=9))
    with pytest.raises(TryEnded, match="version_split"):
        await one.loop().run()


async def test_an_evaluation_rollout_waits_for_the_version_that_is_on_its_way(
    clock: ManualClock,
) -> None:
    one = rig(clock, "a2;", place=place(evaluation=True, pinned_version=4))
    one.gate.aim(4)
    running = asyncio.create_task(one.loop().run())
    await eventually(lambda: one.agent.hop == 1)
    one.engine._serving = type(one.engine._serving)(4, "sha4", 0)
    one.gate.aim(None)
    assert await running == Ending(End.DONE)


def test_seeds_differ_by_turn_and_try_and_repeat_for_the_same_placement() -> None:
    seeds = {turn_seed(11, try_, turn) for try_ in (1, 2) for turn in range(6)}
    assert len(seeds) == 12
    assert turn_seed(11, 1, 0) == turn_seed(11, 1, 0)
    assert all(0 <= seed < 2**63 for seed in seeds)


async def advanced(clock: ManualClock, running: Awaitable[Ending]) -> Ending:
    """Let manual time pass in small steps until the task has ended."""
    task = asyncio.ensure_future(running)

    def step() -> bool:
        clock.advance(0.1)
        return task.done()

    await eventually(step)
    return await task
