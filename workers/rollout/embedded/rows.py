"""The rows of the engine: one for each running turn, in no order; a decode step reads them as one view.

Numpy arrays hold what changes every step, so that bookkeeping costs a few calls a step and not a few calls
a row. Invariants: `kv_length <= length`; a row is ready to decode when exactly one token lacks keys; its
block table is that of its lease, the null page behind it.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workers.rollout.embedded.arena import PAGE_TOKENS
from workers.rollout.embedded.turns import Record, Running, Sampled


@dataclass(slots=True)
class Rows:
    """Per-row state. Arrays are [slots] or [slots, context]; `tokens` is the whole segment."""

    slots: int
    context: int
    vocab_size: int
    table_pages: int
    null_page: int
    running: list[Running] = field(default_factory=list)
    tables: npt.NDArray[np.int64] = field(init=False)
    tokens: npt.NDArray[np.int64] = field(init=False)
    logprobs: npt.NDArray[np.float32] = field(init=False)
    versions: npt.NDArray[np.int64] = field(init=False)
    noise: npt.NDArray[np.float64] = field(init=False)
    length: npt.NDArray[np.int64] = field(init=False)
    kv_length: npt.NDArray[np.int64] = field(init=False)
    room: npt.NDArray[np.int64] = field(init=False)
    """Tokens that the pages of the row hold."""
    prompt_length: npt.NDArray[np.int64] = field(init=False)
    end: npt.NDArray[np.int64] = field(init=False)
    temperature: npt.NDArray[np.float32] = field(init=False)
    top_p: npt.NDArray[np.float32] = field(init=False)
    stops: npt.NDArray[np.bool_] = field(init=False)
    has_stop_text: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        """Allocate the arrays: nothing is allocated while the engine runs."""
        wide, rows = (self.slots, self.context), self.slots
        self.tables = np.full((rows, self.table_pages), self.null_page, dtype=np.int64)
        self.tokens = np.zeros(wide, dtype=np.int64)
        self.logprobs = np.zeros(wide, dtype=np.float32)
        self.versions = np.zeros(wide, dtype=np.int64)
        self.noise = np.zeros(wide, dtype=np.float64)
        self.length = np.zeros(rows, dtype=np.int64)
        self.kv_length = np.zeros(rows, dtype=np.int64)
        self.room = np.zeros(rows, dtype=np.int64)
        self.prompt_length = np.zeros(rows, dtype=np.int64)
        self.end = np.zeros(rows, dtype=np.int64)
        self.temperature = np.ones(rows, dtype=np.float32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.stops = np.zeros((rows, self.vocab_size), dtype=np.bool_)
        self.has_stop_text = np.zeros(rows, dtype=np.bool_)

    def start(self, running: Running, noise: npt.NDArray[np.float64]) -> int:
        """Give a new turn the next row; its keys are those of its lease."""
        row, request = len(self.running), running.ticket.request
        count = len(request.token_ids)
        self.tokens[row, :count] = request.token_ids
        self.noise[row, count : count + len(noise)] = noise
        self.length[row] = self.prompt_length[row] = count
        self._begin(running)
        return row

    def restore(self, sampled: Sampled) -> int:
        """Give a turn that lost its slot the next row."""
        row, count, prompt = len(self.running), len(sampled.tokens), sampled.prompt_length
        self.tokens[row, :count] = sampled.tokens
        self.logprobs[row, prompt:count] = sampled.logprobs
        self.versions[row, prompt:count] = sampled.versions
        self.noise[row, prompt : prompt + len(sampled.noise)] = sampled.noise
        self.length[row], self.prompt_length[row] = count, prompt
        self._begin(sampled.running)
        return row

    def saved(self, row: int) -> Sampled:
        """Copies of what `restore` needs."""
        part = self.sampled(row)
        return Sampled(
            running=self.running[row],
            tokens=self.tokens[row, : part.stop].copy(),
            logprobs=self.logprobs[row, part].copy(),
            versions=self.versions[row, part].copy(),
            noise=self.noise[row, part.start : self.end[row]].copy(),
            prompt_length=part.start,
        )

    def stop(self, row: int) -> None:
        """Take a row out: the last one takes its place."""
        last = len(self.running) - 1
        if row != last:
            for array in self._arrays():
                array[row] = array[last]
        self.running[row] = self.running[last]
        self.running.pop()

    def follow_lease(self, row: int) -> None:
        """Take over what the lease says of pages and keys."""
        lease = self.running[row].lease
        pages = lease.pages
        self.tables[row, : len(pages)] = pages
        self.tables[row, len(pages) :] = self.null_page
        self.room[row] = len(pages) * PAGE_TOKENS
        self.kv_length[row] = lease.length

    def sampled(self, row: int) -> slice:
        """Where this row's sampled tokens lie in the [slots, context] arrays."""
        return slice(int(self.prompt_length[row]), int(self.length[row]))

    def record(self, row: int, part: slice) -> Record:
        """Ids, log-probabilities and versions of a part of a row."""
        return Record(
            tuple(self.tokens[row, part].tolist()),
            tuple(self.logprobs[row, part].tolist()),
            tuple(self.versions[row, part].tolist()),
        )

    def _begin(self, running: Running) -> None:
        row, sampling = len(self.running), running.ticket.request.sampling
        self.end[row] = running.ticket.end
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.stops[row] = False
        self.stops[row, list(sampling.stop_token_ids)] = True
        self.has_stop_text[row] = bool(sampling.stop)
        self.running.append(running)
        self.follow_lease(row)

    def _arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (
            self.tables,
            self.tokens,
            self.logprobs,
            self.versions,
            self.noise,
            self.length,
            self.kv_length,
            self.room,
            self.prompt_length,
            self.end,
            self.temperature,
            self.top_p,
            self.stops,
            self.has_stop_text,
        )
