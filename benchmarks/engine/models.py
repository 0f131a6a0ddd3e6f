"""Random models, built by a function: speed and residency do not depend on what weights say."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from workers.models.chatml import chatml_vocabulary
from workers.models.config import Architecture, ModelConfig
from workers.models.decoder import Decoder
from workers.models.folder import ModelFolder, read_folder, save_folder

VOCABULARY: Final = chatml_vocabulary()
"""256 bytes and three marks."""

CHAT: Final[Mapping[str, object]] = {"format": "chatml"}

CONTEXT: Final = 4096
"""Room for the longest context that moves, and its next turn."""

SMALL: Final = ModelConfig(
    VOCABULARY.size, 256, 768, 4, 8, CONTEXT,
    num_key_value_heads=4, head_dim=32, architecture=Architecture.QWEN3,
)  # fmt: skip
"""3.3 million parameters: as small as what people run on a processor gets."""

BUILTIN: Final = ModelConfig(VOCABULARY.size, 64, 160, 3, 4, CONTEXT)
"""The size of the models that ship with the tree, with a longer context: per-step overhead is all."""

LEAST: Final = ModelConfig(VOCABULARY.size, 16, 16, 1, 1, CONTEXT)
"""Where only pages are counted: the arithmetic is real, and as little as can be."""

MODELS: Final = {"small": SMALL, "builtin": BUILTIN}
"""By the names of the command line."""


def build(config: ModelConfig, path: Path, seed: int = 1) -> ModelFolder:
    """Write a random model of this size to a folder that `transformers` reads too."""
    torch.manual_seed(seed)
    save_folder(path, Decoder(config), VOCABULARY, CHAT)
    return read_folder(path)


def parameters(config: ModelConfig) -> int:
    """Numbers of a model of this size."""
    return sum(
        one.numel() for one in Decoder(replace(config, max_position_embeddings=1)).parameters()
    )
