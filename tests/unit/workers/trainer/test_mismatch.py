"""Engine and trainer score the same tokens alike, at the distribution really sampled."""

import math
from dataclasses import replace

import pytest
import torch

from domain.engine import GenRequest, RequestId, Sampling
from domain.ids import GroupId, RolloutId, TaskId
from domain.trajectory import GroupPayload, Segment, TrainRollout
from tests.unit.workers.trainer import builders
from workers.models.folder import builtin_path, load_decoder, read_folder
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.trainer.accumulate import token_terms
from workers.trainer.batching import micro_batches
from workers.trainer.losses import predict
from workers.trainer.meters import meters_of

FOLDER = read_folder(builtin_path("tiny-calc"))
PROMPT = FOLDER.vocabulary.encode("^12+07=")


async def sampled(temperature: float, top_p: float, count: int = 8) -> list[Segment]:
    """Segments that the embedded engine sampled under its own weights, policy version 0."""
    engine = EmbeddedEngine("tiny-calc", FOLDER, EngineLimits(8))
    segments = []
    for seed in range(count):
        result = await engine.generate(
            GenRequest(
                request_id=RequestId(f"r{seed}"),
                rollout_id=RolloutId(f"ro_{seed}"),
                group_id=GroupId("grp"),
                tenant="t",
                token_ids=PROMPT,
                sampling=Sampling(24, temperature=temperature, top_p=top_p, seed=seed),
            )
        )
        pad = len(PROMPT)
        segments.append(
            Segment(
                token_ids=PROMPT + result.token_ids,
                mask=(0,) * pad + (1,) * len(result.token_ids),
                logprobs=(0.0,) * pad + result.logprobs,
                versions=(-1,) * pad + result.versions,
            )
        )
    await engine.close()
    return segments


def payload(segments: list[Segment]) -> GroupPayload:
    members = tuple(
        TrainRollout(RolloutId(f"ro_{i}"), 0.0, 1.0, (s,)) for i, s in enumerate(segments)
    )
    return GroupPayload(GroupId("grp"), TaskId("t"), len(members), members)


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.4, 1.0), (0.6, 0.9), (1.0, 0.5)]
)
async def test_first_importance_ratio_is_one_at_any_sampling(
    temperature: float, top_p: float
) -> None:
    segments = await sampled(temperature, top_p)
    (rows,) = micro_batches(payload(segments), 1, FOLDER.vocabulary.pad_id, 96, torch.float32)
    objective = builders.objective(temperature=temperature, top_p=top_p)
    with torch.no_grad():
        terms = token_terms(load_decoder(FOLDER), rows, objective)
    ratio = torch.exp(terms.new - rows.rollout_logprobs)[rows.mask > 0]
    assert len(ratio) > 20
    assert float((ratio - 1).abs().max()) < 1e-3
    assert float((terms.weight[rows.mask > 0] - 1).abs().max()) < 1e-3


async def test_ignoring_the_temperature_would_be_noticed() -> None:
    segments = await sampled(0.6, 1.0)
    model = load_decoder(FOLDER)
    worst = 0.0
    for segment in segments:
        ids = torch.tensor([segment.token_ids])
        with torch.no_grad():
            plain = predict(model(ids), ids, 1.0, 1.0).logprobs[0].tolist()
        pairs = zip(segment.mask[1:], plain, segment.logprobs[1:], strict=True)
        worst = max(worst, *(abs(math.exp(p - r) - 1) for m, p, r in pairs if m))
    assert worst > 0.05


async def test_the_learner_reports_the_mismatch_of_its_own_engine_as_tiny() -> None:
    learner = builders.learner()
    learner.add(payload(await sampled(1.0, 1.0)))
    metrics = learner.close().metrics
    assert metrics["mismatch_max"] < 1e-3
    assert abs(metrics["mismatch_kl"]) < 1e-6
    assert metrics["effective_sample_share"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["clip_fraction"] == 0


async def test_tokens_behind_older_ones_are_no_measure_of_engine_against_trainer() -> None:
    (segment, *_) = await sampled(1.0, 1.0, 1)
    wrong = tuple(p - 3.0 if m else p for p, m in zip(segment.logprobs, segment.mask, strict=True))
    first = segment.mask.index(1)
    spanning = tuple(v - (at == first) for at, v in enumerate(segment.versions))
    found = [
        _mismatch(replace(segment, logprobs=wrong, versions=versions))
        for versions in (segment.versions, spanning)
    ]
    assert found[0] > 1.0, "a fresh token counts"
    assert found[1] == 0.0, "its engine kept what older weights had computed"


def _mismatch(segment: Segment) -> float:
    model = load_decoder(FOLDER)
    (rows,) = micro_batches(payload([segment]), 1, FOLDER.vocabulary.pad_id, 96, torch.float32)
    objective = builders.objective()
    return meters_of(rows, token_terms(model, rows, objective)).mismatch_max
