"""Refusals before anything is computed: a request that cannot be served never reaches a forward."""

import math
from collections.abc import Sequence
from typing import Final

from domain.engine import (
    TEMPERATURE_MIN,
    TOP_P_MIN,
    EngineRefused,
    GenRequest,
    Refusal,
    Sampling,
)

STOP_STRINGS_MAX: Final = 16
"""Each is looked for after every token of a request that has any."""


def check(request: GenRequest, vocab_size: int, context: int) -> None:
    """Raise `EngineRefused` unless the engine can serve this request."""
    ids, sampling = request.token_ids, request.sampling
    if not ids:
        raise EngineRefused(Refusal.EMPTY_PROMPT, "the prompt has no token")
    _check_ids(ids, vocab_size, "prompt")
    _check_ids(sampling.stop_token_ids, vocab_size, "stop")
    if sampling.max_tokens < 1:
        raise EngineRefused(Refusal.MAX_TOKENS, f"max_tokens is {sampling.max_tokens}")
    if len(ids) + sampling.max_tokens > context:
        detail = f"prompt {len(ids)} + max_tokens {sampling.max_tokens} > context {context}"
        raise EngineRefused(Refusal.CONTEXT_OVERFLOW, detail)
    _check_sampling(sampling)


def _check_ids(ids: Sequence[int], vocab_size: int, what: str) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        worst = next(i for i in ids if not 0 <= i < vocab_size)
        raise EngineRefused(
            Refusal.TOKEN_OUT_OF_RANGE, f"{what} token {worst} is outside 0..{vocab_size - 1}"
        )


def _check_sampling(sampling: Sampling) -> None:
    temperature, top_p = sampling.temperature, sampling.top_p
    if temperature != 0.0 and not TEMPERATURE_MIN <= temperature < math.inf:
        detail = f"temperature is {temperature}, neither 0 nor {TEMPERATURE_MIN} or more"
        raise EngineRefused(Refusal.BAD_SAMPLING, detail)
    if not TOP_P_MIN <= top_p <= 1.0:
        detail = f"top_p is {top_p}, not {TOP_P_MIN} to 1"
        raise EngineRefused(Refusal.BAD_SAMPLING, detail)
    if len(sampling.stop) > STOP_STRINGS_MAX or "" in sampling.stop:
        raise EngineRefused(Refusal.BAD_SAMPLING, "stop strings are empty or too many")
    if not 0 <= sampling.seed < 2**63:
        raise EngineRefused(Refusal.BAD_SAMPLING, "the seed is not in 0..2^63-1")
