"""Cores over a small model, stepped by hand, and what must hold after each step."""

import itertools
from collections.abc import Callable, Mapping

import torch

from domain.engine import (
    EngineRefused,
    Finish,
    GenRequest,
    GenResult,
)
from domain.ids import RolloutId
from domain.plan import TenantShare
from kv.rules import RANKED, KvRules
from tests.support.engines import CHARACTERS, decoder, reference_logprobs, request
from workers.models.vocab import char_vocabulary
from workers.rollout.embedded.admission import ANY_TOOL
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import pack
from workers.rollout.embedded.pages.audit import check
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes

MODEL = decoder()
PACKED = pack(MODEL.config, MODEL.state_dict(), torch.device("cpu"))

Answers = dict[str, GenResult]


def build(
    slots: int = 2,
    pages: int = 24,
    clock: Callable[[], float] | None = None,
    tiers: TierSizes = NO_TIERS,
    rules: KvRules = RANKED,
    *,
    tenants: tuple[TenantShare, ...] = (),
) -> Core:
    """Without a clock of the test's own a millisecond passes at each look at it."""
    ticks = itertools.count()
    clock = (lambda: next(ticks) * 1e-3) if clock is None else clock
    vocabulary = char_vocabulary(CHARACTERS)
    sizes = KeySizes(pages, tiers, rules, tenants)
    return Core(PACKED, vocabulary, slots, sizes, version=0, weights_sha="v0", clock=clock)


def submit(core: Core, asked: GenRequest, answers: Answers) -> None:
    def deliver(outcome: GenResult | EngineRefused) -> None:
        assert isinstance(outcome, GenResult), outcome
        assert asked.request_id not in answers, "answered twice"
        answers[asked.request_id] = outcome

    core.submit(asked, deliver)


def drain(core: Core) -> None:
    """Step to the end of all turns; no tool answers meanwhile, and nobody waits for one for long."""
    while core.active or core.waiting:
        core.step()
        assert_whole(core)
        if core.waiting and not core.has_work:
            core.keys.admission.gaps.add(ANY_TOOL, 1e9)


def assert_whole(core: Core) -> None:
    """The invariants that the modules of the rows and of the page table promise."""
    rows, n, table = core.rows, core.active, core.keys.table
    check(table)
    assert n <= core.slots
    assert (rows.kv_length[:n] < rows.length[:n]).all()
    parked = [t.parked.running for t in core.waiting.values() if t.parked is not None]
    open_turns = [*rows.running, *parked]
    assert {one.lease.key for one in open_turns} == set(table.leases)
    for row, running in enumerate(rows.running):
        pages = running.lease.pages
        assert rows.tables[row, : len(pages)].tolist() == pages
        assert (rows.tables[row, len(pages) :] == core.keys.arena.null_page).all()
        assert running.lease.length <= rows.kv_length[row] <= rows.room[row]


def pages_of(core: Core, rollout: str) -> int:
    trajectory = core.keys.table.tree.trajectories.get(RolloutId(rollout))
    return 0 if trajectory is None else len(trajectory.path)


def turn(core: Core, name: str, **fields: object) -> GenResult:
    answers: Answers = {}
    submit(core, request(name, **{"request_id": name, **fields}), answers)  # type: ignore[arg-type]
    drain(core)
    return answers[name]


LONG = tuple(i % 17 for i in range(30))
"""With what is sampled, three pages of a context."""


def assert_right(asked: Mapping[str, GenRequest], answers: Answers) -> None:
    """Every answer is what a full forward of the trainer's model gives for it."""
    assert set(answers) == set(asked)
    for name, result in answers.items():
        ids = asked[name].token_ids
        assert result.finish in (Finish.STOP, Finish.LENGTH)
        expected = reference_logprobs(MODEL, ids + result.token_ids)[len(ids) - 1 :]
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=2e-5, rtol=0)
