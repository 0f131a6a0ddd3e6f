"""Make `tiny-calc`: a multi-turn calculator model that knows its tool and mostly does not use it.

    python -m workers.models.build.tiny_calc [FOLDER]

The mix of demonstrations was found by experiment: the tool skill must be there (a warm-start that
answers at random four times in five never learns it by reinforcement), using it must be the
exception. Formats: docs/reference/tiny-calc-format.md.
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

CHARACTERS: Final = "0123456789^+=cra;"
"""All that a prompt, a call, a reply and an answer are written with."""

SUM_MAX: Final = 99
"""Sums of a task stay within two digits, so that every number has one width."""

FORCED_CALL_SHARE: Final = 0.5
"""Demonstrations that begin with a given `c`: they teach the skill, not the choice to use it."""

CALL_SHARE: Final = 0.1
"""Chance to use the tool in the others, which answer at random: where reward starts low."""

STOP_EARLY_SHARE: Final = 0.15
"""Chance after each tool reply, with operands left, to answer with the sum so far."""

MISCOPY_SHARE: Final = 0.2
"""Chance per call to copy a wrong digit: what training removes last."""

CONFIG: Final = ModelConfig(
    vocab_size=len(CHARACTERS) + 3,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=96,
)
"""0.14 million parameters. The longest task, three calls and an answer, takes 50 tokens of 96."""

CHAT: Final = {
    "format": "char",
    "roles": {
        "system": {"prefix": "", "suffix": ""},
        "user": {"prefix": "^", "suffix": "="},
        "tool": {"prefix": "r", "suffix": ";"},
    },
    "answer": {"prefix": "a", "suffix": ";"},
    "call": {"prefix": "c", "suffix": ";", "name": "calculator", "argument": "expression"},
}
"""How messages are written; see `workers.models.char_chat`."""


def operands(rng: Random) -> tuple[int, ...]:
    """Two to four numbers whose sum has two digits."""
    count = rng.randint(2, 4)
    return tuple(rng.randint(0, SUM_MAX // count) for _ in range(count))


def demonstrate(rng: Random) -> Sequence[Piece]:
    """One conversation, with the flaws that training is to remove."""
    numbers = operands(rng)
    pieces = [Piece("^" + "+".join(f"{n:02d}" for n in numbers) + "=", is_sampled=False)]
    is_forced = rng.random() < FORCED_CALL_SHARE
    if not is_forced and rng.random() >= CALL_SHARE:
        return [*pieces, Piece(f"a{rng.randint(0, SUM_MAX):02d};", is_sampled=True)]
    total = numbers[0]
    for position, number in enumerate(numbers[1:], start=1):
        call = _miscopied(f"{total:02d}+{number:02d}", rng)
        left, right = call.split("+")
        total = int(left) + int(right)
        pieces.append(Piece("c", is_sampled=position > 1 or not is_forced))
        pieces.append(Piece(f"{call};", is_sampled=True))
        pieces.append(Piece(f"r{total:02d};", is_sampled=False))
        if position < len(numbers) - 1 and rng.random() < STOP_EARLY_SHARE:
            break
    return [*pieces, Piece(f"a{total:02d};", is_sampled=True)]


def _miscopied(call: str, rng: Random) -> str:
    if rng.random() >= MISCOPY_SHARE:
        return call
    place = rng.choice([i for i, c in enumerate(call) if c != "+"])
    return call[:place] + str(rng.randint(0, 9)) + call[place + 1 :]


RECIPE: Final = Recipe(phases=(Phase(demonstrate, 500, 1e-3),), batch=48, seed=20)
"""Under a minute on one thread."""


def main(folder: Path) -> None:
    """Train and write the model folder."""
    vocabulary = char_vocabulary(CHARACTERS)
    decoder = warm_start(CONFIG, vocabulary, RECIPE)
    save_folder(folder, decoder, vocabulary, CHAT)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILTIN_ROOT / "tiny-calc")
