"""The rows of the engine: what each holds, which one runs, which is evicted for a new turn.

    row   0 .. running-1     running turns, in no order; a decode step reads them as one view
          running .. rows-1  idle: keys kept for a rollout's next turn, or free

Invariants: a rollout has at most one idle row; `kv_length <= length`; a running row is ready to
decode when exactly one token lacks keys. Numpy arrays hold what changes every step, so that
bookkeeping costs a few calls a step and not a few calls a row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from domain.engine import EngineRefused, GenRequest, GenResult, TokenChunk
from domain.ids import RolloutId
from workers.rollout.embedded.arena import KvArena
from workers.rollout.embedded.shelf import LoadedAdapter


@dataclass(slots=True)
class Idle:
    """Keys kept after a turn; `weights_sha` made all of them."""

    rollout_id: RolloutId
    weights_sha: str
    rank: float
    last_used_s: float


@dataclass(slots=True)
class Ticket:
    """An accepted request and where its answer goes. Smaller (rank, arrival) starts first."""

    request: GenRequest
    rank: float
    arrival: int
    accepted_s: float
    deliver: Callable[[GenResult | EngineRefused], None]
    deliver_chunk: Callable[[TokenChunk], None] | None = None
    adapter: LoadedAdapter | None = None

    @property
    def deadline_s(self) -> float:
        """Monotonic time at which the request ends with what it has, or infinity."""
        relative = self.request.deadline_s
        return math.inf if relative is None else self.accepted_s + relative


@dataclass(slots=True)
class Running:
    """One turn in an engine slot; `weights_sha` were in use when it started."""

    ticket: Ticket
    started_s: float
    weights_sha: str
    cached_tokens: int
    streamed: int = 0


@dataclass(slots=True)
class Rows:
    """Per-row state. Arrays are [rows] or [rows, context]; `tokens` is the whole segment.

    `tables` [rows, pages] are the pages of each row, all its own.
    """

    arena: KvArena
    tables: npt.NDArray[np.int64]
    context: int
    vocab_size: int
    running: list[Running] = field(default_factory=list)
    idle: dict[int, Idle] = field(default_factory=dict)
    tokens: npt.NDArray[np.int64] = field(init=False)
    logprobs: npt.NDArray[np.float32] = field(init=False)
    versions: npt.NDArray[np.int64] = field(init=False)
    noise: npt.NDArray[np.float64] = field(init=False)
    length: npt.NDArray[np.int64] = field(init=False)
    kv_length: npt.NDArray[np.int64] = field(init=False)
    prompt_length: npt.NDArray[np.int64] = field(init=False)
    end: npt.NDArray[np.int64] = field(init=False)
    temperature: npt.NDArray[np.float32] = field(init=False)
    top_p: npt.NDArray[np.float32] = field(init=False)
    stops: npt.NDArray[np.bool_] = field(init=False)
    has_stop_text: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        """Allocate the arrays: nothing is allocated while the engine runs."""
        wide, rows = (self.count, self.context), self.count
        self.tokens = np.zeros(wide, dtype=np.int64)
        self.logprobs = np.zeros(wide, dtype=np.float32)
        self.versions = np.zeros(wide, dtype=np.int64)
        self.noise = np.zeros(wide, dtype=np.float64)
        self.length = np.zeros(rows, dtype=np.int64)
        self.kv_length = np.zeros(rows, dtype=np.int64)
        self.prompt_length = np.zeros(rows, dtype=np.int64)
        self.end = np.zeros(rows, dtype=np.int64)
        self.temperature = np.ones(rows, dtype=np.float32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.stops = np.zeros((rows, self.vocab_size), dtype=np.bool_)
        self.has_stop_text = np.zeros(rows, dtype=np.bool_)

    @property
    def count(self) -> int:
        """Rows, running and idle."""
        return len(self.tables)

    def idle_row_of(self, rollout_id: RolloutId) -> int | None:
        """The idle row that holds keys of this rollout."""
        return next((r for r, idle in self.idle.items() if idle.rollout_id == rollout_id), None)

    def forget(self, row: int) -> None:
        """Make an idle row free."""
        del self.idle[row]
        self.kv_length[row] = 0

    def matching(self, row: int, token_ids: npt.NDArray[np.int64]) -> int:
        """How many leading tokens of `token_ids` have keys in this row."""
        limit = min(int(self.kv_length[row]), len(token_ids))
        differs = np.flatnonzero(self.tokens[row, :limit] != token_ids[:limit])
        return int(differs[0]) if len(differs) else limit

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows, pages and all."""
        if a == b:
            return
        for array in self._arrays():
            array[[a, b]] = array[[b, a]]
        idle_a, idle_b = self.idle.pop(a, None), self.idle.pop(b, None)
        if idle_a is not None:
            self.idle[b] = idle_a
        if idle_b is not None:
            self.idle[a] = idle_b

    def start(self, running: Running, token_ids: npt.NDArray[np.int64], cached: int) -> int:
        """Turn the first idle or free row into a running one and return it."""
        row = len(self.running)
        sampling = running.ticket.request.sampling
        self.idle.pop(row, None)
        self.tokens[row, : len(token_ids)] = token_ids
        self.length[row] = self.prompt_length[row] = len(token_ids)
        self.kv_length[row] = cached
        self.end[row] = len(token_ids) + sampling.max_tokens
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.stops[row] = False
        self.stops[row, list(sampling.stop_token_ids)] = True
        self.has_stop_text[row] = bool(sampling.stop)
        self.running.append(running)
        return row

    def clear(self, row: int) -> None:
        """Zero a row's pages: what is not a number would outlive it in products of weight zero."""
        self.kv_length[row] = 0
        self.arena.clear(self.tables[row].tolist())

    def stop(self, row: int) -> int:
        """Take a row out of the running ones; returns the row where its keys lie now."""
        last = len(self.running) - 1
        self.swap(row, last)
        self.running[row] = self.running[last]
        self.running.pop()
        return last

    def sampled(self, row: int) -> slice:
        """Where this row's sampled tokens lie in the [rows, context] arrays."""
        return slice(int(self.prompt_length[row]), int(self.length[row]))

    def _arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (
            self.tables,
            self.tokens,
            self.logprobs,
            self.versions,
            self.noise,
            self.length,
            self.kv_length,
            self.prompt_length,
            self.end,
            self.temperature,
            self.top_p,
            self.stops,
            self.has_stop_text,
        )
