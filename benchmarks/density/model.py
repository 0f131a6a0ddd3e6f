"""A model that can say any shell command: its vocabulary is printable ASCII. Scripts speak for it."""

from pathlib import Path
from typing import Final

import torch

from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.folder import save_folder
from workers.models.vocab import char_vocabulary

END: Final = "\x03"
"""Ends an answer or a call."""

CALL: Final = "\x01"
"""Begins a call; an answer begins with nothing."""

BETWEEN: Final = "\x02"
"""Ends what is not said by the model."""

CHARACTERS: Final = "".join(map(chr, range(32, 127))) + "\n\t" + CALL + BETWEEN + END

CONTEXT: Final = 8192

CONFIG: Final = ModelConfig(
    vocab_size=len(CHARACTERS) + 3,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=CONTEXT,
)
"""The smallest that trains: what is looked at are sandboxes."""

CHAT: Final = {
    "format": "char",
    "roles": {role: {"prefix": "", "suffix": BETWEEN} for role in ("system", "user", "tool")},
    "answer": {"prefix": "", "suffix": END},
    "call": {"prefix": CALL, "suffix": END, "name": "run", "argument": "command"},
}


def build(path: Path, seed: int = 1) -> Path:
    """Write the model folder."""
    torch.manual_seed(seed)
    save_folder(path, Decoder(CONFIG), char_vocabulary(CHARACTERS), CHAT)
    return path


def said(commands: tuple[str, ...]) -> list[dict[str, list[int]]]:
    """Answers of one rollout as the scripted engine reads them: a command a turn, then DONE."""
    vocabulary = char_vocabulary(CHARACTERS)
    texts = [f"{CALL}{command}{END}" for command in commands] + [f"DONE{END}"]
    return [{"token_ids": list(vocabulary.encode(text))} for text in texts]
