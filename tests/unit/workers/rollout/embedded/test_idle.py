"""What an engine does that runs nothing: it waits for tools that end soon, and for no others."""

from dataclasses import replace

import pytest

from domain.ids import RolloutId
from kv.ranks import RankClass, compose
from kv.rules import RANKED, Gaps, KvRules
from tests.support.engines import request
from tests.unit.workers.rollout.embedded.cores import Answers, build, drain, submit, turn
from workers.rollout.embedded.admission import ANY_TOOL, Decision
from workers.rollout.embedded.core import GAP_LOOK_S, Core
from workers.rollout.embedded.pages.tree import EvictReason

PAGE_S = 0.01
TOOL_S = 0.1
RANK = float(compose(RankClass.CRITICAL, 1, 0))
BETTER = float(compose(RankClass.CRITICAL, 0, 0))

KEPT = tuple(2 + n % 14 for n in range(80))
"""Six of eleven pages, with what is sampled."""

WAITS = (1,) * 84
"""As many: not beside the others."""


def idle_core(
    clock: list[float], rules: KvRules = RANKED, known: int = 8
) -> tuple[Core, tuple[int, ...]]:
    """An engine on which a rollout's tool runs since 0 s, with that one's context, and a turn waits."""
    core = build(2, 11, lambda: clock[0], rules=rules)
    found = turn(core, "gap", ids=KEPT, rollout_id="gap", rank=RANK, max_tokens=4)
    core.keys.admission.page_s = PAGE_S
    for _ in range(known):
        core.keys.admission.gaps.add(ANY_TOOL, TOOL_S)
    submit(core, request("waits", WAITS, rank=BETTER, max_tokens=8), {})
    return core, (*KEPT, *found.token_ids)


def works(core: Core) -> bool:
    """Whether its thread would go on."""
    return core.has_work


def decided(core: Core) -> Decision:
    for ticket in core.waiting.values():
        core.keys.prepare(ticket, core.served_sha(ticket))
    running = core.rows.running
    return core.keys.admission.decided(core.clock(), core.waiting.values(), running, 2)


@pytest.mark.parametrize("known", [0, 8], ids=["no tool ever answered", "eight tools answered"])
@pytest.mark.parametrize(("elapsed_s", "waits"), [(0.01, True), (0.2, True), (0.3, False)])
def test_an_idle_engine_waits_while_a_tool_will_end_before_its_pages_could_be_back(
    elapsed_s: float, waits: bool, known: int
) -> None:
    """Six pages are worth 3.5 x 60 ms; a tool that took longer than all others takes as long again."""
    clock = [0.0]
    core, _ = idle_core(clock, known=known)
    clock[0] = elapsed_s
    decision = decided(core)
    assert decision.is_for_gaps is waits
    assert len(decision.admitted) == (not waits)


def test_a_gap_that_stays_until_somebody_needs_the_room_is_not_waited_for() -> None:
    core, _ = idle_core([0.0], replace(RANKED, gaps=Gaps.EVICTABLE))
    assert len(decided(core).admitted) == 1


def test_it_looks_again_when_a_tool_answers_and_after_a_while() -> None:
    clock = [0.0]
    core, context = idle_core(clock)
    answers = Answers()
    core.step()
    assert not works(core)
    assert not core.active
    assert core.expire() == GAP_LOOK_S, "the thread sleeps so long, not in a busy loop"
    clock[0] = GAP_LOOK_S
    assert works(core)
    core.step()
    assert not works(core)
    submit(core, request("gap", (*context, 3), rollout_id="gap", rank=RANK, max_tokens=4), answers)
    assert works(core)
    core.step()
    assert [one.ticket.request.rollout_id for one in core.rows.running] == ["gap"]
    drain(core)
    assert set(answers) == {"req_gap"}
    assert not core.waiting


def test_of_siblings_in_one_class_who_has_more_than_the_prompt_goes_first() -> None:
    """Both share 3 of 8 pages; the better ranked one lost its own, and there is room for one."""
    core = build(2, 8)
    prompt = tuple(2 + n % 16 for n in range(48))
    contexts = {}
    for name, rank in (("lost", BETTER), ("has", RANK)):
        found = turn(
            core, name, ids=(*prompt, ord(name[0]) % 17), rollout_id=name, rank=rank, max_tokens=20
        )
        contexts[name] = (*prompt, ord(name[0]) % 17, *found.token_ids)
    tree = core.keys.table.tree
    while len(path := tree.trajectories[RolloutId("lost")].path) > 3:
        tree._leave(path[-1], EvictReason.PROMPT)
    answers = Answers()
    for name, rank in (("lost", BETTER), ("has", RANK)):
        ids = (*contexts[name], 1)
        submit(core, request(name, ids, rollout_id=name, rank=rank, max_tokens=20), answers)
    decision = decided(core)
    assert [one.request.rollout_id for one in decision.admitted] == ["has"]
    drain(core)
    assert set(answers) == {"req_lost", "req_has"}
