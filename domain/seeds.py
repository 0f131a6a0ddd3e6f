"""Seeds of tries: pure functions of what names them, so that whoever asks again gets the same."""

import hashlib

from domain.ids import RolloutId


def rollout_seed(seed: int, rollout: RolloutId, try_: int) -> int:
    """Seed of a try: the same job seed gives the same stream for the same member.

    The attempt's id is left out on purpose: two jobs with one seed sample alike.
    """
    _, _, member = rollout.removeprefix("ro_").partition("_")
    digest = hashlib.sha256(f"{seed}:{member}:{try_}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
