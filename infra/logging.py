"""Structured logs: one JSON object a line, event named `noun.verb`, secrets struck out at the sink.

Call `configure` once in each process's main, then `get_logger()` anywhere. Values bound by
`structlog.contextvars.bind_contextvars` (job_id, host_id, epoch, term) appear on every line.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import structlog

SECRET_KEYS: Final = frozenset(
    {"authorization", "password", "secret", "token", "api_key", "admin_key", "host_key", "cookie"}
)
"""Keys whose value never reaches a log, whatever it holds."""

SECRET_TEXT: Final = re.compile(
    r"((?:vrl|whsec)_[A-Za-z0-9_\-+/]{4})[A-Za-z0-9_\-+/=]+|(?<=://)([^:/@\s]+):([^@/\s]+)@",
    re.ASCII,
)
"""API keys (a short prefix stays, to tell them apart) and passwords inside URLs."""

KNOWN_KEYS: Final = re.compile(
    r"\b(hf_|sk-|ghp_|xox[bap]-|AKIA)[A-Za-z0-9_\-]{12,}|(?i:\b(bearer) )[A-Za-z0-9._~+/\-]{12,}=*",
    re.ASCII,
)
"""What keys of widespread services look like: user code prints them too."""

STRUCK: Final = "[redacted]"

Record = MutableMapping[str, Any]

Strike = Callable[[str], str]
"""Text without the values that a process holds."""

_strikes: list[Strike] = []


@contextmanager
def striking(strike: Strike) -> Iterator[None]:
    """While the block runs, every line of this process's log goes through `strike` too."""
    _strikes.append(strike)
    try:
        yield
    finally:
        _strikes.remove(strike)


def redact(_logger: object, _method: str, record: Record) -> Record:
    """A structlog processor: strike secrets out of keys and texts, nested ones included."""
    for key in list(record):
        # What begins with an underscore is structlog's own and is taken out before anything is written.
        if not key.startswith("_"):
            record[key] = STRUCK if key.lower() in SECRET_KEYS else _redacted(record[key])
    return record


def redact_text(text: str) -> str:
    """`text` without API keys, URL passwords, keys of other services, and values that this process holds."""
    for strike in _strikes:
        text = strike(text)
    struck = KNOWN_KEYS.sub(lambda found: f"{found[1] or found[2] + ' '}{STRUCK}", text)
    return SECRET_TEXT.sub(_strike, struck)


def _strike(found: re.Match[str]) -> str:
    return f"{found[1]}{STRUCK}" if found[1] else f"{found[2]}:{STRUCK}@"


def _redacted(value: object) -> object:
    match value:
        case str():
            return redact_text(value)
        case dict():
            return {
                key: STRUCK if str(key).lower() in SECRET_KEYS else _redacted(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_redacted(item) for item in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return redact_text(str(value))


def configure(process: str, level: str = "INFO") -> None:
    """Send every log of this process, the standard library's included, to stderr as JSON lines."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _naming(process),
        redact,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=str),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _naming(process: str) -> structlog.typing.Processor:
    def name_process(_logger: object, _method: str, record: Record) -> Record:
        record["process"] = process
        return record

    return name_process


def get_logger() -> structlog.stdlib.BoundLogger:
    """A logger; bind ids to it: `get_logger().bind(job_id=...)`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger
