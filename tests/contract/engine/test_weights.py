"""Weight updates of the embedded engine: in flight, proven by a probe, never by halves."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from domain.engine import (
    GenResult,
    KvMode,
    PauseMode,
    Probe,
    ProbeSequence,
    Refusal,
    RequestId,
    SyncFailed,
)
from tests.contract.engine.conftest import LONG_CONTEXT, Small
from tests.support.engines import decoder, model_folder, published, reference_logprobs, request
from tests.support.waiting import eventually
from workers.models.decoder import Decoder
from workers.models.folder import file_checksum, save_weights
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits

PROMPT = (10, 1, 2, 11, 3, 4, 12)


async def sync(engine: EmbeddedEngine, model: Decoder, path: Path, version: int) -> None:
    ref, probe = published(model, path, version)
    await engine.update_weights(ref)
    await engine.verify_weights(probe)
    await engine.resume()


async def across_an_update(
    engine: EmbeddedEngine, model: Decoder, path: Path, kv: KvMode
) -> GenResult:
    """One turn that an update to version 1 finds running."""
    turn = asyncio.create_task(engine.generate(request(request_id="r", max_tokens=4000)))
    await eventually(lambda: engine.stats().sampled_tokens > 5)
    await engine.pause(PauseMode.KEEP, kv)
    at = engine.stats().sampled_tokens
    await sync(engine, model, path, version=1)
    await eventually(lambda: engine.stats().sampled_tokens > at + 20)
    await engine.abort([RequestId("r")])
    result = await turn
    assert [(s.start, s.version) for s in result.version_spans] == [(0, 0), (at, 1)]
    return result


async def test_tokens_carry_the_version_that_made_them_across_an_update(
    embedded: EmbeddedEngine, small: Small, tmp_path: Path
) -> None:
    result = await across_an_update(
        embedded, decoder(1, LONG_CONTEXT), tmp_path / "v1", KvMode.KEEP
    )
    cut = result.version_spans[0].stop
    ids = PROMPT + result.token_ids[:cut]
    expected = reference_logprobs(small.model, ids)[len(PROMPT) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs[:cut]), expected, atol=1e-5, rtol=0)


async def test_dropped_keys_make_the_rest_of_a_turn_wholly_the_new_models(
    embedded: EmbeddedEngine, tmp_path: Path
) -> None:
    new = decoder(1, LONG_CONTEXT)
    result = await across_an_update(embedded, new, tmp_path / "v1", KvMode.DROP)
    cut = result.version_spans[0].stop
    expected = reference_logprobs(new, PROMPT + result.token_ids)[len(PROMPT) - 1 :][cut:]
    assert torch.allclose(torch.tensor(result.logprobs[cut:]), expected, atol=2e-5, rtol=0)


async def test_keys_that_are_kept_reach_no_other_rollout(
    embedded: EmbeddedEngine, tmp_path: Path
) -> None:
    new = decoder(1, LONG_CONTEXT)
    first = await across_an_update(embedded, new, tmp_path / "v1", KvMode.KEEP)
    ids = (*PROMPT, *first.token_ids, 15, 16)
    other = await embedded.generate(request("b", ids, rollout_id="other", max_tokens=10))
    assert other.cached_tokens == 0
    expected = reference_logprobs(new, ids + other.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(other.logprobs), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kv", list(KvMode))
async def test_an_update_between_two_turns_keeps_the_rollout_s_keys_unless_told_to_drop_them(
    embedded: EmbeddedEngine, small: Small, tmp_path: Path, kv: KvMode
) -> None:
    new = decoder(1, LONG_CONTEXT)
    first = await embedded.generate(request("a", rollout_id="ro"))
    await embedded.pause(PauseMode.KEEP, kv)
    await sync(embedded, new, tmp_path / "v1", version=1)
    ids = (*PROMPT, *first.token_ids, 15, 16)
    ask = {"rollout_id": "ro", "temperature": 0.0}
    second = await embedded.generate(request("b", ids, **ask))
    expected = reference_logprobs(new, ids + second.token_ids)[len(ids) - 1 :]
    is_new = torch.allclose(torch.tensor(second.logprobs), expected, atol=2e-5, rtol=0)
    if kv is KvMode.DROP:
        assert (second.cached_tokens, is_new) == (0, True)
        return
    # All but the answer's last token, whose keys nobody has computed.
    assert second.cached_tokens == len(PROMPT) + len(first.token_ids) - 1
    assert not is_new
    third_ids = (*ids, *second.token_ids, 15)
    third = await embedded.generate(request("c", third_ids, **ask))
    assert third.cached_tokens == len(ids) + len(second.token_ids) - 1
    other = await embedded.generate(request("d", third_ids, rollout_id="other", temperature=0.0))
    assert other.cached_tokens == 0


async def test_seventeen_updates_leave_no_trace_of_older_weights(
    embedded: EmbeddedEngine, tmp_path: Path
) -> None:
    for version in range(1, 18):
        await embedded.pause(PauseMode.KEEP)
        await sync(embedded, decoder(version, LONG_CONTEXT), tmp_path / "w", version)
    result = await embedded.generate(request(max_tokens=30))
    model = decoder(17, LONG_CONTEXT)
    expected = reference_logprobs(model, PROMPT + result.token_ids)[len(PROMPT) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)
    assert embedded.stats().weight_updates == 17


async def test_an_update_of_a_tied_model_reaches_its_head(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "tied", decoder(1, tied=True))
    engine = EmbeddedEngine("tied", folder, EngineLimits(1))
    new = decoder(2, tied=True)
    await engine.pause(PauseMode.KEEP)
    await sync(engine, new, tmp_path / "v1", version=1)
    result = await engine.generate(request(max_tokens=20))
    expected = reference_logprobs(new, PROMPT + result.token_ids)[len(PROMPT) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)
    await engine.close()


@pytest.mark.parametrize("shift", [0.01, float("nan")])
async def test_a_probe_that_differs_restores_the_old_weights(
    embedded: EmbeddedEngine, small: Small, tmp_path: Path, shift: float
) -> None:
    ref, probe = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    sequence = probe.sequences[0]
    wrong = (sequence.logprobs[0] + shift, *sequence.logprobs[1:])
    bad = replace(probe, sequences=(ProbeSequence(sequence.token_ids, wrong),))
    await embedded.pause(PauseMode.KEEP)
    await embedded.update_weights(ref)
    with pytest.raises(SyncFailed) as failed:
        await embedded.verify_weights(bad)
    assert failed.value.reason is Refusal.PROBE_MISMATCH
    await embedded.resume()
    result = await embedded.generate(request(max_tokens=20))
    expected = reference_logprobs(small.model, PROMPT + result.token_ids)[len(PROMPT) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)
    assert set(result.versions) == {0}


async def test_an_empty_probe_proves_nothing(embedded: EmbeddedEngine, tmp_path: Path) -> None:
    ref, _ = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    await embedded.pause(PauseMode.KEEP)
    await embedded.update_weights(ref)
    with pytest.raises(SyncFailed):
        await embedded.verify_weights(Probe(1, ref.sha, ()))
    assert embedded.info().version == 0


async def test_weights_of_another_architecture_are_refused(
    embedded: EmbeddedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "v1"
    ref, _ = published(decoder(1, LONG_CONTEXT), path, version=1)
    save_weights({"model.norm.weight": torch.ones(32)}, path)
    other, _ = published(decoder(1, LONG_CONTEXT), tmp_path / "other", version=1)
    await embedded.pause(PauseMode.KEEP)
    with pytest.raises(SyncFailed) as failed:
        await embedded.update_weights(replace(ref, checksum=file_checksum(path)))
    assert failed.value.reason is Refusal.WRONG_SHAPES
    with pytest.raises(SyncFailed) as failed:
        await embedded.update_weights(replace(other, sha="0" * 64))
    assert failed.value.reason is Refusal.CHECKSUM
    await embedded.resume()
    assert embedded.info().version == 0


async def test_a_sync_leaves_waiting_turns_in_their_order(
    embedded: EmbeddedEngine, tmp_path: Path
) -> None:
    await embedded.pause(PauseMode.KEEP)
    turn = asyncio.create_task(embedded.generate(request("a")))
    await eventually(lambda: embedded.stats().waiting == 1)
    await sync(embedded, decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    assert set((await turn).versions) == {1}
