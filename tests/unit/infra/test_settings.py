"""Settings: defaults, overlays, profiles, and errors that name the variable."""

from pathlib import Path

import pytest

from domain import engine
from infra.settings import VARIABLES, BadSettingError, Intervals, Profile, Settings
from workers.rollout.embedded import arena
from workers.rollout.embedded.pages import nodes

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_an_empty_environment_gives_the_embedded_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.profile is Profile.NORMAL
    assert (settings.database_url, settings.broker_url) == ("", "")
    assert settings.object_store_url == (settings.home / "objects").as_uri()
    assert (settings.pool.engines, settings.pool.trainers, settings.pool.nodes) == (2, 1, 1)


def test_the_small_profile_has_the_documented_limits() -> None:
    limits = Settings.from_env({"VENUS_PROFILE": "small"}).limits
    held = (limits.context_tokens, limits.kv_pages, limits.engine_slots, limits.sandboxes)
    assert held == (64, 32, 2, 3)


def test_a_variable_overrides_its_profile() -> None:
    settings = Settings.from_env({"VENUS_PROFILE": "small", "VENUS_ENGINE_SLOTS": "5"})
    assert (settings.limits.engine_slots, settings.limits.kv_pages) == (5, 32)


def test_pool_children_keep_every_host_and_a_spare() -> None:
    pool = Settings.from_env({"VENUS_POOL_ENGINES": "3", "VENUS_POOL_SPARE_CHILDREN": "1"}).pool
    assert pool.children == 3 + 1 + 1 + 1


def test_a_page_has_the_tokens_that_it_always_had() -> None:
    assert Settings.from_env({"VENUS_KV_PAGE_TOKENS": "16"}) == Settings.from_env({})
    assert arena.PAGE_TOKENS == nodes.PAGE_TOKENS == engine.PAGE_TOKENS


@pytest.mark.parametrize("variable", ["VENUS_KV_HOST_PAGES", "VENUS_KV_DISK_PAGES"])
def test_an_outer_tier_may_have_no_page(variable: str) -> None:
    limits = Settings.from_env({variable: "0"}).limits
    assert (limits.kv_host_pages, limits.kv_disk_pages) == (0, 0)
    with pytest.raises(BadSettingError, match=variable):
        Settings.from_env({variable: "-1"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("VENUS_PROFILE", "tiny"),
        ("VENUS_SANDBOX_RUNTIME", "container"),
        ("VENUS_KV_PAGES", "0"),
        ("VENUS_KV_PAGE_TOKENS", "32"),
        ("VENUS_API_PORT", "eighty"),
        ("VENUS_API_PORT", "65536"),
        ("VENUS_POOL_ENGINES", "-1"),
        ("VENUS_SANDBOXES", "0"),
        ("VENUS_SCHEDULERS", "0"),
        ("VENUS_LEASE_TTL_S", "-3"),
        ("VENUS_RECONCILE_S", "nan"),
        ("VENUS_LEASE_TTL_S", "soon"),
        ("VENUS_CHECK_INVARIANTS", "perhaps"),
    ],
)
def test_unreadable_text_names_its_variable(variable: str, text: str) -> None:
    with pytest.raises(BadSettingError, match=variable):
        Settings.from_env({variable: text})


def test_a_heartbeat_too_slow_for_its_limit_is_refused() -> None:
    with pytest.raises(AssertionError):
        Intervals(lease_ttl_s=3.0, lease_renew_s=2.0)


def test_the_reference_page_lists_every_variable() -> None:
    text = REFERENCE.read_text()
    assert [variable for variable in VARIABLES if f"`{variable}`" not in text] == []
