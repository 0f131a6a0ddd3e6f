"""The fixed numbers: read from one file, all of them, under a digest."""

import hashlib

import pytest

from benchmarks.fixed import FIXED_FILE, fixed, read_fixed


def test_the_digest_is_that_of_the_file() -> None:
    assert fixed().sha256 == hashlib.sha256(FIXED_FILE.read_bytes()).hexdigest()


def test_another_number_is_another_digest() -> None:
    content = FIXED_FILE.read_bytes()
    changed = read_fixed(content.replace(b"weight_sync_s = 5.0", b"weight_sync_s = 4.0"))
    assert (changed.weight_sync_s, changed.sha256 != fixed().sha256) == (4.0, True)


def test_a_name_that_nothing_reads_is_refused() -> None:
    content = FIXED_FILE.read_bytes()
    with pytest.raises(TypeError, match="spreed"):
        read_fixed(content.replace(b"spread = 0.15", b"spreed = 0.15"))


def test_there_are_sixteen_regimes_and_five_seeds() -> None:
    """Each regime with the host tier off and on makes 32 cells."""
    assert len(fixed().full.regimes) == 16
    assert (fixed().full.batches, len(fixed().full.seeds)) == (24, 5)
    assert (fixed().quick.batches, len(fixed().quick.seeds)) == (6, 2)
    assert set(fixed().quick.regimes) == {"low", "mid", "mid-heavy"}


def test_what_a_regime_does_not_name_is_as_usual() -> None:
    low = fixed().regimes["low"]
    assert (low.groups_per_batch, low.spread, low.async_ratio, low.max_staleness) == (
        3,
        0.4,
        1.5,
        2,
    )
    assert (low.engine, low.engines, low.tool_factor, low.trainer_tokens_s) == (
        "8b-h100", 4, 1.0, 60_000,
    )  # fmt: skip


def test_what_a_regime_names_is_its_own() -> None:
    regimes = fixed().regimes
    assert (regimes["mid-sync"].async_ratio, regimes["mid-sync"].max_staleness) == (1.0, 0)
    assert regimes["mid-trainer"].trainer_tokens_s == 4_500
    assert (regimes["many"].groups_per_batch, regimes["many"].engines) == (64, 32)
    assert (regimes["tp4"].engine, regimes["tp4"].trainer_tokens_s) == ("32b-4xh100", 30_000)
    assert regimes["terminal"].base == "terminal_mini"
    assert fixed().shape_of(regimes["mid-heavy"]).tool_factor == 4.0


def test_groups_open_at_once_are_rounded_up() -> None:
    assert fixed().regimes["low"].groups_open_max == 5
    assert fixed().regimes["mid"].groups_open_max == 12


@pytest.mark.parametrize(
    ("engine", "floor_s", "host_tokens"),
    [
        ("8b-h100", 16.4e9 / 2.345e12 + 0.003, 1_464_000),
        ("8b-h200", 16.4e9 / 3.36e12 + 0.003, 2_920_000),
        ("32b-4xh100", 65.5e9 / 8.04e12 + 0.006, 3_300_000),
    ],
)
def test_engines_have_their_bandwidth_after_losses(
    engine: str, floor_s: float, host_tokens: int
) -> None:
    physics = fixed().engines[engine]
    assert physics.step_floor_s == pytest.approx(floor_s)
    assert physics.host_tier_tokens == host_tokens
    assert physics.disk_bytes_s == 5e9
