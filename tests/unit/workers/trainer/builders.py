"""Small models and payloads with defaults, for tests of the trainer."""

import random
from collections.abc import Mapping, Sequence

import torch

from domain.ids import AttemptId, GroupId, TaskId, group_id, rollout_id
from domain.trajectory import GroupPayload, Segment, TrainRollout
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.folder import builtin_path, read_folder
from workers.trainer.accumulate import Objective
from workers.trainer.config import TrainSpec, read_spec
from workers.trainer.losses import Clip
from workers.trainer.step import Closed, Learner

ATTEMPT = AttemptId("att_01k0000000000000000000test")

CONFIG = ModelConfig(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
)

PAD_ID = 17


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> Decoder:
    """A tiny decoder with repeatable weights."""
    torch.manual_seed(seed)
    return Decoder(CONFIG).to(dtype)


def objective(
    cap: float | None = 2.0, kl_coef: float = 0.0, temperature: float = 1.0, top_p: float = 1.0
) -> Objective:
    """DAPO with token-level correction."""
    return Objective(Clip(0.2, 0.28), cap, kl_coef, temperature, top_p)


def segment(rng: random.Random, prompt: int = 4, sampled: int = 6, version: int = 0) -> Segment:
    """A prompt, then one turn of sampled tokens with made-up log-probabilities."""
    total = prompt + sampled
    return Segment(
        token_ids=tuple(rng.randrange(CONFIG.vocab_size) for _ in range(total)),
        mask=(0,) * prompt + (1,) * sampled,
        logprobs=(0.0,) * prompt + tuple(rng.uniform(-4.0, -1.0) for _ in range(sampled)),
        versions=(-1,) * prompt + (version,) * sampled,
    )


def group(
    ordinal: int,
    members: int = 8,
    seed: int | None = None,
    versions: Sequence[int] = (0, 1),
) -> GroupPayload:
    """A graded group; members differ in length, advantage and version."""
    rng = random.Random(ordinal if seed is None else seed)
    name = group_id(ATTEMPT, ordinal)
    return GroupPayload(
        group_id=name,
        task_id=TaskId(f"t{ordinal}"),
        size_planned=8,
        members=tuple(
            TrainRollout(
                rollout_id=rollout_id(name, index),
                reward=rng.choice([0.0, 1.0]),
                advantage=rng.uniform(-1.5, 1.5),
                segments=(
                    segment(rng, rng.randint(2, 9), rng.randint(1, 20), rng.choice(versions)),
                ),
            )
            for index in range(members)
        ),
    )


def two_members(lengths: tuple[int, int], advantages: tuple[float, float]) -> GroupPayload:
    """Two rollouts with these numbers of sampled tokens and advantages."""
    rng = random.Random(5)
    name = GroupId(group_id(ATTEMPT, 0))
    members = tuple(
        TrainRollout(rollout_id(name, i), 0.0, advantage, (segment(rng, 2, length),))
        for i, (length, advantage) in enumerate(zip(lengths, advantages, strict=True))
    )
    return GroupPayload(name, TaskId("t0"), 2, members)


SPEC: Mapping[str, object] = {
    "seed": 3,
    "model": {"base": "tiny-calc"},
    "rollout": {"groups_per_batch": 2, "group_size": 8, "sampling": {"temperature": 1.0}},
    "algorithm": {"loss": {"type": "dapo", "clip_low": 0.2, "clip_high": 0.28}},
    "optimizer": {"type": "adamw", "lr": 1e-3, "warmup_steps": 4, "weight_decay": 0.01},
    "checkpoints": {"every_steps": 5, "keep_last": 2},
    "on_divergence": "stop",
}
"""A normalised job spec, with fields in it that are not the trainer's."""


def spec(**changes: object) -> TrainSpec:
    """The trainer's part of SPEC, top-level sections replaced."""
    return read_spec({**SPEC, **changes})


def learner(**changes: object) -> Learner:
    """A learner of the built-in model."""
    return Learner(read_folder(builtin_path("tiny-calc")), spec(**changes), torch.device("cpu"))


def train(one: Learner, steps: int, batch: int = 2) -> list[Closed]:
    """Close `steps` steps; the groups of a step depend on its number alone."""
    closed = []
    for _ in range(steps):
        step = one.step + 1
        for position in range(batch):
            versions = (step - 1, max(step - 2, 0))
            one.add(group(step * 10 + position, members=4, versions=versions))
        closed.append(one.close())
    return closed
