"""`python -m simulation.replay LOG`: do recorded events still give the recorded commands?

LOG is a segment, or a folder of segments (an object store's `event-log`, or one term in it). Without
it `--home` or `--store` name an installation's object store, `--term` one log of it. The exit status
is 0 when all is identical, 1 at a difference, 2 when records are missing or nothing can be read.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.errors import PayloadUnreadable
from domain.event_log import LogSegment
from infra.event_log import SegmentUnreadable, code_identity, decode_segment
from infra.names import EVENT_LOG_FOLDER
from simulation.replay.compare import Difference, Log, Missing, Outcome, logs_of, replay
from stores.blobs import Blobs

SHOWN_MAX: Final = 20
"""Commands that are printed of a step that differs; the rest is counted."""

EXIT_DIFFERS: Final = 1
EXIT_UNPROVEN: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what the arguments name; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        segments = _read(options)
    except (PayloadUnreadable, SegmentUnreadable, OSError) as error:
        print(f"cannot read the log: {error}", file=sys.stderr)
        return EXIT_UNPROVEN
    logs = [log for log in logs_of(segments) if options.term in (None, log.header.term)]
    if not logs:
        print("no segment of an event log is there", file=sys.stderr)
        return EXIT_UNPROVEN
    statuses = [_tell(log, replay(log)) for log in logs]
    return EXIT_DIFFERS if EXIT_DIFFERS in statuses else max(statuses)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation.replay", description=__doc__)
    parser.add_argument("log", nargs="?", type=Path, help="a segment, or a folder of segments")
    parser.add_argument("--home", type=Path, help="an installation's VENUS_HOME")
    parser.add_argument("--store", help="URL of an object store")
    parser.add_argument("--term", type=int, help="only this term's log")
    return parser


def _read(options: argparse.Namespace) -> list[LogSegment]:
    if options.store is not None:
        return asyncio.run(_read_store(Blobs(options.store), options.term))
    if options.log is None and options.home is None:
        raise FileNotFoundError("name a LOG, --home or --store")
    root: Path = options.log or options.home / "objects" / EVENT_LOG_FOLDER
    paths = [root] if root.is_file() else sorted(root.rglob("*.segment"))
    return [decode_segment(path.read_bytes()) for path in paths]


async def _read_store(blobs: Blobs, term: int | None) -> list[LogSegment]:
    folder = EVENT_LOG_FOLDER if term is None else f"{EVENT_LOG_FOLDER}/{term:010d}"
    paths = [path for path in await blobs.paths(folder) if path.endswith(".segment")]
    return [decode_segment(await blobs.read(path)) for path in paths]


def _tell(log: Log, outcome: Outcome) -> int:
    """Print one log's outcome; its exit status."""
    header = log.segments[-1].header
    refused = sum(count for _, count in header.refused)
    about = f"term {log.header.term}, {len(log.segments)} segments, {refused} events refused"
    if log.header.code != code_identity():
        about += f", recorded by other code ({log.header.code})"
    counts = f"{outcome.events} events, {outcome.commands} commands, {outcome.sha}"
    match outcome.ended:
        case None:
            print(f"identical: {counts} ({about})")
            return 0
        case Missing(number=number, why=why):
            print(f"identical up to record {number}, then incomplete: {counts} ({about})")
            print(f"  {why}")
            return EXIT_UNPROVEN
        case Difference() as difference:
            print(f"different at record {difference.record.number}: {counts} before ({about})")
            _show(difference)
            return EXIT_DIFFERS


def _show(difference: Difference) -> None:
    record = difference.record
    print(f"  {difference.why}")
    print(f"  at       {record.now!r}")
    print(f"  event    {record.event!r}")
    print(f"  expected {record.sha}: {' '.join(record.kinds) or 'no command'}")
    print(f"  got      {len(difference.got)} commands")
    for command in difference.got[:SHOWN_MAX]:
        print(f"           {command!r}")
    if len(difference.got) > SHOWN_MAX:
        print(f"           and {len(difference.got) - SHOWN_MAX} more")


if __name__ == "__main__":
    sys.exit(main())
