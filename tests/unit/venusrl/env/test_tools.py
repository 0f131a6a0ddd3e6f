"""`@tool`: schemas from signatures, and arguments checked against them."""

from collections.abc import Sequence
from typing import Literal

import pytest

from venusrl.env import Environment, Sandbox, Turn, tool
from venusrl.env.tools import BadArguments, parse_arguments, tool_spec


class Tools(Environment):
    @tool
    async def search(
        self,
        query: str,
        sandbox: Sandbox,
        turn: Turn,
        limit: int = 5,
        order: Literal["new", "old"] = "new",
        tags: Sequence[str] = (),
        site: str | None = None,
    ) -> str:
        """Find pages.

        Over two lines.

        Args:
            query: what to look for
            limit (int): how many
        """
        return query

    @tool
    def scale(self, factor: float, exact: bool, options: dict[str, int]) -> str:
        """Scale."""
        return str(factor)

    async def not_a_tool(self, query: str) -> str:
        return query


def test_the_schema_comes_from_signature_and_docstring() -> None:
    spec = Tools.tools()["search"]
    assert spec.as_json() == {
        "name": "search",
        "description": "Find pages.\n\nOver two lines.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for"},
                "limit": {"type": "integer", "description": "how many"},
                "order": {"enum": ["new", "old"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "site": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }
    assert spec.sandbox_parameters == ("sandbox",)
    assert spec.turn_parameters == ("turn",)


def test_only_marked_methods_are_tools() -> None:
    assert list(Tools.tools()) == ["search", "scale"]


def test_good_arguments_are_taken() -> None:
    spec = Tools.tools()["search"]
    text = '{"query": "a", "limit": 3, "order": "old", "tags": ["x"], "site": null}'
    assert parse_arguments(spec, text)["limit"] == 3
    assert parse_arguments(Tools.tools()["scale"], '{"factor": 1, "exact": true, "options": {}}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":1,,}', "not valid JSON"),
        ('{"query": "unterminated', "not valid JSON"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "query is missing"),
        ('{"query": 1}', "does not fit"),
        ('{"query": "a", "limit": true}', "does not fit"),
        ('{"query": "a", "limit": 1.5}', "does not fit"),
        ('{"query": "a", "order": "best"}', "does not fit"),
        ('{"query": "a", "tags": ["x", 1]}', "does not fit"),
        ('{"query": "a", "sandbox": "mine"}', "unknown argument sandbox"),
        ('{"query": "a", "self": "me"}', "unknown argument self"),
    ],
)
def test_bad_arguments_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(BadArguments, match=says):
        parse_arguments(Tools.tools()["search"], text)


def test_a_parameter_without_annotation_is_refused() -> None:
    with pytest.raises(TypeError, match="needs an annotation"):
        tool_spec("bare", lambda self, thing: thing)


def test_a_type_that_no_schema_says_is_refused_at_class_creation() -> None:
    with pytest.raises(TypeError, match="no JSON schema"):

        class Broken(Environment):
            @tool
            async def bad(self, value: complex) -> str:
                return str(value)
