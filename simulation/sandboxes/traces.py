"""Memory of recorded sandboxes: the field `sandbox` of the compact trajectory format, version 1.

The files are not part of the tree. Samples come about once a second and are put on whole seconds;
whether the model wrote or a tool ran follows from the turns' seconds.
"""

import gzip
import json
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from simulation.sandboxes.demand import MB, MemoryTrace

STEMS: Final = ("swe_glm", "swe_haiku", "swe_haiku18")
"""Files whose rows have sandboxes."""


def read_memory(folder: Path) -> list[MemoryTrace]:
    """All recorded sandboxes of a folder, in the order of files and rows."""
    found = []
    for stem in STEMS:
        with gzip.open(folder / f"{stem}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        found += [memory_of(row) for row in rows if row["sandbox"]["rss_mb"]]
    return found


def memory_of(row: Mapping[str, Any]) -> MemoryTrace:
    """The sandbox of one row."""
    sandbox = row["sandbox"]
    step_s, rss = sandbox["dt"], sandbox["rss_mb"]
    seconds = max(1, int(len(rss) * step_s))
    places = [min(len(rss) - 1, int(second / step_s)) for second in range(seconds)]
    parts = [(turn["gen_seconds"] or 0.0, turn["tool_seconds"] or 0.0) for turn in row["turns"]]
    ends = list(accumulate(a + b for a, b in parts))
    turns, idle = [], []
    for second in range(seconds):
        at = second + sandbox["start_offset"]
        turn = min(len(parts) - 1, bisect_right(ends, at))
        begin = ends[turn - 1] if turn else 0.0
        turns.append(turn)
        idle.append(begin <= at < begin + parts[turn][0])
    return MemoryTrace(
        rss_bytes=tuple(round(rss[place] * MB) for place in places),
        cores=tuple(sandbox["cpu_pct"][place] / 100 for place in places),
        turns=tuple(turns),
        in_generation=tuple(idle),
    )
