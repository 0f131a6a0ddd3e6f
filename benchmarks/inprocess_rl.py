"""Proof that the built-in models learn: embedded engine and plain GRPO in one process.

    python -m benchmarks.inprocess_rl tiny-calc --seeds 4 --steps 40
    python -m benchmarks.inprocess_rl tiny-text --steps 60 --shuffled

Each step samples groups, computes group-relative advantages (Shao et al. 2024, equation 3, with
0.1 added to the deviation), does one clipped update (Yu et al. 2025, DAPO, clip 0.2/0.28, token
mean) and syncs the engine through the port: file, pause, load, probe, resume. `--shuffled` permutes
rewards inside each group: the control that must not learn. One JSON line per seed.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import torch

from benchmarks.learnable_tasks import LearnableTask, task_source
from domain.engine import (
    Finish,
    GenRequest,
    PauseMode,
    Probe,
    ProbeSequence,
    RequestId,
    Sampling,
    WeightKind,
    WeightRef,
)
from domain.ids import GroupId, RolloutId
from venusrl.env.messages import Message
from workers.models.decoder import Decoder, sequence_logprobs
from workers.models.folder import (
    ModelFolder,
    builtin_path,
    file_checksum,
    load_decoder,
    read_folder,
    save_weights,
    weights_sha,
)
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits

T = TypeVar("T")

MAX_TURNS: Final = 6
"""Turns of one rollout; three calls and an answer are the longest honest course."""

ADVANTAGE_EPSILON: Final = 0.1
"""Added to the deviation of a group: groups with one odd member get no huge advantage."""

CLIP_LOW: Final = 0.8
CLIP_HIGH: Final = 1.28

REFILL_MAX: Final = 12
"""Groups sampled per step at most, as a multiple of the batch, while too few have signal."""

EVALUATION_SEED: Final = 1_000_003
"""Held-out tasks are drawn from a stream of their own, equal for all seeds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run."""

    model: str
    seed: int
    steps: int
    groups: int
    group_size: int
    learning_rate: float
    is_shuffled: bool
    evaluation_tasks: int


@dataclass(slots=True)
class Sampled:
    """A finished rollout: ids, one loss-mask entry and one log-probability per id, its reward."""

    ids: list[int]
    mask: list[float]
    logprobs: list[float]
    reward: float
    turns: int


class Learner:
    """The plain trainer: a decoder, AdamW and the weights file that the engine reads."""

    def __init__(self, folder: ModelFolder, settings: Settings, scratch: Path) -> None:
        """Start from the folder's weights."""
        self.decoder: Decoder = load_decoder(folder)
        self.optimizer = torch.optim.AdamW(
            self.decoder.parameters(),
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )
        self.pad_id = folder.vocabulary.pad_id
        self.scratch = scratch

    def update(
        self, groups: Sequence[Sequence[Sampled]], rewards: Sequence[Sequence[float]]
    ) -> float:
        """One clipped policy-gradient step; returns max |delta log p| against the engine."""
        advantages = [a for group in rewards for a in _advantages(group)]
        rollouts = [r for group in groups for r in group]
        used = [(r, a) for r, a in zip(rollouts, advantages, strict=True) if a != 0.0]
        if not used:
            return 0.0
        ids = self._padded([r.ids for r, _ in used], self.pad_id).long()
        mask = self._padded([r.mask for r, _ in used], 0.0)[:, 1:]
        old = self._padded([r.logprobs for r, _ in used], 0.0)[:, 1:]
        advantage = torch.tensor([a for _, a in used])[:, None]
        new = sequence_logprobs(self.decoder(ids), ids)
        ratio = (new - old).clamp(-20.0, 20.0).exp()
        clipped = ratio.clamp(CLIP_LOW, CLIP_HIGH)
        objective = torch.minimum(ratio * advantage, clipped * advantage)
        loss = -(objective * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self.optimizer.step()
        return float(((new - old) * mask).detach().abs().max())

    def publish(self, version: int) -> tuple[WeightRef, Probe]:
        """Write the weights and what they say about a fixed sequence."""
        path = self.scratch / f"v{version}.safetensors"
        state = self.decoder.state_dict()
        save_weights(state, path)
        sha = weights_sha(state)
        probe_ids = tuple(range(min(12, self.decoder.config.vocab_size)))
        with torch.inference_mode():
            tensor = torch.tensor([probe_ids])
            expected = sequence_logprobs(self.decoder(tensor), tensor)[0].tolist()
        ref = WeightRef(version, WeightKind.FILE, str(path), sha, file_checksum(path))
        return ref, Probe(version, sha, (ProbeSequence(probe_ids, tuple(expected)),))

    @staticmethod
    def _padded(rows: Sequence[Sequence[float]], fill: float) -> torch.Tensor:
        tensors = [torch.tensor(row, dtype=torch.float32) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)


class Sampler:
    """Turn loops over one engine."""

    def __init__(self, engine: EmbeddedEngine, folder: ModelFolder, task_seed: int) -> None:
        """Requests are numbered; sampling seeds derive from the run's seed and that number."""
        self.engine = engine
        self.folder = folder
        self.requests = 0
        self.seed = task_seed

    async def rollout(self, task: LearnableTask, name: str, temperature: float = 1.0) -> Sampled:
        """One episode: generate, run the tool, append, until an answer or the turn limit."""
        chat = self.folder.chat
        ids = list(chat.prompt([Message("user", task.prompt)]))
        sampled = Sampled(ids, [0.0] * len(ids), [0.0] * len(ids), task.bad_format, 0)
        for turn in range(MAX_TURNS):
            room = self.folder.config.max_position_embeddings - len(sampled.ids)
            if room < task.max_tokens:
                break
            request = self._request(name, sampled.ids, task.max_tokens, temperature)
            answer = await self.engine.generate(request)
            assert answer.finish in (Finish.STOP, Finish.LENGTH), answer.error
            sampled.ids += answer.token_ids
            sampled.mask += [1.0] * len(answer.token_ids)
            sampled.logprobs += answer.logprobs
            sampled.turns = turn + 1
            parsed = chat.parse(answer.token_ids, turn)
            if not parsed.message.tool_calls:
                sampled.reward = task.score(parsed.message.content)
                break
            replies = [Message("tool", task.tool(c.arguments)) for c in parsed.message.tool_calls]
            appended = chat.follow_up(answer.token_ids, replies)
            sampled.ids += appended
            sampled.mask += [0.0] * len(appended)
            sampled.logprobs += [0.0] * len(appended)
        self.engine.release(RolloutId(name))
        return sampled

    def _request(
        self, name: str, ids: Sequence[int], max_tokens: int, temperature: float
    ) -> GenRequest:
        self.requests += 1
        return GenRequest(
            request_id=RequestId(f"req_{self.requests}"),
            rollout_id=RolloutId(name),
            group_id=GroupId(name.rpartition("_")[0]),
            tenant="benchmark",
            token_ids=tuple(ids),
            sampling=Sampling(
                max_tokens=max_tokens,
                temperature=temperature,
                seed=self.seed * 1_000_000_007 + self.requests,
                stop_token_ids=self.folder.chat.stop_token_ids,
            ),
        )


def _advantages(rewards: Sequence[float]) -> list[float]:
    values = torch.tensor(rewards, dtype=torch.float64)
    if float(values.max() - values.min()) < 1e-6:
        return [0.0] * len(rewards)
    deviation = values.std(correction=0) + ADVANTAGE_EPSILON
    return [float(a) for a in (values - values.mean()) / deviation]


async def _sync(engine: EmbeddedEngine, learner: Learner, version: int) -> None:
    ref, probe = learner.publish(version)
    await engine.pause(PauseMode.KEEP)
    await engine.update_weights(ref)
    await engine.verify_weights(probe)
    await engine.resume()
    await asyncio.to_thread(Path(ref.uri).unlink)


async def _evaluate(sampler: Sampler, settings: Settings, step: int, temperature: float) -> float:
    source, rng = task_source(settings.model, is_test=True), Random(EVALUATION_SEED)
    tasks = [source(rng) for _ in range(settings.evaluation_tasks)]
    done = await asyncio.gather(
        *(sampler.rollout(task, f"eval{step}_{i}", temperature) for i, task in enumerate(tasks))
    )
    return sum(max(r.reward, 0.0) for r in done) / len(done)


async def _batch(
    sampler: Sampler, settings: Settings, rng: Random, step: int
) -> list[list[Sampled]]:
    """Groups until `settings.groups` of them have reward variance, or the refill limit."""
    source = task_source(settings.model)
    groups: list[list[Sampled]] = []
    missing = settings.groups
    while missing > 0 and len(groups) < settings.groups * REFILL_MAX:
        tasks = [source(rng) for _ in range(settings.groups)]
        names = [f"s{step}g{len(groups) + at}" for at in range(len(tasks))]
        flat = await asyncio.gather(
            *(
                sampler.rollout(task, f"{name}_{i}")
                for name, task in zip(names, tasks, strict=True)
                for i in range(settings.group_size)
            )
        )
        fresh = list(_chunks(flat, settings.group_size))
        groups += [list(group) for group in fresh]
        missing -= sum(len({r.reward for r in group}) > 1 for group in fresh)
    return groups


async def run(settings: Settings, scratch: Path) -> dict[str, object]:
    """One seed, start to end."""
    folder = read_folder(builtin_path(settings.model))
    slots = settings.groups * settings.group_size
    engine = EmbeddedEngine(settings.model, folder, EngineLimits(slots))
    learner = Learner(folder, settings, scratch)
    sampler = Sampler(engine, folder, settings.seed + 1)
    rng = Random(settings.seed)
    before = await _evaluate(sampler, settings, 0, 1.0)
    greedy_before = await _evaluate(sampler, settings, 0, 0.0)
    curve: list[float] = []
    rollout_s = train_s = worst = 0.0
    sampled_groups = 0
    started = time.perf_counter()
    for step in range(1, settings.steps + 1):
        mark = time.perf_counter()
        groups = await _batch(sampler, settings, rng, step)
        rollout_s += time.perf_counter() - mark
        sampled_groups += len(groups)
        rewards = [[r.reward for r in group] for group in groups]
        curve.append(sum(map(sum, rewards)) / sum(map(len, rewards)))
        if settings.is_shuffled:
            rewards = [rng.sample(group, len(group)) for group in rewards]
        mark = time.perf_counter()
        worst = max(worst, learner.update(groups, rewards))
        await _sync(engine, learner, step)
        train_s += time.perf_counter() - mark
    job_s = time.perf_counter() - started
    after = await _evaluate(sampler, settings, settings.steps, 1.0)
    greedy_after = await _evaluate(sampler, settings, settings.steps, 0.0)
    stats = engine.stats()
    await engine.close()
    tenth = max(1, settings.steps // 10)
    return {
        "model": settings.model,
        "seed": settings.seed,
        "shuffled": settings.is_shuffled,
        "eval_before": round(before, 3),
        "eval_after": round(after, 3),
        "rise": round(after - before, 3),
        "greedy_before": round(greedy_before, 3),
        "greedy_after": round(greedy_after, 3),
        "curve": [round(sum(c) / len(c), 2) for c in _chunks(curve, tenth)],
        "groups_per_step": round(sampled_groups / settings.steps, 1),
        "job_s": round(job_s, 1),
        "rollout_s": round(rollout_s, 1),
        "train_s": round(train_s, 1),
        "sampled_tokens": stats.sampled_tokens,
        "cached_tokens": stats.cached_tokens,
        "max_abs_delta_logp": worst,
    }


def _chunks(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


def main() -> None:
    """Run the seeds one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--eval-tasks", type=int, default=256)
    parser.add_argument("--shuffled", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        settings = Settings(
            model=arguments.model,
            seed=seed,
            steps=arguments.steps,
            groups=arguments.groups,
            group_size=arguments.group_size,
            learning_rate=arguments.lr,
            is_shuffled=arguments.shuffled,
            evaluation_tasks=arguments.eval_tasks,
        )
        with tempfile.TemporaryDirectory() as scratch:
            print(json.dumps(asyncio.run(run(settings, Path(scratch)))), flush=True)


if __name__ == "__main__":
    main()
