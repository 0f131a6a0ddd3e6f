"""`python -m benchmarks.density`: 300 paired rollouts of `shell`, a group at a time and on a full node.

Real gateway, leader, node agent and sandboxes; only what the agents say is scripted. Exits with 1 when a
verdict flips, when a command times out that did not alone, or when a reward is not what the script earns.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict

from benchmarks.density.actions import GROUP_SIZE, script_of
from benchmarks.density.report import markdown
from benchmarks.density.run import STEPS, run
from benchmarks.density.verdicts import compare
from benchmarks.schedule.arguments import natural

ROLLOUTS = 300
PER_CORE = 8
"""Coding sandboxes to a core, as on the public traces."""


def main() -> int:
    """Run both, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.density", description=__doc__)
    parser.add_argument("--rollouts", type=natural, default=ROLLOUTS)
    parser.add_argument("--sandboxes", type=natural, default=PER_CORE * (os.cpu_count() or 1))
    parser.add_argument("--seed", type=natural, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.rollouts % (GROUP_SIZE * STEPS):
        parser.error(f"rollouts must be a multiple of {GROUP_SIZE * STEPS}")
    full = run(asked.sandboxes, asked.rollouts, asked.seed)
    print(f"{asked.sandboxes} at once: {full.seconds:.0f} s", file=sys.stderr, flush=True)
    alone = run(GROUP_SIZE, asked.rollouts, asked.seed)
    print(f"{GROUP_SIZE} at a time: {alone.seconds:.0f} s", file=sys.stderr, flush=True)
    earned = {
        place: float(script_of(asked.seed, *place).is_right)
        for place in alone.verdicts.keys() | full.verdicts.keys()
    }
    found = compare(alone.verdicts, full.verdicts, earned)
    if asked.json:
        print(json.dumps(asdict(found)))
    else:
        print(markdown(found, alone, full))
    is_whole = found.pairs == asked.rollouts and not found.missing
    return 0 if is_whole and not (found.flipped or found.late or found.wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
