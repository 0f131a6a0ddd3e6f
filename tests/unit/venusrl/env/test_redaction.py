"""Secrets are struck out in every spelling that programs print; nothing else is touched."""

import base64
import json
from urllib.parse import quote

import pytest

from venusrl.env.redaction import STRUCK, Redactor

SECRET = 'p@ss/w"ord\\with é and +signs'


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        json.dumps({"key": SECRET}),
        json.dumps({"key": SECRET}, ensure_ascii=False),
        repr(SECRET),
        repr({"key": SECRET}),
        repr(SECRET.encode()),
        quote(SECRET, safe=""),
        SECRET.encode().hex(),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
        base64.b64encode(f"us:{SECRET}:tail".encode()).decode(),
        base64.b64encode(f"u:{SECRET}".encode()).decode(),
    ],
)
def test_a_secret_is_struck_out_in_every_usual_spelling(spelled: str) -> None:
    struck = Redactor([SECRET]).text(f"before {spelled} after")
    assert STRUCK in struck
    assert struck.startswith("before ")
    assert struck.endswith(" after")
    assert SECRET not in struck
    assert SECRET[4:] not in struck


def test_raw_bytes_are_struck_like_text() -> None:
    redactor = Redactor([SECRET])
    assert redactor.raw(b"\xff" + SECRET.encode() + b"\xfe") == b"\xff[redacted]\xfe"
    assert redactor.longest >= len(SECRET.encode())


def test_each_line_of_a_secret_with_several_lines_is_struck() -> None:
    secret = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQE\n-----END KEY-----\n"
    redactor = Redactor([secret])
    for line in secret.splitlines():
        assert redactor.text(f"printed: {line}") == f"printed: {STRUCK}"


def test_of_two_secrets_the_longer_one_is_struck_whole() -> None:
    redactor = Redactor(["secret-one", "secret-one-and-more"])
    assert redactor.text("x secret-one-and-more y secret-one") == f"x {STRUCK} y {STRUCK}"


def test_a_value_too_short_to_be_told_from_text_is_left_alone() -> None:
    assert Redactor(["a"]).text("a cat sat") == "a cat sat"
    assert Redactor().text("anything") == "anything"


def test_documents_are_struck_through_and_through() -> None:
    found = Redactor([SECRET]).json({SECRET: [SECRET, 1, None, {"deep": f"is {SECRET}"}]})
    assert found == {STRUCK: [STRUCK, 1, None, {"deep": f"is {STRUCK}"}]}
