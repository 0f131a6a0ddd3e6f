"""The thread that copies pages between memory, file and the staging of the decode thread.

    decode thread -- store, fetch, move --> [queue of at most 64] -- one thread, in order --> done
    decode thread <-- poll ----------------------------------------------------------------- done

One thread in order: a slot that is given to another page is written after everything asked of it before.
What a disk may do is a failed transfer. Anything else is a defect: it is logged, and from then on every
transfer fails at once; whoever asks sees `failure` and asks no more.
"""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import numpy as np

from infra.logging import get_logger
from workers.rollout.embedded.pages.nodes import Place
from workers.rollout.embedded.tiers.stores import Bytes, FetchError, FetchFailure, Stores

log = get_logger()

QUEUE_MAX: Final = 64
"""Transfers under way; what would be one more is not kept, rather than have decoding wait for a disk."""

JOIN_TIMEOUT_S: Final = 10.0
"""How long `close` waits for the transfer in progress."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one page lies, and its checksum once it is known."""

    place: Place
    slot: int
    checksum: int = 0


@dataclass(slots=True, eq=False)
class Store:
    """Pages that left the device; done with their checksums, or None each where it failed."""

    spots: Sequence[Spot]
    content: Bytes
    checksums: list[int | None] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Fetch:
    """Pages wanted back; done with all of them, or with why not."""

    spots: Sequence[Spot]
    content: Bytes | None = None
    failure: FetchFailure | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Move:
    """One page from tier to tier; done with its checksum, or None where it failed."""

    source: Spot
    target: Spot
    checksum: int | None = None
    seconds: float = 0.0


Transfer = Store | Fetch | Move


class Transfers:
    """Owns the thread. All methods belong to the decode thread."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._asked: queue.Queue[Transfer | None] = queue.Queue()
        self._done: queue.Queue[Transfer] = queue.Queue()
        self.open = 0
        self.failure = ""
        """What ended all transfers; empty while they go on."""
        self._thread = threading.Thread(target=self._run, name="engine-kv", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be asked now."""
        return self.open >= QUEUE_MAX

    def ask(self, transfer: Transfer) -> None:
        """Queue a transfer; `is_full` was looked at."""
        self.open += 1
        self._asked.put(transfer)

    def poll(self, wait_s: float = 0.0) -> list[Transfer]:
        """What is done; waits so long for the first where nothing is."""
        done: list[Transfer] = []
        while self.open:
            try:
                done.append(self._done.get(timeout=wait_s) if wait_s else self._done.get_nowait())
            except queue.Empty:
                break
            wait_s = 0.0
            self.open -= 1
        return done

    def close(self) -> None:
        """Stop after the transfer in progress."""
        self._asked.put(None)
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while (transfer := self._asked.get()) is not None:
            started = time.monotonic()
            try:
                if not self.failure:
                    self._carry_out(transfer)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                log.exception("engine.kv_tiers_off", transfer=type(transfer).__name__)
            if self.failure:
                _fail(transfer)
            transfer.seconds = time.monotonic() - started
            self._done.put(transfer)

    def _carry_out(self, transfer: Transfer) -> None:
        match transfer:
            case Store():
                self._store(transfer)
            case Fetch():
                self._fetch(transfer)
            case Move():
                self._move(transfer)
            case _ as unreachable:
                assert_never(unreachable)

    def _store(self, store: Store) -> None:
        for spot, content in zip(store.spots, store.content, strict=True):
            try:
                checksum = self._stores.write(spot.place, spot.slot, content)
            except OSError:
                store.checksums.append(None)
                continue
            store.checksums.append(checksum)

    def _fetch(self, fetch: Fetch) -> None:
        pages: list[Bytes] = []
        for spot in fetch.spots:
            try:
                pages.append(self._stores.read(spot.place, spot.slot, spot.checksum))
            except FetchError as error:
                fetch.failure = error.failure
                return
        fetch.content = np.stack(pages)

    def _move(self, move: Move) -> None:
        source, target = move.source, move.target
        try:
            content = self._stores.read(source.place, source.slot, source.checksum)
            move.checksum = self._stores.write(target.place, target.slot, content)
        except (FetchError, OSError):
            move.checksum = None


def _fail(transfer: Transfer) -> None:
    """Nothing of it counts, whatever was done."""
    match transfer:
        case Store():
            transfer.checksums = [None] * len(transfer.spots)
        case Fetch():
            transfer.content, transfer.failure = None, FetchFailure.OFF
        case Move():
            transfer.checksum = None
        case _ as unreachable:
            assert_never(unreachable)
