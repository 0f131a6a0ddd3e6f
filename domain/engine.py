"""Records of the engine port: what is asked of a rollout engine and what it answers.

Tokens in, tokens out. Every sampled token carries its log-probability and the policy version that
made it, pinned by the engine in the same decode step; nothing is ever labelled afterwards. The
port's methods are `workers.rollout.ports.Engine`; every engine passes one contract suite.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final, NewType

from domain.errors import VenusError
from domain.ids import GroupId, RolloutId
from domain.kv_stats import NO_KV_STATS, KvStats
from domain.kv_ticket import KvTicket

RequestId = NewType("RequestId", str)
"""Names one call of `generate`; chosen by the caller, unique among the engine's open requests."""

PAGE_TOKENS: Final = 16
"""Tokens that one page stands for in what the embedded engine reports."""

TEMPERATURE_MIN: Final = 1e-4
"""Above 0, the least: logits divided by less leave what float32 holds."""

TOP_P_MIN: Final = 1e-4
"""The least: float32, in which engines sample, still tells it from 0."""

PROBE_TOLERANCE: Final = 1e-3
"""Largest |delta log p| of a probe. Kernels differ by 1e-4 at most (measured); a wrong tensor by more."""


NAN_LOGITS: Final = "nan_logits"
"""Cause of a request that ended with `error` because the model gave no numbers for it; others go on."""


class Finish(StrEnum):
    """Why a generation ended. `stop` includes the end token, which is part of the sampled ids."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class PauseMode(StrEnum):
    """What `pause` does with open requests: end them, let the running ones end, or freeze them."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


class KvMode(StrEnum):
    """What a weight update does with cached keys and values.

    `keep` (the default): a rollout goes on over the keys that the old weights made, in its running turn
    and in the next ones; nobody else ever finds them. `drop`: everything is prefilled anew, for running
    turns before their next token.
    """

    KEEP = "keep"
    DROP = "drop"


class WeightKind(StrEnum):
    """How the weights travel. `file` is a safetensors file on a disk that both sides see, `lora` a
    folder there with an adapter as PEFT writes it."""

    FILE = "file"
    NCCL = "nccl"
    IPC = "ipc"
    LORA = "lora"


class Capability(StrEnum):
    """What an engine can do beyond generating; a missing one degrades by a stated rule."""

    SLOT_PREEMPT = "slot_preempt"
    REPRIORITISE = "reprioritise"
    KV_EXPORT = "kv_export"
    TIERS = "tiers"
    PAUSE_KEEP = "pause_keep"
    LORA = "lora"


class Refusal(StrEnum):
    """Closed set of reasons why an engine refuses a request or a weight update."""

    EMPTY_PROMPT = "empty_prompt"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    BAD_SAMPLING = "bad_sampling"
    DUPLICATE_REQUEST = "duplicate_request"
    QUEUE_FULL = "queue_full"
    WEIGHTS_MISMATCH = "weights_mismatch"
    UNKNOWN_ADAPTER = "unknown_adapter"
    NOT_PAUSED = "not_paused"
    UNVERIFIED = "unverified"
    UNSUPPORTED_KIND = "unsupported_kind"
    OLD_EPOCH = "old_epoch"
    UNREADABLE = "unreadable"
    CHECKSUM = "checksum"
    WRONG_SHAPES = "wrong_shapes"
    UNTIED_HEAD = "untied_head"
    UNSUPPORTED_ADAPTER = "unsupported_adapter"
    PROBE_MISMATCH = "probe_mismatch"
    CLOSED = "closed"


class EngineRefused(VenusError):
    """The engine refuses; `reason` is closed, the engine itself is unharmed and keeps serving."""

    code = "engine_refused"

    def __init__(self, reason: Refusal, detail: str) -> None:
        """Keep the closed reason beside the sentence for people."""
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


class SyncFailed(EngineRefused):
    """A weight update did not happen: the engine serves the weights it had, version unchanged."""

    code = "sync_failed"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy, its log-probabilities are those of the model.

    Otherwise log-probabilities are those of the distribution really sampled: after temperature and
    top-p, neither below its least value (`TEMPERATURE_MIN`, `TOP_P_MIN`). `stop` are strings looked for
    in the sampled text; they stay part of the ids. Equal seeds and equal prompts give equal ids, whatever
    else the engine runs beside them.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """An adapter of the request's own tenant. Without `sha` it is the newest, also after an update."""

    name: str
    sha: str | None = None


@dataclass(frozen=True, slots=True)
class GenRequest:
    """One turn to generate. `token_ids` is the whole segment so far, never only the new part.

    Smaller `rank` runs first; as `kv.ranks` composes it, neighbours are beyond what a float tells
    apart. `weights_sha`, if given, must be what the engine serves to this request when it starts
    (`served_sha`).
    `deadline_s` counts from acceptance; what was sampled by then comes back with finish `abort`.
    """

    request_id: RequestId
    rollout_id: RolloutId
    group_id: GroupId
    tenant: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    rank: int = 0
    segment: int = 0
    weights_sha: str | None = None
    deadline_s: float | None = None
    kv_source: KvTicket | None = None
    """Pages of another engine for the beginning of `token_ids`; one that does not fit is counted and
    computed anew."""
    adapter: AdapterRef | None = None
    """None: the base model. Versions of sampled tokens are those of the adapter."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Sampled tokens [start, stop) of one answer were made by policy `version`."""

    start: int
    stop: int
    version: int


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """A piece of a running answer; span offsets count within this chunk. The last has a finish."""

    request_id: RequestId
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version_spans: tuple[VersionSpan, ...]
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class GenResult:
    """A whole answer: sampled tokens only. `cached_tokens` of the prompt were not computed again."""

    request_id: RequestId
    rollout_id: RolloutId
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version_spans: tuple[VersionSpan, ...]
    finish: Finish
    weights_sha: str
    """Weights in use when the request ended."""
    cached_tokens: int = 0
    queued_s: float = 0.0
    generate_s: float = 0.0
    error: str | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """Policy version of each sampled token."""
        return expand_spans(self.version_spans)


@dataclass(frozen=True, slots=True)
class WeightRef:
    """Weights to load: `sha` is their identity (`workers.models.weights_sha`), `checksum` the
    sha256 of the file's bytes, `epoch` the trainer's; engines refuse a lower epoch.

    Of kind `lora`: `uri` is the adapter's folder, `checksum` that of its safetensors file, `sha` the
    adapter's (`workers.models.adapter`); it is loaded as `adapter` of `tenant`, which keeps its own
    versions and epochs.
    """

    version: int
    kind: WeightKind
    uri: str
    sha: str
    checksum: str
    epoch: int = 0
    tenant: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class ProbeSequence:
    """Fixed ids and the trainer's log-probability of each id after the first (temperature 1)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        """One log-probability per predicted token."""
        assert len(self.logprobs) == len(self.token_ids) - 1


@dataclass(frozen=True, slots=True)
class Probe:
    """What a synced engine must reproduce before it may resume."""

    version: int
    sha: str
    sequences: tuple[ProbeSequence, ...]
    tolerance: float = PROBE_TOLERANCE


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Outcome of a passed probe."""

    version: int
    max_abs_delta: float
    tokens: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What does not change while an engine lives, and the weights that it serves now."""

    model: str
    version: int
    weights_sha: str
    epoch: int
    slots: int
    vocab_size: int
    context_tokens: int
    page_tokens: int
    kv_pages: int
    capabilities: tuple[Capability, ...]
    kv_tokens: int = 0
    """Tokens that the device tier holds where any page may go to any rollout. 0 where memory is cut
    otherwise, for instance into rows of a fixed length: tokens then do not say how full it is."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start and gauges of now. `steps` rises with every decode step: progress."""

    version: int
    weights_sha: str
    paused: bool
    active: int
    waiting: int
    slots: int
    kv_pages_used: int
    kv_pages: int
    kv_pages_held: int
    """Of running turns; an engine makes the others free when a turn needs them."""
    retained_rollouts: int
    steps: int
    sampled_tokens: int
    prefilled_tokens: int
    cached_tokens: int
    finished: int
    aborted: int
    refused: int
    evictions: int
    preemptions: int
    weight_updates: int
    sync_failures: int
    busy_s: float
    """Seconds spent inside forward passes."""
    kv: KvStats = NO_KV_STATS
    engaged_s: float = 0.0
    """Seconds with turns in slots: forward passes and what the engine does between them."""
    prefill_s: float = 0.0
    """Of `busy_s`, computing prompts."""
    attended_tokens: int = 0
    """That prefilled tokens attended to, summed over them."""
    kv_read_tokens: int = 0
    """Contexts of the turns that decoded, summed over the steps."""


def served_sha(base: str, adapter: str | None) -> str:
    """Identity of all numbers that make a token: those of the base weights and of an adapter on them.

    Keys and values may be shared only where it is equal.
    """
    if adapter is None:
        return base
    return hashlib.sha256(f"{base}\0{adapter}".encode()).hexdigest()


def expand_spans(spans: Iterable[VersionSpan]) -> tuple[int, ...]:
    """Policy version per token, from spans that cover an answer without a gap."""
    return tuple(span.version for span in spans for _ in range(span.stop - span.start))


def spans_of(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """The shortest spans that say the same as one version per token."""
    spans: list[VersionSpan] = []
    start = 0
    for version, run in groupby(versions):
        stop = start + sum(1 for _ in run)
        spans.append(VersionSpan(start, stop, version))
        start = stop
    return tuple(spans)
