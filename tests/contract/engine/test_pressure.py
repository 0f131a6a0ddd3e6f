"""Published models under pressure: what `transformers` gives does not depend on what pages went through.

Thirty-two rollouts of several turns share thirty-two pages: turns lose their slots, pages are evicted,
leave for memory and disk, come back or are computed anew, prompts are shared and come in chunks, and
batches are never the same. Every token is held against logits of `transformers` for the same context.
Where a margin is too small for float32 to decide, the token is not compared, and counted.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import torch

from domain.engine import AdapterRef, GenRequest, GenResult, PauseMode, Sampling
from tests.contract.engine.test_adapters import NAME, World
from tests.support import requires
from tests.support.engines import request
from tests.support.published_models import published
from workers.models.folder import read_folder
from workers.rollout.embedded import passes
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.rollout.embedded.sampling import draw_noise, sample
from workers.rollout.embedded.tiers.stores import TierSizes

pytestmark = requires("reference")

STREAMS: Final = 32
PAGES: Final = 32
TURNS: Final = 3
GROUP: Final = 4
"""Rollouts with one prompt."""

MARGIN: Final = 1e-4
"""Of the two best logits, and of a draw from the edge of its token."""

TOLERANCE: Final = 1e-5
"""Of log-probabilities in float32."""

UNDECIDED_MAX: Final = 0.02
"""Share of tokens that may be left out."""


async def play(engine: EmbeddedEngine, stream: int, **fields: Any) -> list[tuple[Any, GenResult]]:
    """All turns of one rollout; a tool's answer comes between two."""
    rng = Random(stream)
    shared = Random(1000 + stream // GROUP)
    ids = tuple(shared.randrange(20) for _ in range(shared.randint(20, 60)))
    played = []
    for turn in range(TURNS):
        one = request(
            f"{stream}-{turn}",
            ids,
            rollout_id=f"ro_{stream}",
            rank=rng.randrange(4),
            seed=100 * stream + turn,
            max_tokens=rng.randint(6, 20),
            temperature=0.0 if stream % 2 else 0.8,
            top_p=1.0 if stream % 4 else 0.9,
            **fields,
        )
        result = await engine.generate(one)
        played.append((one, result))
        await asyncio.sleep(0)
        ids = (*ids, *result.token_ids, *(rng.randrange(20) for _ in range(rng.randint(1, 9))))
    return played


def compare(model: Any, asked: GenRequest, result: GenResult) -> Counter[str]:
    """Ids and log-probabilities of one turn against logits for the same contexts."""
    ids = torch.tensor([asked.token_ids + result.token_ids])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(asked.token_ids) - 1 : -1]
    count = len(result.token_ids)
    noise = draw_noise(asked.sampling.seed, asked.sampling.max_tokens)[:count]
    taken = torch.tensor(result.token_ids)
    decided = is_decided(logits, noise, asked.sampling)
    expected, logprobs = drawn(logits, noise, asked.sampling)
    assert torch.equal(expected[decided], taken[decided])
    measured = torch.tensor(result.logprobs)
    torch.testing.assert_close(measured[decided], logprobs[decided], atol=TOLERANCE, rtol=0)
    return Counter(tokens=count, undecided=int((~decided).sum()))


def drawn(
    logits: torch.Tensor, noise: torch.Tensor, sampling: Sampling, top_p_shift: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """What our sampler takes from these logits."""
    temperature = torch.full((len(noise),), sampling.temperature)
    top_p = torch.full((len(noise),), sampling.top_p + top_p_shift)
    return sample(logits, noise, temperature, top_p)


def is_decided(logits: torch.Tensor, noise: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Where no change of the size of float32's errors gives another token or another nucleus."""
    if sampling.temperature == 0.0:
        best = logits.topk(2, dim=-1).values
        return (best[:, 0] - best[:, 1]) > MARGIN
    shifts = [-MARGIN, MARGIN] if sampling.top_p < 1.0 else [0.0]
    others = [
        drawn(logits, (noise + shift).clamp(0.0, 1.0 - 1e-12), sampling, top_p_shift)
        for shift in (-MARGIN, MARGIN)
        for top_p_shift in shifts
    ]
    tokens = torch.stack([tokens for tokens, _ in others])
    logprobs = torch.stack([logprobs for _, logprobs in others])
    same_token = (tokens == tokens[0]).all(dim=0)
    # Without another nucleus they are equal; one more token in it, however unlikely, shows beyond this.
    return same_token & ((logprobs - logprobs[0]).abs().amax(dim=0) < TOLERANCE)


@pytest.mark.parametrize(
    ("slots", "tiers"),
    [(12, False), (12, True), (2, True)],
    ids=["computed anew", "tiers", "few slots"],
)
@pytest.mark.parametrize(
    "kind",
    [
        "llama-grouped",
        pytest.param("qwen2", marks=pytest.mark.slow),
        pytest.param("qwen3-tied", marks=pytest.mark.slow),
    ],
)
async def test_thirty_two_rollouts_on_thirty_two_pages_give_what_transformers_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, slots: int, tiers: bool
) -> None:
    monkeypatch.setattr(passes, "PREFILL_CHUNK", 24)
    model = published(kind, tmp_path)
    sizes = TierSizes(16, 64, tmp_path) if tiers else TierSizes()
    limits = EngineLimits(slots, PAGES, sizes)
    engine = EmbeddedEngine("pressed", read_folder(tmp_path), limits)
    plays = await asyncio.gather(*(play(engine, stream) for stream in range(STREAMS)))
    stats = engine.stats()
    await engine.close()
    seen: Counter[str] = Counter()
    for asked, result in (turn for played in plays for turn in played):
        seen += compare(model, asked, result)
    assert seen["undecided"] <= UNDECIDED_MAX * seen["tokens"]
    assert sum(stats.kv.evicted_pages.values()) > PAGES
    assert stats.cached_tokens > 0
    assert stats.preemptions > 0 or slots > 2
    assert any(stats.kv.moved_bytes.values()) is tiers


async def test_adapters_of_two_tenants_and_the_base_do_so_side_by_side(tmp_path: Path) -> None:
    base = published("qwen3", tmp_path / "base")
    limits = EngineLimits(12, PAGES, TierSizes(16, 64, tmp_path))
    world = World(base, EmbeddedEngine("pressed", read_folder(tmp_path / "base"), limits), tmp_path)
    models: dict[str, Any] = {}
    for seed, tenant in ((1, "org_1"), (2, "org_2")):
        models[tenant], path = world.adapter(seed)
        await world.load(models[tenant], world.ref(path, tenant, version=seed))
    await world.engine.pause(PauseMode.KEEP)
    await world.engine.resume()

    class Side:
        """The engine as one tenant sees it."""

        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

        async def generate(self, one: GenRequest) -> GenResult:
            return await world.engine.generate(replace(one, tenant=self.tenant))

    def side(stream: int) -> Any:
        return play(
            Side(f"org_{stream % 3}"),  # type: ignore[arg-type]
            stream,
            adapter=AdapterRef(NAME) if stream % 3 else None,
        )

    plays = await asyncio.gather(*(side(stream) for stream in range(STREAMS)))
    stats = world.engine.stats()
    await world.engine.close()
    seen: Counter[str] = Counter()
    for stream, played in enumerate(plays):
        for asked, result in played:
            seen += compare(models.get(f"org_{stream % 3}", base), asked, result)
    assert seen["undecided"] <= UNDECIDED_MAX * seen["tokens"]
    assert sum(stats.kv.evicted_pages.values()) > PAGES
