"""On the real engine: answers of the benchmark's model follow from their seeds alone."""

import time
from pathlib import Path
from random import Random
from statistics import mean

import torch

from benchmarks.e2e import model
from benchmarks.e2e.delays.env import text_of
from domain.engine import EngineRefused, GenRequest, GenResult, RequestId, Sampling
from domain.ids import GroupId, RolloutId
from kv.rules import PLAIN, RANKED, KvRules
from workers.models.folder import HEAD, load_decoder, read_folder
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import pack

TURNS = 16

NUDGE = 8e-12
"""What eight steps at the benchmark's learning rate may change."""


def answers(
    folder: Path, *, slots: int, pages: int, rules: KvRules, nudge: float = 0.0
) -> list[tuple[int, ...]]:
    """Token ids of single turns, all asked for at once."""
    read = read_folder(folder)
    state = load_decoder(read).state_dict()
    state[HEAD] = state[HEAD] + nudge * torch.randn_like(state[HEAD])
    packed = pack(read.config, state, torch.device("cpu"))
    core = Core(
        packed,
        read.vocabulary,
        slots,
        KeySizes(pages, rules=rules),
        version=0,
        weights_sha="s",
        clock=time.monotonic,
    )
    found: dict[int, tuple[int, ...]] = {}
    for number in range(TURNS):

        def deliver(outcome: GenResult | EngineRefused, number: int = number) -> None:
            assert isinstance(outcome, GenResult)
            found[number] = outcome.token_ids

        core.submit(_request(folder, number), deliver)
    while len(found) < TURNS:
        core.step()
    return [found[number] for number in range(TURNS)]


def _request(folder: Path, number: int) -> GenRequest:
    read = read_folder(folder)
    prompt = read.vocabulary.encode(text_of(Random(number // 4), 64))
    return GenRequest(
        request_id=RequestId(f"q{number}"),
        rollout_id=RolloutId(f"ro_a_{number // 4:09d}_{number % 4:03d}"),
        group_id=GroupId(f"grp_a_{number // 4:09d}"),
        tenant="t",
        token_ids=prompt,
        sampling=Sampling(512, seed=number, stop_token_ids=read.chat.stop_token_ids),
        rank=float(number),
    )


def test_answers_are_the_same_in_any_batch_under_any_rules_and_after_training(
    tmp_path: Path,
) -> None:
    folder = model.build(tmp_path / "model")
    alone = answers(folder, slots=1, pages=256, rules=PLAIN)
    assert answers(folder, slots=16, pages=256, rules=RANKED) == alone
    assert answers(folder, slots=16, pages=40, rules=PLAIN) == alone
    assert answers(folder, slots=16, pages=40, rules=RANKED, nudge=NUDGE) == alone


def test_answers_end_by_themselves_at_drawn_lengths(tmp_path: Path) -> None:
    folder = model.build(tmp_path / "model")
    found = answers(folder, slots=16, pages=512, rules=PLAIN)
    end = read_folder(folder).chat.stop_token_ids[0]
    assert all(one[-1] == end for one in found)
    lengths = [len(one) for one in found]
    assert len(set(lengths)) > TURNS / 2
    # The mean of 16 geometric lengths is within three of its deviations.
    assert abs(mean(lengths) - model.ANSWER_TOKENS) < 3 * model.ANSWER_TOKENS / TURNS**0.5
