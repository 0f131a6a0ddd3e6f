"""The model that all strategies train: of the size of the built-in ones, with a long context and no mind.

Its head is zero, so every token is equally likely at every place: how long an answer gets is then a
function of the seed of its turn alone, whatever is in the batch, whatever was recomputed, and whatever
the trainer did. What a step costs does not depend on what the weights say: every layer is computed.
"""

from pathlib import Path
from typing import Final

import torch

from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.folder import HEAD, save_folder
from workers.models.vocab import char_vocabulary

END: Final = ";"
"""Ends an answer."""

CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789+-*/<>" + END
"""With the three special tokens 46: an answer has 46 tokens on average, and one in a hundred over 200."""

CONTEXT: Final = 8192
"""Positions of the model; what a job may fill of it is the job's matter."""

CONFIG: Final = ModelConfig(
    vocab_size=len(CHARACTERS) + 3,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=CONTEXT,
)
"""The shape of `tiny-calc`."""

CHAT: Final = {
    "format": "char",
    "roles": {role: {"prefix": "<", "suffix": ">"} for role in ("system", "user", "tool")},
    "answer": {"prefix": "", "suffix": END},
}

ANSWER_TOKENS: Final = float(CONFIG.vocab_size)
"""Mean length of an answer, which ends at each token with one chance in the vocabulary's size."""


def build(path: Path, seed: int = 1) -> Path:
    """Write the model folder."""
    torch.manual_seed(seed)
    decoder = Decoder(CONFIG)
    with torch.no_grad():
        dict(decoder.named_parameters())[HEAD].zero_()
    save_folder(path, decoder, char_vocabulary(CHARACTERS), CHAT)
    return path
