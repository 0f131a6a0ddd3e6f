"""The batched loop is right: else it would be slow or fast for the wrong reason."""

from pathlib import Path
from typing import Final

import pytest
import torch

from benchmarks.engine import reference
from benchmarks.engine.models import LEAST, VOCABULARY, build
from benchmarks.engine.rate import EngineSide, equal_turns
from benchmarks.engine.reference import Answers, Kept
from benchmarks.engine.workload import Rollout, Shape, Turn, draw
from tests.support import requires
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.folder import load_decoder

pytestmark = requires("reference")

CONFIG: Final = ModelConfig(VOCABULARY.size, 32, 64, 2, 4, 512)

SHAPE: Final = Shape(
    rollouts=4,
    group_size=2,
    turns=(1, 3),
    shared_prompt=(3, 9),
    own_prompt=2,
    output_median=4.0,
    output_sigma=1.0,
    output_max=12,
    observation=(1, 7),
)


def greedy(model: Decoder, rollout: Rollout) -> list[tuple[int, ...]]:
    """Answers by full forwards of the trainer's model, one rollout at a time, without any cache."""
    context: list[int] = []
    answers = []
    for turn in rollout.turns:
        context += turn.added
        with torch.inference_mode():
            for _ in range(turn.output):
                context.append(int(model(torch.tensor([context]))[0, -1].argmax()))
        answers.append(tuple(context[-turn.output :]))
    return answers


@pytest.mark.parametrize("kept", Kept)
def test_the_loop_gives_what_each_rollout_gives_alone(kept: Kept, tmp_path: Path) -> None:
    folder = build(CONFIG, tmp_path)
    rollouts = draw(SHAPE, 5)
    assert len({len(one.turns) for one in rollouts}) > 1, "rows leave the batch between turns"
    answers = reference.play(reference.load(tmp_path), rollouts, kept)
    model = load_decoder(folder)
    assert answers == {one.ordinal: greedy(model, one) for one in rollouts}


def test_the_engine_plays_the_same_rollouts_to_the_same_ids(tmp_path: Path) -> None:
    side = EngineSide("tiny", tmp_path, CONFIG, SHAPE.rollouts)
    rollouts = draw(SHAPE, 5)
    try:
        ours, again = side.play(rollouts), side.play(rollouts)
    finally:
        side.close()
    assert ours == again
    assert equal_turns(ours, reference.play(reference.load(tmp_path), rollouts)) == 1.0


def test_equal_turns_are_counted_over_all_rollouts() -> None:
    ours: Answers = {0: [(1, 2), (3,)], 1: [(4,), (5,)]}
    others: Answers = {0: [(1, 2), (9,)], 1: [(4,), (5,)]}
    assert equal_turns(ours, ours) == 1.0
    assert equal_turns(ours, others) == 0.75


def test_columns_are_the_widest_addition_and_the_longest_answer_of_each_turn() -> None:
    one = Rollout(0, 0, (Turn((1, 2, 3), 4), Turn((1,), 9)))
    other = Rollout(1, 0, (Turn((1,), 7),))
    assert reference.columns([one, other]) == 3 + 7 + 1 + 9
    assert reference.columns([other]) == 8


def test_rows_that_are_done_leave_and_the_others_keep_their_cache() -> None:
    from transformers import DynamicCache

    rollouts = [Rollout(n, n, (Turn((n,), 1),)) for n in range(3)]
    cache = DynamicCache()
    keys = torch.arange(3.0)[:, None, None, None].expand(3, 1, 2, 4)
    cache.update(keys, keys, 0)
    batch = reference.Batch(None, cache, rollouts, torch.eye(3).long(), [[0], [1], [2]])
    batch.keep([0, 2])
    assert [one.ordinal for one in batch.rows] == [0, 2]
    assert batch.pending == [[0], [2]]
    assert batch.mask.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert cache.layers[0].keys[:, 0, 0, 0].tolist() == [0.0, 2.0]


def test_the_least_model_has_every_part_of_a_decoder(tmp_path: Path) -> None:
    folder = build(LEAST, tmp_path)
    assert folder.config == LEAST
    assert reference.load(tmp_path).config.num_hidden_layers == LEAST.num_hidden_layers
