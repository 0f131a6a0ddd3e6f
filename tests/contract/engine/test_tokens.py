"""What the embedded engine samples, held against a full forward of the trainer's model."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from domain.engine import Finish, GenResult, PauseMode
from tests.contract.engine.conftest import Small
from tests.support.engines import decoder, model_folder, reference_logprobs, request
from tests.support.waiting import eventually
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits

PROMPTS = [
    (10, 1, 2, 11, 3, 4, 12),
    (10,),
    (10, 9, 9, 11, 8, 8, 11, 7, 7, 11, 6, 6, 12, 13, 9, 9, 11, 8, 8, 16),
    tuple(range(17)) * 9,
]
"""Short, shortest, middle, and one that takes two prefill chunks."""


async def generate_all(engine: EmbeddedEngine, **fields: object) -> list[GenResult]:
    requests = [
        request(str(i), ids, seed=i, max_tokens=40, **fields) for i, ids in enumerate(PROMPTS)
    ]
    return list(await asyncio.gather(*(engine.generate(r) for r in requests)))


async def test_logprobs_equal_those_of_a_full_forward(
    embedded: EmbeddedEngine, small: Small
) -> None:
    for ids, result in zip(PROMPTS, await generate_all(embedded), strict=True):
        expected = reference_logprobs(small.model, ids + result.token_ids)[len(ids) - 1 :]
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)


async def test_at_temperature_0_6_the_first_importance_ratio_is_one(
    embedded: EmbeddedEngine, small: Small
) -> None:
    for ids, result in zip(PROMPTS, await generate_all(embedded, temperature=0.6), strict=True):
        expected = reference_logprobs(small.model, ids + result.token_ids, 0.6)[len(ids) - 1 :]
        ratio = (expected - torch.tensor(result.logprobs)).exp()
        assert float((ratio - 1.0).abs().max()) < 1e-3


async def test_top_p_reports_the_renormalised_distribution(
    embedded: EmbeddedEngine, small: Small
) -> None:
    for ids, result in zip(PROMPTS, await generate_all(embedded, top_p=0.5), strict=True):
        whole = reference_logprobs(small.model, ids + result.token_ids)[len(ids) - 1 :]
        assert (torch.tensor(result.logprobs) >= whole - 1e-6).all()
        assert (torch.tensor(result.logprobs) <= 1e-6).all()


async def test_greedy_decoding_takes_the_most_probable_token(
    embedded: EmbeddedEngine, small: Small
) -> None:
    for ids, result in zip(PROMPTS, await generate_all(embedded, temperature=0.0), strict=True):
        with torch.inference_mode():
            logits = small.model(torch.tensor([ids + result.token_ids]))[0, len(ids) - 1 : -1]
        assert tuple(logits.argmax(-1).tolist()) == result.token_ids


async def test_a_seed_gives_the_same_ids_alone_and_in_any_batch(embedded: EmbeddedEngine) -> None:
    together = await generate_all(embedded)
    for i, ids in enumerate(PROMPTS):
        alone = await embedded.generate(request(f"alone{i}", ids, seed=i, max_tokens=40))
        assert alone.token_ids == together[i].token_ids


async def test_a_neighbour_with_other_sampling_changes_nothing(embedded: EmbeddedEngine) -> None:
    alone = await embedded.generate(request("a", seed=3, max_tokens=30))
    mixed = await asyncio.gather(
        embedded.generate(request("b", seed=3, max_tokens=30)),
        embedded.generate(request("c", seed=4, max_tokens=30, temperature=0.0)),
        embedded.generate(request("d", seed=5, max_tokens=30, top_p=0.3, temperature=1.7)),
    )
    assert mixed[0].token_ids == alone.token_ids


async def test_different_seeds_give_different_ids(embedded: EmbeddedEngine) -> None:
    results = [await embedded.generate(request(str(s), seed=s, max_tokens=20)) for s in range(4)]
    assert len({r.token_ids for r in results}) == 4


async def test_samples_follow_the_distribution(embedded: EmbeddedEngine, small: Small) -> None:
    ids, draws = PROMPTS[0], 2000
    results = await asyncio.gather(
        *(embedded.generate(request(str(s), ids, seed=s, max_tokens=1)) for s in range(draws))
    )
    counts = np.bincount([r.token_ids[0] for r in results], minlength=20)
    with torch.inference_mode():
        expected = small.model(torch.tensor([ids]))[0, -1].softmax(-1).numpy() * draws
    chi_square = float((np.square(counts - expected) / expected).sum())
    assert chi_square < 50.0  # 19 degrees of freedom: exceeded once in 10,000 right samplers


async def test_a_stop_token_ends_a_turn_and_belongs_to_it(embedded: EmbeddedEngine) -> None:
    whole = await embedded.generate(request("a", seed=1, max_tokens=40))
    stop = whole.token_ids[7]
    first = whole.token_ids.index(stop)
    result = await embedded.generate(request("b", seed=1, max_tokens=40, stop_token_ids=(stop,)))
    assert result.finish is Finish.STOP
    assert result.token_ids == whole.token_ids[: first + 1]
    assert len(result.logprobs) == first + 1


async def test_a_turn_at_its_limit_says_length_and_the_end_token_at_the_limit_says_stop(
    embedded: EmbeddedEngine,
) -> None:
    whole = await embedded.generate(request("a", seed=1, max_tokens=6))
    assert (whole.finish, len(whole.token_ids)) == (Finish.LENGTH, 6)
    last = whole.token_ids[-1]
    if last in whole.token_ids[:-1]:
        pytest.fail("choose another seed: the last token occurs earlier")
    result = await embedded.generate(request("b", seed=1, max_tokens=6, stop_token_ids=(last,)))
    assert (result.finish, len(result.token_ids)) == (Finish.STOP, 6)


async def test_a_stop_string_over_several_tokens_ends_a_turn(
    embedded: EmbeddedEngine, small: Small
) -> None:
    whole = await embedded.generate(request("a", seed=1, max_tokens=40))
    text = small.folder.vocabulary.decode(whole.token_ids[5:8])
    result = await embedded.generate(request("b", seed=1, max_tokens=40, stop=(text,)))
    assert result.finish is Finish.STOP
    assert result.token_ids == whole.token_ids[:8]


async def test_the_padding_token_is_an_ordinary_token(
    embedded: EmbeddedEngine, small: Small
) -> None:
    pad = small.folder.vocabulary.pad_id
    ids = (10, pad, pad, 1, pad)
    result = await embedded.generate(request("a", ids, seed=2, max_tokens=60))
    expected = reference_logprobs(small.model, ids + result.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)
    assert pad in result.token_ids
    stopped = await embedded.generate(
        request("b", ids, seed=2, max_tokens=60, stop_token_ids=(pad,))
    )
    assert stopped.token_ids == result.token_ids[: result.token_ids.index(pad) + 1]


async def test_the_next_turn_computes_only_what_is_new(
    embedded: EmbeddedEngine, small: Small
) -> None:
    first = await embedded.generate(request("a", rollout_id="ro", max_tokens=10))
    ids = (*PROMPTS[0], *first.token_ids, 15, 1, 2, 16)
    second = await embedded.generate(request("b", ids, rollout_id="ro", max_tokens=10))
    assert second.cached_tokens == len(PROMPTS[0]) + len(first.token_ids) - 1
    expected = reference_logprobs(small.model, ids + second.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(second.logprobs), expected, atol=1e-5, rtol=0)


async def test_a_rewritten_history_is_computed_anew_from_where_it_differs(
    embedded: EmbeddedEngine, small: Small
) -> None:
    first = await embedded.generate(request("a", rollout_id="ro", max_tokens=10))
    ids = (*PROMPTS[0], first.token_ids[0], (first.token_ids[1] + 1) % 17, 3, 3)
    second = await embedded.generate(request("b", ids, rollout_id="ro", max_tokens=10))
    assert second.cached_tokens == len(PROMPTS[0]) + 1
    expected = reference_logprobs(small.model, ids + second.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(second.logprobs), expected, atol=1e-5, rtol=0)


async def test_keys_never_reach_another_rollout_or_outlive_a_release(
    embedded: EmbeddedEngine,
) -> None:
    await embedded.generate(request("a", rollout_id="ro_1"))
    other = await embedded.generate(request("b", rollout_id="ro_2"))
    assert other.cached_tokens == 0
    embedded.release(request("a", rollout_id="ro_1").rollout_id)
    again = await embedded.generate(request("c", rollout_id="ro_1"))
    assert again.cached_tokens == 0


async def test_evicted_keys_are_computed_anew_with_the_same_result(
    small: Small, tmp_path: Path
) -> None:
    engine = EmbeddedEngine("small", small.folder, EngineLimits(slots=2, pages=4))
    first = await engine.generate(request("a", rollout_id="ro"))
    await asyncio.gather(*(engine.generate(request(str(i))) for i in range(6)))
    ids = (*PROMPTS[0], *first.token_ids, 15, 1, 16)
    second = await engine.generate(request("b", ids, rollout_id="ro", max_tokens=10))
    assert second.cached_tokens == 0
    assert engine.stats().evictions > 0
    expected = reference_logprobs(small.model, ids + second.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(second.logprobs), expected, atol=1e-5, rtol=0)
    await engine.close()


async def test_more_turns_than_slots_all_end_right(small: Small) -> None:
    engine = EmbeddedEngine("small", small.folder, EngineLimits(slots=3, pages=40))
    requests = [
        request(str(i), PROMPTS[i % 4], seed=i, max_tokens=1 + (7 * i) % 23) for i in range(40)
    ]
    results = await asyncio.gather(*(engine.generate(r) for r in requests))
    for asked, result in zip(requests, results, strict=True):
        ids = asked.token_ids
        expected = reference_logprobs(small.model, ids + result.token_ids)[len(ids) - 1 :]
        assert len(result.token_ids) == asked.sampling.max_tokens
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)
    await eventually(lambda: engine.stats().active == 0)
    await engine.close()


async def test_a_tied_model_gives_the_logprobs_of_its_own_head(tmp_path: Path) -> None:
    model = decoder(4, tied=True)
    engine = EmbeddedEngine("tied", model_folder(tmp_path / "tied", model), EngineLimits(2))
    result = await engine.generate(request(max_tokens=30))
    ids = request().token_ids
    expected = reference_logprobs(model, ids + result.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)
    await engine.pause(PauseMode.KEEP)
    await engine.close()
