"""A job spec from a file: YAML as people mean it, or JSON.

Against plain YAML 1.1: `3e-4` is a number, `yes` and a date are text, and a key that occurs twice is
an error instead of a silent choice.
"""

import json
import math
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from venusrl._errors import SpecUnreadable
from venusrl.models.job_spec import JobSpec

if TYPE_CHECKING:
    import yaml

SPEC_BYTES_MAX: Final = 1 << 20
"""A spec is written by hand; a larger file is not one."""

VALUES_MAX: Final = 100_000
"""Values of a spec, those behind aliases counted at each place where they stand."""

DEPTH_MAX: Final = 100
"""Levels of a spec; the deepest field stands at six, a `config` is the author's own."""

TOO_DEEP: Final = f"is nested deeper than {DEPTH_MAX} levels"

_INT: Final = re.compile(r"^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT: Final = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_BOOL: Final = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")

SpecSource = JobSpec | Mapping[str, Any] | str | Path
"""A spec, the document of one, or the path of a YAML or JSON file."""


def document_of(source: SpecSource) -> dict[str, Any]:
    """The JSON document to send. The server fills in what is not written, so nothing is added here."""
    if isinstance(source, JobSpec):
        return source.model_dump(mode="json", exclude_unset=True)
    if isinstance(source, Mapping):
        return dict(source)
    return read_spec(Path(source))


def read_spec(path: Path) -> dict[str, Any]:
    """The document of a YAML or JSON file; also of a pipe, which `/dev/stdin` is."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise SpecUnreadable(f"{path} is neither a regular file nor a pipe")
        with path.open("rb") as stream:
            text = _text_of(stream, str(path))
    except OSError as error:
        raise SpecUnreadable(f"cannot read {path}: {error}") from error
    return parse_json(text, str(path)) if path.suffix == ".json" else parse_spec(text, str(path))


def read_stream(stream: IO[bytes], name: str) -> dict[str, Any]:
    """The document of an open stream, YAML or JSON."""
    return parse_spec(_text_of(stream, name), name)


def _text_of(stream: IO[bytes], name: str) -> str:
    """All of the stream; no more than a spec may have is ever read."""
    data = stream.read(SPEC_BYTES_MAX + 1)
    if len(data) > SPEC_BYTES_MAX:
        raise SpecUnreadable(f"{name} exceeds {SPEC_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecUnreadable(f"cannot read {name}: {error}") from error


def parse_json(text: str, name: str = "spec") -> dict[str, Any]:
    """The document of JSON text: YAML reads some escapes of JSON otherwise."""
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise SpecUnreadable(f"{name} is not JSON: {error}") from error
    except RecursionError as error:
        raise SpecUnreadable(f"{name} {TOO_DEEP}") from error
    if not isinstance(document, dict):
        raise SpecUnreadable(f"{name} must be a mapping, not {type(document).__name__}")
    _check(document, name)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that occurs twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return made


def parse_spec(text: str, name: str = "spec") -> dict[str, Any]:
    """The document of YAML or JSON text; SpecUnreadable names line and column of a mistake."""
    import yaml

    try:
        document = yaml.load(text, _loader())
    except (yaml.YAMLError, ValueError) as error:
        raise SpecUnreadable(f"{name} is not YAML: {error}") from error
    except RecursionError as error:
        raise SpecUnreadable(f"{name} {TOO_DEEP}") from error
    if not isinstance(document, dict):
        raise SpecUnreadable(f"{name} must be a mapping, not {type(document).__name__}")
    _check(document, name)
    return document


def laid_over(document: Mapping[str, Any], values: Sequence[str]) -> dict[str, Any]:
    """The document with `stop.max_steps=200` and the like laid over it; values are YAML."""
    import yaml

    made = dict(document)
    for text in values:
        path, mark, value = text.partition("=")
        if not mark or not all(path.split(".")):
            raise SpecUnreadable(f"{text!r} is not PATH=VALUE, for instance stop.max_steps=200")
        *parents, last = path.split(".")
        place = made
        for part in parents:
            inner = place.get(part)
            place[part] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[part]
        try:
            place[last] = yaml.load(value, _loader())
        except (yaml.YAMLError, ValueError) as error:
            raise SpecUnreadable(f"{text[:200]!r}: {error}") from error
        except RecursionError as error:
            raise SpecUnreadable(f"{path} {TOO_DEEP}") from error
        _check(place[last], path)
    return made


def _check(value: object, where: str) -> None:
    """Only what JSON can say, of bearable size: an alias of YAML may stand for far more than it shows."""
    _checked(value, where, 0, [VALUES_MAX])


def _checked(value: object, where: str, depth: int, left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise SpecUnreadable(f"{where.partition('/')[0]} holds more than {VALUES_MAX} values")
    if depth > DEPTH_MAX:
        raise SpecUnreadable(f"{where.partition('/')[0]} {TOO_DEEP}")
    match value:
        case dict():
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise SpecUnreadable(f"{where}: the key {key!r} must be text")
                _checked(inner, f"{where}/{key}", depth + 1, left)
        case list():
            for number, inner in enumerate(value):
                _checked(inner, f"{where}/{number}", depth + 1, left)
        case float() if not math.isfinite(value):
            raise SpecUnreadable(f"{where}: {value} is not a number that JSON knows")
        case None | bool() | int() | float() | str():
            pass
        case _:
            raise SpecUnreadable(f"{where}: {type(value).__name__} is not a value of a spec")


def _whole(loader: "yaml.SafeLoader", node: "yaml.ScalarNode") -> int:
    """A whole number of YAML 1.2: a leading zero says nothing, 0o and 0x are octal and hexadecimal."""
    text = str(loader.construct_scalar(node))
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base)


def _loader() -> "type[yaml.SafeLoader]":
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader with the scalars of YAML 1.2 and without repeated keys."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """Refuse a key that occurs twice."""
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = str(key_node.value)
                if key in seen:
                    problem = f"the key {key!r} occurs twice"
                    raise yaml.constructor.ConstructorError(
                        None, None, problem, key_node.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    kinds = ("timestamp", "bool", "float", "int")
    replaced = {f"tag:yaml.org,2002:{kind}" for kind in kinds}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    Loader.add_constructor("tag:yaml.org,2002:int", _whole)
    # After the resolver of whole numbers, which would otherwise never see its own.
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
    return Loader
