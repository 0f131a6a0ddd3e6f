"""Same seed, same commands, under any hash seed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.property.digests import STRATEGIES

ROOT: Final = Path(__file__).resolve().parents[2]

HASH_SEEDS: Final = ("0", "1", "12345")


def test_three_hash_seeds_give_the_same_commands() -> None:
    """Faulty coordinators, and a simulated run of every strategy."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.property.digests"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    ]
    lines = [one.communicate()[0].splitlines() for one in running]
    assert [one.returncode for one in running] == [0, 0, 0]
    assert len(lines[0]) == 1 + len(STRATEGIES)
    assert lines[1] == lines[0]
    assert lines[2] == lines[0]
