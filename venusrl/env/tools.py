"""`@tool`: the model may call this method. Its schema comes from the signature and the docstring.

Parameters annotated with `Sandbox` or `Turn` are filled in by the platform and stay out of the
schema. Arguments are checked against the annotations before the method runs.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, Union

from venusrl.env.messages import Json, Turn
from venusrl.env.sandbox import Sandbox

TOOL_MARK: Final = "_venus_tool"
"""Attribute that marks a function as a tool; underscored so that it meets no author's name."""

_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")
_ARGUMENT_LINE: Final = re.compile(r"^\s*(\w+)(?:\s*\([^)]*\))?\s*:\s*(.+)$")
_SCALARS: Final[dict[object, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}

F = TypeVar("F", bound=Callable[..., Any])


class ToolError(Exception):
    """What a tool raises to answer the model with an error."""


class BadArguments(Exception):
    """The model's arguments do not fit the tool; the text says why and is sent back to it."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool: the schema that the model sees, and which parameters the platform fills in."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    attribute: str
    sandbox_parameters: tuple[str, ...] = ()
    turn_parameters: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """The function schema in the form that chat templates expect."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }


def tool(function: F) -> F:
    """Mark a method, async or not, as callable by the model under its own name."""
    vars(function)[TOOL_MARK] = True
    return function


def tool_spec(attribute: str, function: Callable[..., Any]) -> ToolSpec:
    """Read a tool's schema; raises TypeError for a signature that no schema can say."""
    if not _NAME.match(attribute):
        raise TypeError(f"tool {attribute}: the name must match {_NAME.pattern}")
    hints = typing.get_type_hints(function)
    description, notes = _docstring(function)
    properties: dict[str, Json] = {}
    required: list[str] = []
    filled: dict[type, list[str]] = {Sandbox: [], Turn: []}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        hint = hints.get(parameter.name)
        if hint is Sandbox or hint is Turn:
            filled[hint].append(parameter.name)
            continue
        if hint is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"tool {attribute}: parameter {parameter.name} needs an annotation")
        schema = _schema(hint, f"tool {attribute}: parameter {parameter.name}")
        if parameter.name in notes:
            schema["description"] = notes[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Json] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return ToolSpec(
        attribute, description, parameters, attribute, tuple(filled[Sandbox]), tuple(filled[Turn])
    )


def parse_arguments(spec: ToolSpec, text: str) -> dict[str, Json]:
    """The arguments of a call as keyword arguments; BadArguments says what is wrong with them."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"arguments are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise BadArguments("arguments must be a JSON object")
    properties = typing.cast("Mapping[str, Mapping[str, Json]]", spec.parameters["properties"])
    for name in typing.cast("Sequence[str]", spec.parameters["required"]):
        if name not in arguments:
            raise BadArguments(f"argument {name} is missing")
    for name, value in arguments.items():
        if name not in properties:
            raise BadArguments(f"unknown argument {str(name)[:64]}")
        if not fits(value, properties[name]):
            raise BadArguments(f"argument {name} does not fit {json.dumps(properties[name])}")
    return arguments


def fits(value: object, schema: Mapping[str, Json]) -> bool:
    """Whether a JSON value fits the part of JSON Schema that `tool_spec` writes."""
    choices = schema.get("anyOf")
    if isinstance(choices, Sequence):
        return any(fits(value, typing.cast("Mapping[str, Json]", one)) for one in choices)
    if "enum" in schema:
        return value in typing.cast("Sequence[Json]", schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        items = typing.cast("Mapping[str, Json]", schema.get("items", {}))
        return isinstance(value, list) and all(fits(item, items) for item in value)
    return kind is None or _is_kind(value, str(kind))


def _is_kind(value: object, kind: str) -> bool:
    if kind in ("integer", "number"):
        numbers = (int,) if kind == "integer" else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    expected: dict[str, type] = {
        "string": str,
        "boolean": bool,
        "object": dict,
        "null": type(None),
    }
    return isinstance(value, expected[kind])


def _schema(hint: object, where: str) -> dict[str, Json]:
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is type(None):
        return {"type": "null"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(argument, where) for argument in arguments]}
    if hint is list or origin in (list, Sequence):
        return {"type": "array", "items": _schema(arguments[0], where) if arguments else {}}
    if hint is dict or origin in (dict, Mapping):
        return {"type": "object"}
    raise TypeError(f"{where}: {hint!r} has no JSON schema")


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description, and the notes of an `Args:` section by parameter."""
    text = inspect.getdoc(function) or ""
    head, _, tail = text.partition("\nArgs:")
    notes = {}
    for line in tail.split("\n\n", 1)[0].splitlines():
        match = _ARGUMENT_LINE.match(line)
        if match:
            notes[match.group(1)] = match.group(2).strip()
    return head.strip(), notes
