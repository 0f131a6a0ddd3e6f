"""The closed set of names of a model folder's files.

config.json  vocab.json  chat.json      what the model is
model.safetensors                       its weights, or, where there is none:
model.safetensors.index.json            which file has which tensor, beside
model-00001-of-00003.safetensors ...    the files that it names
"""

import re
from typing import Final

DESCRIPTION_FILES: Final = ("config.json", "vocab.json", "chat.json")
"""What every folder has."""

WEIGHTS_FILE: Final = "model.safetensors"
"""The name that `transformers` expects too; where it is there, an index beside it means nothing."""

INDEX_FILE: Final = f"{WEIGHTS_FILE}.index.json"
"""Where each tensor of a model of several weights files lies."""

SHARD: Final = re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors")
"""One of several weights files, as `transformers` names them."""

SHARDS_MAX: Final = 256
"""Of one model: a terabyte in files of four gigabytes, the usual size."""


def is_model_file(name: str) -> bool:
    """Whether a model folder may hold a file of this name."""
    whole = (*DESCRIPTION_FILES, WEIGHTS_FILE, INDEX_FILE)
    return name in whole or SHARD.fullmatch(name) is not None
