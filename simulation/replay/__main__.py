"""`python -m simulation.replay LOG`: do recorded events still give the recorded commands?

LOG is a segment, or a folder of segments (an object store's `event-log`, or one term in it). Instead of
it `--home` or `--store` name an installation's object store; `--term` takes one term's log of either.
The exit status is 0 when all that is there is identical, 1 at a difference, 2 when records are missing
or something cannot be read. Whether a log goes on after its last segment is known only where the leader
stepped down in order.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.errors import PayloadUnreadable
from infra.event_log import code_identity
from infra.names import EVENT_LOG_FOLDER
from simulation.replay.compare import Difference, Log, Missing, Outcome, logs_of, replay
from simulation.replay.reading import Segments, read_files, read_store
from stores.blobs import Blobs

SHOWN_MAX: Final = 20
"""Commands that are printed of a step that differs; the rest is counted."""

EXIT_DIFFERS: Final = 1
EXIT_UNPROVEN: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what the arguments name; the exit status."""
    options = _options(arguments)
    try:
        read = _read(options)
    except (PayloadUnreadable, OSError, ValueError) as error:
        print(f"cannot read the log: {error}", file=sys.stderr)
        return EXIT_UNPROVEN
    for path, cause in read.unreadable:
        print(f"cannot read {path}: {cause}", file=sys.stderr)
    for path, same in read.copies:
        print(f"left out {path}: a copy of {same}", file=sys.stderr)
    logs = [log for log in logs_of(read.found) if options.term in (None, log.header.term)]
    if not logs and not read.unreadable:
        of_term = "" if options.term is None else f" of term {options.term}"
        print(f"no segment of an event log{of_term} is there", file=sys.stderr)
    statuses = [_tell(log, replay(log)) for log in logs]
    if read.unreadable or not logs:
        statuses.append(EXIT_UNPROVEN)
    return EXIT_DIFFERS if EXIT_DIFFERS in statuses else max(statuses)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.replay", description=__doc__)
    parser.add_argument("log", nargs="?", type=Path, help="a segment, or a folder of segments")
    parser.add_argument("--home", type=Path, help="an installation's VENUS_HOME")
    parser.add_argument("--store", help="URL of an object store")
    parser.add_argument("--term", type=int, help="only this term's log")
    options = parser.parse_args(arguments)
    named = [one for one in (options.log, options.home, options.store) if one is not None]
    if len(named) != 1:
        parser.error("name one of LOG, --home and --store")
    return options


def _read(options: argparse.Namespace) -> Segments:
    if options.store is not None:
        return asyncio.run(read_store(Blobs(options.store), options.term))
    root: Path = options.log or options.home / "objects" / EVENT_LOG_FOLDER
    return read_files(root, options.term)


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
            if not log.is_closed:
                print("  it does not say where it ends: segments may be missing after the last one")
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
