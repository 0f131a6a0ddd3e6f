"""Secrets at rest open under their own key and place only."""

import base64
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from domain.errors import SecretUnavailable
from infra.settings import BadSettingError, Settings
from infra.vault import Vault, make_key_file, secret_context

OLD, NEW = bytes(32), bytes(range(32))
PLACE = secret_context("prj_1", "openai")


def test_a_value_opens_again_and_its_sealed_form_does_not_show_it() -> None:
    sealed = Vault((OLD,)).seal("sk-canary-value", PLACE)
    assert b"canary" not in sealed
    assert Vault((OLD,)).open(sealed, PLACE) == "sk-canary-value"


def test_the_same_value_is_sealed_differently_each_time() -> None:
    vault = Vault((OLD,))
    assert vault.seal("sk-canary-value", PLACE) != vault.seal("sk-canary-value", PLACE)


@pytest.mark.parametrize("place", [secret_context("prj_2", "openai"), secret_context("prj_1", "b")])
def test_a_value_that_was_moved_to_another_project_or_name_does_not_open(place: str) -> None:
    vault = Vault((OLD,))
    with pytest.raises(SecretUnavailable, match="not its own"):
        vault.open(vault.seal("sk-canary-value", PLACE), place)


def test_after_a_rotation_the_old_key_still_opens_and_the_new_one_seals() -> None:
    before = Vault((OLD,)).seal("sk-canary-value", PLACE)
    rotated = Vault((NEW, OLD))
    assert rotated.open(before, PLACE) == "sk-canary-value"
    after = rotated.seal("sk-canary-value", PLACE)
    assert Vault((NEW,)).open(after, PLACE) == "sk-canary-value"
    with pytest.raises(SecretUnavailable, match="has not"):
        Vault((NEW,)).open(before, PLACE)


@pytest.mark.parametrize("damage", [b"", b"\x02rest", b"\x01short"])
def test_what_is_no_sealed_value_is_refused(damage: bytes) -> None:
    with pytest.raises(SecretUnavailable):
        Vault((OLD,)).open(damage, PLACE)


def test_a_changed_byte_is_found() -> None:
    vault = Vault((OLD,))
    sealed = bytearray(vault.seal("sk-canary-value", PLACE))
    sealed[-1] ^= 1
    with pytest.raises(SecretUnavailable, match="damaged"):
        vault.open(bytes(sealed), PLACE)


def test_without_a_key_the_refusal_says_which_setting_is_missing(tmp_path: Path) -> None:
    settings = Settings.from_env({"VENUS_HOME": str(tmp_path)})
    with pytest.raises(SecretUnavailable, match="VENUS_SECRET_KEY"):
        Vault.of(settings).seal("sk-canary-value", PLACE)


def test_the_homes_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = make_key_file(tmp_path)
    first = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_key_file(tmp_path).read_bytes() == first
    settings = Settings.from_env({"VENUS_HOME": str(tmp_path)})
    sealed = Vault.of(settings).seal("sk-canary-value", PLACE)
    assert Vault.of(replace(settings)).open(sealed, PLACE) == "sk-canary-value"


def test_a_key_file_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    make_key_file(tmp_path).write_text("not a key")
    with pytest.raises(SecretUnavailable, match=r"secret\.key holds no usable key"):
        Vault.of(Settings.from_env({"VENUS_HOME": str(tmp_path)}))


def test_a_bad_setting_is_refused_without_showing_it() -> None:
    with pytest.raises(BadSettingError, match="VENUS_SECRET_KEY") as refused:
        Settings.from_env({"VENUS_SECRET_KEY": "canary-of-a-key"})
    assert "canary" not in str(refused.value)


def test_settings_do_not_show_their_keys() -> None:
    key = base64.urlsafe_b64encode(os.urandom(32)).decode()
    settings = Settings.from_env({"VENUS_SECRET_KEY": key})
    assert len(settings.secret_keys) == 1
    assert "secret_keys" not in repr(settings)
