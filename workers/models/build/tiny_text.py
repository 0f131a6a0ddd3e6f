"""Make `tiny-text`: a single-turn model that answers one-digit arithmetic in the right form.

    python -m workers.models.build.tiny_text [FOLDER]

It first learns sums and differences of two digits, then to give mostly random answers of the right
form: the skill stays within reach of reinforcement, the score starts low. The question is worded as
the `chain_sum` dataset of reasoning_gym words it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from workers.models.build.warm_start import Phase, Piece, Recipe, warm_start
from workers.models.config import ModelConfig
from workers.models.folder import BUILTIN_ROOT, save_folder
from workers.models.vocab import char_vocabulary

CHARACTERS: Final = "\n" + "".join(map(chr, range(32, 127)))
"""Printable ASCII and the end of a line."""

QUESTION: Final = "State the final answer to the following arithmetic problem: {} {} {} ="
"""The wording of reasoning_gym 0.1.25, `chain_sum`."""

RIGHT_SHARE: Final = 0.3
"""Right answers in the second phase; far fewer, and the skill of the first is forgotten."""

CONFIG: Final = ModelConfig(
    vocab_size=len(CHARACTERS) + 3,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=256,
)
"""0.15 million parameters. A question takes 68 tokens, an answer 4 at most."""

CHAT: Final = {
    "format": "char",
    "roles": {
        "system": {"prefix": "", "suffix": "\n"},
        "user": {"prefix": "", "suffix": "\n"},
        "tool": {"prefix": "", "suffix": "\n"},
    },
    "answer": {"prefix": "", "suffix": "\n"},
    "call": None,
}
"""A question is a line, the answer is the next one."""


def right(rng: Random) -> Sequence[Piece]:
    """A question with its right answer."""
    question, answer = _draw(rng)
    return _conversation(question, answer)


def mostly_random(rng: Random) -> Sequence[Piece]:
    """A question with its right answer, or more often with that of another question."""
    question, answer = _draw(rng)
    if rng.random() >= RIGHT_SHARE:
        _, answer = _draw(rng)
    return _conversation(question, answer)


def _draw(rng: Random) -> tuple[str, int]:
    left, right_term, is_sum = rng.randint(0, 9), rng.randint(0, 9), rng.random() < 0.5
    question = QUESTION.format(left, "+" if is_sum else "-", right_term)
    return question, left + right_term if is_sum else left - right_term


def _conversation(question: str, answer: int) -> Sequence[Piece]:
    return [Piece(f"{question}\n", is_sampled=False), Piece(f"{answer}\n", is_sampled=True)]


RECIPE: Final = Recipe(
    phases=(Phase(right, 450, 2e-3), Phase(mostly_random, 300, 1e-3)), batch=64, seed=20
)
"""About two minutes on one thread."""


def main(folder: Path) -> None:
    """Train and write the model folder."""
    vocabulary = char_vocabulary(CHARACTERS)
    decoder = warm_start(CONFIG, vocabulary, RECIPE)
    save_folder(folder, decoder, vocabulary, CHAT)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILTIN_ROOT / "tiny-text")
