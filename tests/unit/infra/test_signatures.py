"""Signatures of webhooks, secrets that are derived, pauses that grow."""

import base64
import hashlib
import hmac

from infra import signatures

KEY = b"installation"


def test_a_published_example_of_the_scheme_is_reproduced() -> None:
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    message = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    found = signatures.signature(secret, message, 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_webhook_and_generation_has_a_secret_of_its_own() -> None:
    named = [("whk_1", 1), ("whk_1", 2), ("whk_2", 1), ("whk_1/1", 1)]
    secrets = {signatures.secret_of(KEY, *one) for one in named}
    assert len(secrets) == len(named)
    assert signatures.secret_of(KEY, "whk_1", 1) in secrets
    assert signatures.secret_of(b"other", "whk_1", 1) not in secrets


def test_a_shown_secret_is_what_signs() -> None:
    secret = signatures.secret_of(KEY, "whk_1", 1)
    kept = base64.b64decode(signatures.shown_secret(secret).removeprefix("whsec_"))
    digest = hmac.new(kept, b"evt.5.{}", hashlib.sha256).digest()
    wanted = "v1," + base64.b64encode(digest).decode()
    assert signatures.signature(secret, "evt", 5, b"{}") == wanted


def test_pauses_grow_up_to_half_a_day_and_differ_by_chance() -> None:
    middle = [signatures.retry_pause_s(tries, 5.0, 0.5) for tries in range(1, 11)]
    assert middle[:4] == [5.0, 20.0, 80.0, 320.0]
    assert middle == sorted(middle)
    assert middle[-1] == signatures.RETRY_MAX_S
    assert signatures.retry_pause_s(10_000, 5.0, 0.5) == signatures.RETRY_MAX_S
    first, last = (signatures.retry_pause_s(1, 5.0, chance) for chance in (0.0, 1.0))
    assert (first, last) == (4.0, 6.0)


def test_the_check_of_a_key_tells_two_apart() -> None:
    assert signatures.key_check(KEY) == signatures.key_check(KEY)
    assert signatures.key_check(KEY) != signatures.key_check(b"other")
