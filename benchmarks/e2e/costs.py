"""What this machine's engine costs: a decode step, a KV token read in it, a token prefilled by context.

Measured on a core that is stepped by hand, with the model and the sizes of the runs and nothing beside it.
In a job engine, trainer, node and database share the cores. By which factor prompts and by which decode
steps are dearer there the engine itself says: it counts the seconds of both and what was computed in them.
They differ: a step of few rows waits for every neighbour of its process, a prompt is one long product.

    python -m benchmarks.e2e.costs
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final

import torch

from benchmarks.e2e.model import CHARACTERS, CONFIG
from benchmarks.engine.stepping import packed
from domain.engine import GenRequest, GenResult, RequestId, Sampling
from domain.ids import GroupId, RolloutId
from simulation.fitting import Row, fit_relative
from simulation.plan import CannotModel
from workers.models.vocab import char_vocabulary
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.pages.nodes import pages_for

ROWS: Final = (1, 6, 16)
CONTEXTS: Final = (512, 2048, 4096)
"""From nearly empty to nearly all that the cells' rollouts reach."""

STEPS: Final = 24
"""Decode steps of a point; the median of them counts."""

ANSWER: Final = 1024
"""Tokens of an answer: the first row is still at it when the last one's prompt is computed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, by least squares over the measured points."""

    step_s: float
    kv_token_s: float
    prefill_token_s: float
    attended_token_s: float = 0.0
    """Of a token prefilled, for each token that it attends to."""

    @property
    def columns(self) -> tuple[float, float, float, float]:
        """In the order of `simulation.recorded_engine.engine_rows`."""
        return (self.step_s, self.kv_token_s, self.prefill_token_s, self.attended_token_s)


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine computed in a job, and how long it took."""

    engaged_s: float
    """With turns in slots, prompts included."""
    prefill_s: float
    steps: float
    kv_read_tokens: float
    prefilled_tokens: float
    attended_tokens: float


@dataclass(frozen=True, slots=True)
class Scale:
    """How much dearer a job's engine was than one beside nothing."""

    decode: float
    prefill: float

    def of(self, costs: Costs) -> Costs:
        """Costs in the job."""
        return Costs(
            costs.step_s * self.decode,
            costs.kv_token_s * self.decode,
            costs.prefill_token_s * self.prefill,
            costs.attended_token_s * self.prefill,
        )


def scale_of(costs: Costs, work: Work) -> Scale:
    """Counted seconds over those that the same work takes beside nothing.

    Raises CannotModel where an engine counted none: as cheap as beside nothing would be a wrong figure.
    """
    decode = work.steps * costs.step_s + work.kv_read_tokens * costs.kv_token_s
    prefill = work.prefilled_tokens * costs.prefill_token_s
    prefill += work.attended_tokens * costs.attended_token_s
    decoding_s = work.engaged_s - work.prefill_s
    if min(decode, decoding_s, prefill, work.prefill_s) <= 0.0:
        raise CannotModel("the engines of the run at low pressure counted no work or no seconds")
    return Scale(decoding_s / decode, work.prefill_s / prefill)


def fitted(prefills: Sequence[Row], decodes: Sequence[Row]) -> Costs:
    """Prefills are [tokens, tokens that these attend to in sum], decodes [1, KV tokens read]."""
    prefill_token_s, attended_token_s = fit_relative(prefills, 2)
    step_s, kv_token_s = fit_relative(decodes, 2)
    return Costs(step_s, kv_token_s, prefill_token_s, attended_token_s)


def measure() -> Costs:
    """Some twenty seconds of one core."""
    torch.set_num_threads(1)
    prefills, decodes = [], []
    for context in CONTEXTS:
        for rows in ROWS:
            prefill_s, decode_s = _point(rows, context)
            decodes.append(Row((1.0, float(rows * context)), decode_s, decode_s))
            if rows == 1:
                prefills.append(Row((float(context), context**2 / 2), prefill_s, prefill_s))
    return fitted(prefills, decodes)


def _point(rows: int, context: int) -> tuple[float, float]:
    """Seconds until `rows` contexts have a first token, and of one decode step over all of them."""
    pages = rows * (pages_for(context + ANSWER) + 1)
    core = Core(
        packed(CONFIG), char_vocabulary(CHARACTERS), rows, KeySizes(pages),
        version=0, weights_sha="uniform", clock=time.perf_counter,
    )  # fmt: skip
    for row in range(rows):
        core.submit(_request(row, context), _must_answer)
    began, sampled, gained = time.perf_counter(), 0, 0
    while gained < rows:
        core.step()
        gained = core.counters.sampled_tokens - sampled
        sampled += gained
    prefill_s = time.perf_counter() - began
    timed = []
    for _ in range(STEPS):
        began = time.perf_counter()
        core.step()
        timed.append(time.perf_counter() - began)
    assert core.active == rows, core.active
    return prefill_s, median(timed)


def _request(row: int, context: int) -> GenRequest:
    """No two contexts begin alike: nothing of them is shared."""
    first = row % CONFIG.vocab_size
    return GenRequest(
        request_id=RequestId(f"c{row}"),
        rollout_id=RolloutId(f"c{row}"),
        group_id=GroupId(f"g{row}"),
        tenant="bench",
        token_ids=(first, *(at % CONFIG.vocab_size for at in range(context - 1))),
        sampling=Sampling(ANSWER, seed=row),
    )


def _must_answer(outcome: object) -> None:
    assert isinstance(outcome, GenResult), outcome


if __name__ == "__main__":
    print(asdict(measure()))
