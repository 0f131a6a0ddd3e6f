"""Everything the environment decides, read once per process into one frozen record.

No other module reads `os.environ` for configuration. Each setting has one variable; the table in
`docs/reference/settings.md` is checked against `VARIABLES` by a test. Durations are seconds.
"""

import base64
import binascii
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from domain.engine import PAGE_TOKENS
from domain.plan import TenantShare
from infra.tenants import tenant_shares

T = TypeVar("T")

DEFAULT_API_PORT: Final = 8420
"""Tried first by `venus up`; a free port is taken when another program holds it."""


class BadSettingError(ValueError):
    """A variable whose text cannot be read; the message names the variable."""


class Profile(StrEnum):
    """Named sets of limits and intervals."""

    NORMAL = "normal"
    SMALL = "small"


class SandboxKind(StrEnum):
    """What a node's sandboxes are."""

    PROCESS = "process"
    QEMU = "qemu"


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine host and a node hold at most; `small` makes pressure appear within seconds."""

    context_tokens: int = 512
    kv_pages: int = 4096
    kv_host_pages: int = 0
    """Of an engine, in its host's memory; 0: what leaves the device is computed anew."""
    kv_disk_pages: int = 0
    """Of an engine, in a file of its own that goes with it."""
    engine_slots: int = 64
    sandboxes: int = 256
    upload_bytes: int = 64 * 1024 * 1024
    asset_bytes: int = 8 * 1024 * 1024 * 1024
    """One upload of a model or a dataset version; it is streamed to disk, never held in memory."""
    request_bytes: int = 4 * 1024 * 1024


SMALL_LIMITS: Final = Limits(
    context_tokens=64,
    kv_pages=32,
    engine_slots=2,
    sandboxes=3,
    upload_bytes=1024 * 1024,
    asset_bytes=16 * 1024 * 1024,
    request_bytes=256 * 1024,
)
"""The small-limits profile of the test seams: engine, KV and node are full after a few turns."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Lease and heartbeat times. Invariant: a holder acts at least 3 times within each limit."""

    leader_ttl_s: float = 7.0
    """So that decisions resume within 10 s of a leader's death: a successor waits for it, then takes over."""
    leader_heartbeat_s: float = 2.0
    lease_ttl_s: float = 10.0
    lease_renew_s: float = 2.0
    host_heartbeat_s: float = 1.0
    progress_load_s: float = 120.0
    progress_decode_s: float = 30.0
    progress_sync_s: float = 60.0
    reconcile_s: float = 1.0
    pause_drain_s: float = 20.0
    client_send_s: float = 60.0

    def __post_init__(self) -> None:
        assert self.leader_heartbeat_s * 3 <= self.leader_ttl_s, (
            "leader would lose its term at one delay"
        )
        assert self.lease_renew_s * 3 <= self.lease_ttl_s, (
            "keeper would lose its lease at one delay"
        )


FAST_INTERVALS: Final = Intervals(
    leader_ttl_s=3.0,
    leader_heartbeat_s=0.75,
    lease_ttl_s=3.0,
    lease_renew_s=0.75,
    host_heartbeat_s=0.5,
    progress_load_s=60.0,
    progress_decode_s=8.0,
    progress_sync_s=15.0,
    reconcile_s=0.5,
    pause_drain_s=5.0,
)
"""Intervals of the small profile: takeovers within seconds, yet wide enough for 2 busy cores."""


@dataclass(frozen=True, slots=True)
class Pool:
    """How many hosts of each kind this installation may run at once, and children to keep them."""

    engines: int = 2
    trainers: int = 1
    nodes: int = 1
    spare_children: int = 2
    """So that a replaced host is claimed while the old keeper still cleans up."""

    @property
    def children(self) -> int:
        """Celery pool children: one per keeper, and the spare ones."""
        return self.engines + self.trainers + self.nodes + self.spare_children


@dataclass(frozen=True, slots=True)
class Webhooks:
    """How webhooks are delivered."""

    key: str = field(default="", repr=False)
    """Secrets are derived from it; empty: a file in the home."""
    hosts: tuple[str, ...] = ()
    """Hosts that may be called although their addresses are not public, also without TLS."""
    timeout_s: float = 10.0
    retry_s: float = 5.0
    """Pause after the first failure; the next ones are longer."""
    tries: int = 10
    disable_days: float = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's configuration."""

    home: Path
    database_url: str
    broker_url: str
    object_store_url: str
    profile: Profile = Profile.NORMAL
    limits: Limits = field(default_factory=Limits)
    intervals: Intervals = field(default_factory=Intervals)
    pool: Pool = field(default_factory=Pool)
    tenants: tuple[TenantShare, ...] = ()
    """Organizations with a weight or a guarantee of their own in the pool."""
    webhooks: Webhooks = field(default_factory=Webhooks)
    api_host: str = "127.0.0.1"
    api_port: int = DEFAULT_API_PORT
    schedulers: int = 1
    node_memory_bytes: tuple[int, ...] = ()
    """Memory of each node for sandboxes, the last for all further ones; 0: what the machine or its control
    group has, less others' use."""
    sandbox_kind: SandboxKind = SandboxKind.PROCESS
    database_connections: int = 8
    hub_folder: Path | None = None
    """Local copies of hub repositories, in the layout of a hub client's cache."""
    hub_url: str = ""
    """Where missing hub revisions are fetched; nothing is ever fetched without it."""
    package_index: str = ""
    """Index of the wheels that requirements name; without it what pip is configured with."""
    package_folder: Path | None = None
    """Folder of wheels; with it nothing is downloaded."""
    secret_keys: tuple[bytes, ...] = field(default=(), repr=False)
    """Keys of secrets at rest: the first one seals, all of them open; none: the home's own key file."""
    judge_hosts: tuple[str, ...] = ()
    """Hosts that judges may reach although they are not public: `host` or `host:port`."""
    log_level: str = "INFO"
    is_checking: bool = False
    """Invariants of the core are checked after every step: tests and the small profile."""

    def memory_of_node(self, index: int) -> int:
        """What is named for the node with this index; 0: what it finds."""
        named = self.node_memory_bytes or (0,)
        return named[min(index, len(named) - 1)]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the environment; `BadSettingError` names the variable that cannot be read."""
        source = os.environ if environ is None else environ
        home = Path(source.get("VENUS_HOME") or ".venus").absolute()
        profile = _read(source, "VENUS_PROFILE", Profile, Profile.NORMAL)
        is_small = profile is Profile.SMALL
        _read(source, PAGE_TOKENS_VARIABLE, _page_tokens, PAGE_TOKENS)
        return cls(
            home=home,
            database_url=source.get("DATABASE_URL", ""),
            broker_url=source.get("BROKER_URL", ""),
            object_store_url=source.get("OBJECT_STORE_URL") or (home / "objects").as_uri(),
            profile=profile,
            limits=_overlaid(
                source,
                _overlaid(
                    source, SMALL_LIMITS if is_small else Limits(), LIMIT_VARIABLES, _positive
                ),
                OPTIONAL_LIMIT_VARIABLES,
                _count,
            ),
            intervals=_overlaid(
                source, FAST_INTERVALS if is_small else Intervals(), INTERVAL_VARIABLES, _seconds
            ),
            pool=_overlaid(source, Pool(), POOL_VARIABLES, _count),
            tenants=_read(source, "VENUS_TENANTS", tenant_shares, ()),
            webhooks=_webhooks(source),
            api_host=source.get("VENUS_API_HOST") or "127.0.0.1",
            api_port=_read(source, "VENUS_API_PORT", _port, DEFAULT_API_PORT),
            node_memory_bytes=_read(source, "VENUS_NODE_MEMORY_BYTES", _counts, ()),
            sandbox_kind=_read(source, "VENUS_SANDBOX_RUNTIME", SandboxKind, SandboxKind.PROCESS),
            schedulers=_read(source, "VENUS_SCHEDULERS", _positive, 1),
            database_connections=_read(source, "VENUS_DATABASE_CONNECTIONS", _positive, 8),
            hub_folder=_path(source, "VENUS_HUB_FOLDER"),
            hub_url=source.get("VENUS_HUB_URL", "").rstrip("/"),
            package_index=source.get("VENUS_PACKAGE_INDEX", ""),
            package_folder=_path(source, "VENUS_PACKAGE_FOLDER"),
            secret_keys=_secret_keys(source.get("VENUS_SECRET_KEY", "")),
            judge_hosts=_words(source.get("VENUS_JUDGE_HOSTS", "")),
            log_level=(source.get("VENUS_LOG_LEVEL") or "INFO").upper(),
            is_checking=_read(source, "VENUS_CHECK_INVARIANTS", _boolean, is_small),
        )


PAGE_TOKENS_VARIABLE: Final = "VENUS_KV_PAGE_TOKENS"
"""Was a setting that no engine followed; whoever still has it learns whether that matters."""

LIMIT_VARIABLES: Final[Mapping[str, str]] = {
    "VENUS_CONTEXT_TOKENS": "context_tokens",
    "VENUS_KV_PAGES": "kv_pages",
    "VENUS_ENGINE_SLOTS": "engine_slots",
    "VENUS_SANDBOXES": "sandboxes",
    "VENUS_UPLOAD_BYTES": "upload_bytes",
    "VENUS_ASSET_BYTES": "asset_bytes",
    "VENUS_REQUEST_BYTES": "request_bytes",
}

OPTIONAL_LIMIT_VARIABLES: Final[Mapping[str, str]] = {
    "VENUS_KV_HOST_PAGES": "kv_host_pages",
    "VENUS_KV_DISK_PAGES": "kv_disk_pages",
}
"""Limits that may be 0: the tier is off."""

INTERVAL_VARIABLES: Final[Mapping[str, str]] = {
    "VENUS_LEADER_TTL_S": "leader_ttl_s",
    "VENUS_LEADER_HEARTBEAT_S": "leader_heartbeat_s",
    "VENUS_LEASE_TTL_S": "lease_ttl_s",
    "VENUS_LEASE_RENEW_S": "lease_renew_s",
    "VENUS_HOST_HEARTBEAT_S": "host_heartbeat_s",
    "VENUS_PROGRESS_LOAD_S": "progress_load_s",
    "VENUS_PROGRESS_DECODE_S": "progress_decode_s",
    "VENUS_PROGRESS_SYNC_S": "progress_sync_s",
    "VENUS_RECONCILE_S": "reconcile_s",
    "VENUS_PAUSE_DRAIN_S": "pause_drain_s",
    "VENUS_CLIENT_SEND_S": "client_send_s",
}

POOL_VARIABLES: Final[Mapping[str, str]] = {
    "VENUS_POOL_ENGINES": "engines",
    "VENUS_POOL_TRAINERS": "trainers",
    "VENUS_POOL_NODES": "nodes",
    "VENUS_POOL_SPARE_CHILDREN": "spare_children",
}

WEBHOOK_VARIABLES: Final[Mapping[str, str]] = {
    "VENUS_WEBHOOK_TIMEOUT_S": "timeout_s",
    "VENUS_WEBHOOK_RETRY_S": "retry_s",
    "VENUS_WEBHOOK_DISABLE_DAYS": "disable_days",
}

VARIABLES: Final = (
    "VENUS_HOME",
    "DATABASE_URL",
    "BROKER_URL",
    "OBJECT_STORE_URL",
    "VENUS_PROFILE",
    *LIMIT_VARIABLES,
    *OPTIONAL_LIMIT_VARIABLES,
    "VENUS_NODE_MEMORY_BYTES",
    *INTERVAL_VARIABLES,
    *POOL_VARIABLES,
    "VENUS_TENANTS",
    *WEBHOOK_VARIABLES,
    "VENUS_WEBHOOK_TRIES",
    "VENUS_WEBHOOK_HOSTS",
    "VENUS_WEBHOOK_KEY",
    "VENUS_API_HOST",
    "VENUS_API_PORT",
    "VENUS_SANDBOX_RUNTIME",
    "VENUS_SCHEDULERS",
    "VENUS_DATABASE_CONNECTIONS",
    "VENUS_HUB_FOLDER",
    "VENUS_HUB_URL",
    "VENUS_PACKAGE_INDEX",
    "VENUS_PACKAGE_FOLDER",
    "VENUS_SECRET_KEY",
    "VENUS_JUDGE_HOSTS",
    "VENUS_LOG_LEVEL",
    "VENUS_CHECK_INVARIANTS",
)
"""Every variable that `Settings.from_env` reads."""

PORT_MAX: Final = 65_535

TRUE_TEXTS: Final = frozenset({"1", "true", "yes", "on"})
FALSE_TEXTS: Final = frozenset({"0", "false", "no", "off"})


SECRET_KEY_BYTES: Final = 32
"""AES-256."""


def secret_key(text: str) -> bytes:
    """A key from its text: 32 bytes in URL-safe base64. The error never shows the text."""
    try:
        key = base64.b64decode(text.strip().encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != SECRET_KEY_BYTES:
        raise ValueError(f"a key is {SECRET_KEY_BYTES} bytes in URL-safe base64")
    return key


def _secret_keys(text: str) -> tuple[bytes, ...]:
    try:
        return tuple(secret_key(one) for one in _words(text))
    except ValueError as error:
        raise BadSettingError(f"VENUS_SECRET_KEY: {error}; several are split by commas") from None


def _page_tokens(text: str) -> int:
    if (number := int(text)) != PAGE_TOKENS:
        raise ValueError(f"a KV page has {PAGE_TOKENS} tokens, which is no setting any more")
    return number


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _boolean(text: str) -> bool:
    if text.lower() in TRUE_TEXTS | FALSE_TEXTS:
        return text.lower() in TRUE_TEXTS
    raise ValueError(f"not a boolean: {text!r}")


def _path(source: Mapping[str, str], variable: str) -> Path | None:
    text = source.get(variable, "")
    return Path(text) if text else None


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError("it must be 0 or more")
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError("it must be 1 or more")
    return number


def _port(text: str) -> int:
    if not 0 <= (number := int(text)) <= PORT_MAX:
        raise ValueError(f"it must be 0 to {PORT_MAX}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise ValueError("it must be a time above 0")
    return number


def _read(source: Mapping[str, str], variable: str, kind: Callable[[str], T], default: T) -> T:
    text = source.get(variable, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError as error:
        raise BadSettingError(f"{variable}={text!r}: {error}") from error


def _webhooks(source: Mapping[str, str]) -> Webhooks:
    base = Webhooks(
        key=source.get("VENUS_WEBHOOK_KEY", ""),
        hosts=_words(source.get("VENUS_WEBHOOK_HOSTS", "").lower()),
        tries=_read(source, "VENUS_WEBHOOK_TRIES", int, Webhooks().tries),
    )
    return _overlaid(source, base, WEBHOOK_VARIABLES, float)


def _overlaid(
    source: Mapping[str, str],
    base: T,
    variables: Mapping[str, str],
    kind: Callable[[str], float],
) -> T:
    read = {
        name: _read(source, variable, kind, 0.0)
        for variable, name in variables.items()
        if source.get(variable)
    }
    return replace(base, **read)  # type: ignore[type-var]  # T is one of the dataclasses above
