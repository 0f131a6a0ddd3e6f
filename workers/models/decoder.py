"""A decoder-only transformer (Llama, Qwen2, Qwen3): RMSNorm, rotary positions, SwiGLU.

Query heads may share key heads, heads may be normalised, projections of attention may add a bias.
The trainer differentiates `Decoder`; the embedded engine runs the same arithmetic over a key-value
cache (`workers/rollout/embedded/forward.py`). Shapes: B sequences, S tokens, H heads, D head width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from workers.models.config import ModelConfig, RopeScaling


def rope_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [length, D] of rotary positions (Su et al. 2021, equation 34)."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequencies = config.rope_theta ** (-half / config.head_dim)
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos().float(), doubled.sin().float()


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow rotations are slowed down by `factor`, fast ones kept, those between are blended.

    The rule that came with Llama 3.1: the bounds are turns within the original context.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + D/2) of the last dimension by the angles of their position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class RmsNorm(nn.Module):
    """Root-mean-square norm with a learned scale (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        """Start as the identity scale."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal self-attention over whole sequences."""

    def __init__(self, config: ModelConfig) -> None:
        """Four projections, with the norms and biases of the architecture."""
        super().__init__()
        width, bias = config.hidden_size, config.has_qkv_bias
        self.head_dim = config.head_dim
        self.is_grouped = config.queries_per_key > 1
        self.q_proj = nn.Linear(width, config.query_width, bias=bias)
        self.k_proj = nn.Linear(width, config.key_width, bias=bias)
        self.v_proj = nn.Linear(width, config.key_width, bias=bias)
        self.o_proj = nn.Linear(config.query_width, width, bias=config.has_out_bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.has_head_norm:
            self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend [B, S, width] -> [B, S, width]."""
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.is_grouped
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Mlp(nn.Module):
    """SwiGLU feed-forward (Shazeer 2020, equation 6)."""

    def __init__(self, config: ModelConfig) -> None:
        """Gate and up widen, down narrows."""
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: ModelConfig) -> None:
        """Attention, then feed-forward, each behind its norm."""
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Add both residual branches."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embedding, layers and final norm: everything below the head."""

    def __init__(self, config: ModelConfig) -> None:
        """Build the layers in order."""
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    """The whole model. Padding on the right needs no mask: attention is causal."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Initialise from the global torch generator; seed it first for a repeatable model."""
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        cos, sin = rope_tables(config, config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.hidden_size**-0.5)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits [B, S, vocab] of the token after each of `token_ids` [B, S]."""
        length = token_ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(token_ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.lm_head(self.model.norm(x))
        return logits


def sequence_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability [B, S-1] of each token after the first, at temperature 1, in float32."""
    log_probs = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    return log_probs.gather(-1, token_ids[:, 1:, None]).squeeze(-1)
