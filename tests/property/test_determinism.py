"""Same seed, same commands, under any hash seed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import hashlib
from tests.mutants.registry import apply_from_environment
apply_from_environment()
from tests.property.worlds import random_world, run_out
digest = hashlib.sha256()
for seed in (3, 11, 27):
    world, jobs, chance = random_world(seed)
    run_out(world, jobs, chance)
    digest.update(repr(world.log).encode())
print(digest.hexdigest())
"""


def commands_under(hash_seed: str) -> str:
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_three_hash_seeds_give_the_same_commands() -> None:
    assert len({commands_under(seed) for seed in ("0", "1", "4242")}) == 1
