"""Tiny random models of published architectures, written by `transformers` itself."""

import copy
import json
from pathlib import Path
from typing import Any, Final

import torch

from tests.support.engines import CHARACTERS, CHAT
from workers.models.folder import ModelFolder, read_folder
from workers.models.vocab import char_vocabulary, write_vocab

NUMBERS: Final[dict[str, Any]] = {
    "vocab_size": len(CHARACTERS) + 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

LLAMA3: Final[dict[str, Any]] = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama-plain": ("Llama", {"num_key_value_heads": 4}),
    "llama-grouped": ("Llama", {"head_dim": 12, "rope_parameters": LLAMA3}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3-tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}
"""Family and options of every model under test."""

SHARD: Final = "12KB"
"""Splits the weights of a tiny model into several files."""


def published(kind: str, path: Path, *, seed: int = 0, is_sharded: bool = False) -> Any:
    """A random model of `transformers`, saved to `path` as a folder that we read."""
    import transformers

    family, options = KINDS[kind]
    config = getattr(transformers, f"{family}Config")(**{**NUMBERS, **options})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Scales of norms and biases start trivial; random ones show where they are left out.
            around = 1.0 if "norm" in name else 0.0
            parameter.normal_(around, 0.2)
    model.save_pretrained(path, **({"max_shard_size": SHARD} if is_sharded else {}))
    complete(path)
    return model


def complete(path: Path) -> ModelFolder:
    """Put our vocabulary and chat format beside the model, and read the folder."""

    write_vocab(char_vocabulary(CHARACTERS), path / "vocab.json")
    (path / "chat.json").write_text(json.dumps(CHAT))
    return read_folder(path)


ALL_TARGETS: Final = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)


def adapted(
    base: Any, path: Path, *, seed: int = 0, targets: tuple[str, ...] = ALL_TARGETS, **options: Any
) -> Any:
    """A random adapter over a copy of `base`, saved by `peft` to `path`; returns the adapted model."""
    from peft import LoraConfig, get_peft_model

    chosen = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"} | options
    torch.manual_seed(seed)
    model = get_peft_model(
        copy.deepcopy(base), LoraConfig(target_modules=list(targets), **chosen)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.3)
    model.save_pretrained(str(path))
    return model


def published_logprobs(model: Any, ids: tuple[int, ...]) -> torch.Tensor:
    """What `transformers` gives for each id after the first."""
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        logits: torch.Tensor = model(tokens).logits
        log_probs = logits.float().log_softmax(-1)[0, :-1]
        return log_probs.gather(-1, tokens[0, 1:, None])[:, 0]
