"""API keys: random, recognisable, never stored."""

from pathlib import Path

from api.auth.keys import KEY_PREFIX, new_secret, secret_hash, shown_prefix
from api.bootstrap import kept_secret
from infra.logging import redact_text


def test_secrets_are_long_and_differ() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(one.startswith(KEY_PREFIX) and len(one) >= 36 for one in secrets)


def test_what_is_kept_of_a_secret_does_not_give_it_away() -> None:
    secret = new_secret()
    assert secret not in secret_hash(secret)
    assert len(shown_prefix(secret)) == 12
    assert secret.startswith(shown_prefix(secret))


def test_a_log_line_never_holds_a_whole_secret() -> None:
    secret = new_secret()
    assert secret not in redact_text(f"Authorization: Bearer {secret}")


def test_the_admin_key_of_a_home_is_made_once_and_readable_by_its_owner_only(
    tmp_path: Path,
) -> None:
    first = kept_secret(tmp_path / "home")
    assert kept_secret(tmp_path / "home") == first
    assert (tmp_path / "home" / "admin.key").stat().st_mode & 0o777 == 0o600
