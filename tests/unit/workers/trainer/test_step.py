"""The learner: updates, schedule, metrics, divergence, and repetition bit for bit."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load

from domain.ids import CheckpointId
from tests.unit.workers.trainer import builders
from workers.trainer import checkpoints
from workers.trainer.batching import NonFinite
from workers.trainer.checkpoints import DataPosition, WholeCheckpoint
from workers.trainer.config import OptimizerSpec, learning_rate
from workers.trainer.optimizer import NamedAdamW
from workers.trainer.probe import probe_ids
from workers.trainer.step import Learner


def whole(learner: Learner) -> WholeCheckpoint:
    files = checkpoints.contents(learner, DataPosition(7, (3, 5)))
    return WholeCheckpoint(CheckpointId("ckpt_x"), learner.step, learner.weights_sha, files, ())


def test_five_and_five_resumed_steps_equal_ten_straight_ones_bit_for_bit() -> None:
    straight = builders.learner()
    ten = builders.train(straight, 10)
    first = builders.learner()
    begun = builders.train(first, 5)
    resumed = builders.learner()
    checkpoints.restore(resumed, whole(first))
    ended = builders.train(resumed, 5)
    assert [c.weights_sha for c in (*begun, *ended)] == [c.weights_sha for c in ten]
    assert [c.step for c in (*begun, *ended)] == list(range(1, 11))
    assert [c.learning_rate for c in (*begun, *ended)] == [c.learning_rate for c in ten]
    assert [c.metrics for c in (*begun, *ended)] == [c.metrics for c in ten]
    assert resumed.optimizer_file() == straight.optimizer_file()


def test_restoring_without_the_optimizer_would_be_noticed() -> None:
    first = builders.learner()
    builders.train(first, 5)
    cold = builders.learner()
    cold.load_weights(load(first.weights_file()), 5)
    warm = builders.learner()
    checkpoints.restore(warm, whole(first))
    assert builders.train(cold, 1)[0].weights_sha != builders.train(warm, 1)[0].weights_sha


def test_a_checkpoint_records_step_schedule_and_data_position() -> None:
    learner = builders.learner()
    builders.train(learner, 2)
    state = json.loads(whole(learner).files[checkpoints.STATE])
    assert (state["step"], state["next_ordinal"], state["unconsumed"]) == (2, 7, [3, 5])
    assert state["learning_rate"] == pytest.approx(1e-3 * 3 / 4)
    assert state["weights_sha"] == learner.weights_sha


def test_warm_up_is_linear_in_the_step_and_then_constant() -> None:
    optimizer = OptimizerSpec(lr=4e-4, warmup_steps=4)
    rates = [learning_rate(optimizer, step) for step in range(1, 7)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4])


def test_a_recorded_rate_is_used_instead_of_the_schedules() -> None:
    learner = builders.learner()
    learner.add(builders.group(0))
    assert learner.close(rate=5e-5).learning_rate == 5e-5


def test_adamw_equals_its_formula() -> None:
    spec = OptimizerSpec(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, grad_clip=1e9)
    layer = torch.nn.Linear(3, 2, bias=True, dtype=torch.float64)
    optimizer = NamedAdamW(layer, spec)
    expected = layer.weight.detach().numpy().copy()
    m, v = np.zeros_like(expected), np.zeros_like(expected)
    rng = np.random.default_rng(0)
    for step in range(1, 4):
        gradient = rng.normal(size=expected.shape)
        layer.weight.grad = torch.tensor(gradient)
        layer.bias.grad = torch.zeros(2, dtype=torch.float64)
        optimizer.update(1e-2)
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        corrected = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
        expected = expected * (1 - 1e-2 * 0.1) - 1e-2 * corrected
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected, atol=1e-10)


def test_clipping_scales_the_whole_gradient_and_reports_the_norm_before() -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.grad = torch.tensor([[3.0, 4.0]])
    assert NamedAdamW(layer, OptimizerSpec(lr=1.0, grad_clip=1.0)).clip() == pytest.approx(5.0)
    assert layer.weight.grad.tolist()[0] == pytest.approx([0.6, 0.8], rel=1e-5)


def test_metrics_of_a_step_name_what_happened() -> None:
    learner = builders.learner()
    first = builders.group(0, versions=(0,))
    second = builders.group(1, members=6, versions=(0,))
    learner.add(first)
    learner.add(second)
    metrics = learner.close().metrics
    rewards = [m.reward for g in (first, second) for m in g.members]
    sampled = [sum(m.segments[0].mask) for g in (first, second) for m in g.members]
    assert metrics["reward_mean"] == pytest.approx(float(np.mean(rewards)))
    assert metrics["reward_std"] == pytest.approx(float(np.std(rewards)))
    assert metrics["tokens"] == sum(sampled)
    assert metrics["rollouts"] == 14
    assert metrics["groups"] == 2
    assert metrics["staleness_0"] == 14
    assert metrics["grad_norm"] > 0
    assert metrics["entropy"] > 0
    assert metrics["mismatch_max"] >= 0
    assert metrics["learning_rate"] == pytest.approx(2.5e-4)


def test_staleness_counts_the_oldest_token_of_each_rollout() -> None:
    learner = builders.learner()
    learner.load_weights(load(learner.weights_file()), 4)
    learner.add(builders.group(0, versions=(2, 4)))
    metrics = learner.close().metrics
    assert metrics["staleness_max"] == 2
    assert metrics["staleness_0"] + metrics["staleness_2"] == 8


def test_an_infinite_gradient_raises_and_leaves_weights_and_optimizer_untouched() -> None:
    learner = builders.learner()
    builders.train(learner, 1)
    before = (learner.weights_sha, learner.optimizer_file())
    group = builders.group(0, members=1, versions=(1,))
    learner.add(replace(group, members=(replace(group.members[0], advantage=1e37),)))
    with pytest.raises(NonFinite, match="gradient"):
        learner.close()
    closed = learner.skip()
    assert (learner.weights_sha, learner.optimizer_file()) == before
    assert closed.weights_sha == before[0]
    assert closed.step == 2


def test_training_moves_probability_towards_rewarded_tokens() -> None:
    learner = builders.learner(optimizer={"lr": 1e-3})
    group = builders.two_members((5, 5), (1.0, -1.0))
    before = learner.add(group).meters.loss
    for _ in range(5):
        learner.close()
        after = learner.add(group).meters.loss
    assert after < before


def test_the_probe_is_fixed_by_the_vocabulary_and_scored_by_the_weights() -> None:
    learner = builders.learner()
    probe = learner.probe()
    assert tuple(s.token_ids for s in probe.sequences) == probe_ids(20, 96)
    assert all(len(s.token_ids) == 24 for s in probe.sequences)
    assert (probe.version, probe.sha) == (0, learner.weights_sha)
    builders.train(learner, 1)
    assert learner.probe().sequences != probe.sequences


def test_a_spec_with_a_penalty_trains_against_the_base_model() -> None:
    algorithm = {"kl": {"coef": 0.1}}
    learner, plain = builders.learner(algorithm=algorithm), builders.learner()
    first = [builders.train(one, 1)[0] for one in (learner, plain)]
    second = [builders.train(one, 1)[0] for one in (learner, plain)]
    assert first[0].metrics["loss"] == pytest.approx(first[1].metrics["loss"], abs=1e-5)
    assert second[0].metrics["loss"] > second[1].metrics["loss"]
