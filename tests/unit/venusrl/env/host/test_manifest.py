"""`venus.toml`: every mistake is found and says where it is."""

import pytest

from venusrl.env.host.manifest import EnvironmentLimits, PackageInvalid, parse_manifest

GOOD = 'name = "calc"\nversion = "1"\nsdk = 1\nentry = "env:Calc"\n'


def pointers(text: str) -> list[str]:
    with pytest.raises(PackageInvalid) as caught:
        parse_manifest(text)
    return [finding.pointer for finding in caught.value.findings]


def test_a_small_manifest_gets_defaults() -> None:
    manifest = parse_manifest(GOOD)
    assert (manifest.name, manifest.version, manifest.entry) == ("calc", "1", "env:Calc")
    assert manifest.limits == EnvironmentLimits()
    assert manifest.sandbox
    assert manifest.resumable


def test_every_section_is_read() -> None:
    manifest = parse_manifest(
        GOOD
        + 'artefacts = ["out/calls.jsonl"]\nsandbox = false\nsecrets = ["KEY"]\n'
        + "[limits]\nmax_turns = 6\nreply_s = 2.5\n"
        + '[network]\nallow = ["example.org"]\n[config]\nhard = true\n'
    )
    assert manifest.artefacts == ("out/calls.jsonl",)
    assert not manifest.sandbox
    assert manifest.secrets == ("KEY",)
    assert manifest.network_allow == ("example.org",)
    assert (manifest.limits.max_turns, manifest.limits.reply_s) == (6, 2.5)
    assert manifest.config == {"hard": True}


def test_an_adapter_brings_its_entry_and_needs_no_sandbox() -> None:
    manifest = parse_manifest('name = "rg"\nversion = "1"\nsdk = 1\nadapter = "reasoning_gym"\n')
    assert manifest.entry.endswith(":ReasoningGym")
    assert not manifest.sandbox


def test_all_mistakes_are_found_at_once() -> None:
    text = 'name = "Calc!"\nsdk = 2\nentry = "env.py"\nharnes = "chat"\n[limits]\npids = true\n'
    found = pointers(text)
    assert set(found) == {"/name", "/version", "/sdk", "/entry", "/harnes", "/limits/pids"}


def test_an_unknown_key_gets_its_near_name() -> None:
    with pytest.raises(PackageInvalid) as caught:
        parse_manifest(GOOD + "resumeable = true\n")
    assert caught.value.findings[0].hint == "did you mean resumable?"


@pytest.mark.parametrize(
    ("line", "pointer"),
    [
        ('harness = "openai"', "/harness"),
        ('resumable = "yes"', "/resumable"),
        ('artefacts = ["../etc/passwd"]', "/artefacts/0"),
        ('artefacts = ["/etc/passwd"]', "/artefacts/0"),
        ('artefacts = ["ok", "a/./b"]', "/artefacts/1"),
        ("secrets = [1]", "/secrets"),
        ("network = 3", "/network"),
        ("[network]\ndeny = []", "/network/deny"),
        ("[limits]\nmax_turns = 0", "/limits/max_turns"),
        ("[limits]\nmax_turns = 1.5", "/limits/max_turns"),
        ("[limits]\nreply_s = inf", "/limits/reply_s"),
        ("[limits]\nreply_s = nan", "/limits/reply_s"),
        ("[limits]\nmemory_mb = 1000000", "/limits/memory_mb"),
    ],
)
def test_a_wrong_value_is_pointed_at(line: str, pointer: str) -> None:
    assert pointers(GOOD + line + "\n") == [pointer]


@pytest.mark.parametrize("text", ["", "name = ", "[", "\x00"])
def test_what_is_not_a_manifest_is_refused(text: str) -> None:
    assert pointers(text)


def test_entry_and_adapter_exclude_each_other() -> None:
    assert pointers(GOOD + 'adapter = "reasoning_gym"\n') == ["/entry"]


def test_an_unknown_adapter_is_named() -> None:
    assert pointers('name = "a"\nversion = "1"\nsdk = 1\nadapter = "gym"\n') == ["/adapter"]
