"""Vocabularies of model folders: `vocab.json`. One character or one byte per token, plus specials.

Encoding never merges, so a text has exactly one id sequence. Special tokens are reached by name
only: their spelling inside a user's text encodes as plain characters.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

BYTES: Final = 256
"""Ids below it are the bytes themselves in a byte vocabulary."""


class VocabKind(StrEnum):
    """What one plain token stands for."""

    CHAR = "char"
    BYTE = "byte"


@dataclass(frozen=True)
class Vocabulary:
    """Plain tokens first (`characters`, or the 256 bytes), special tokens after them."""

    kind: VocabKind
    characters: str
    specials: tuple[str, ...]
    pad: str
    unknown: str

    @property
    def size(self) -> int:
        """Number of ids."""
        return self.plain + len(self.specials)

    @property
    def plain(self) -> int:
        """Number of ids that stand for text; special tokens follow."""
        return BYTES if self.kind is VocabKind.BYTE else len(self.characters)

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return MappingProxyType({c: i for i, c in enumerate(self.characters)})

    def special(self, name: str) -> int:
        """Id of a special token."""
        return self.plain + self.specials.index(name)

    @property
    def pad_id(self) -> int:
        """Fills batches behind the real length; never guessed from, may equal an end token."""
        return self.special(self.pad)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; a character outside the vocabulary becomes the unknown token."""
        if self.kind is VocabKind.BYTE:
            return tuple(text.encode("utf-8", errors="replace"))
        unknown = self.special(self.unknown)
        return tuple(self._ids.get(c, unknown) for c in text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text for display and parsing; special tokens are shown by name, bad bytes replaced."""
        pieces: list[str] = []
        pending = bytearray()
        for token in token_ids:
            if self.kind is VocabKind.BYTE and token < BYTES:
                pending.append(token)
                continue
            pieces.append(pending.decode("utf-8", errors="replace"))
            pending.clear()
            pieces.append(self._spelling(token))
        pieces.append(pending.decode("utf-8", errors="replace"))
        return "".join(pieces)

    def _spelling(self, token: int) -> str:
        if token >= self.plain:
            return self.specials[token - self.plain]
        return self.characters[token]


def char_vocabulary(characters: Sequence[str]) -> Vocabulary:
    """A character vocabulary with the three specials that every tiny model has."""
    return Vocabulary(
        VocabKind.CHAR, "".join(characters), ("<pad>", "<eos>", "<unk>"), "<pad>", "<unk>"
    )


def write_vocab(vocabulary: Vocabulary, path: Path) -> None:
    """Write `vocab.json`."""
    record = {
        "kind": vocabulary.kind.value,
        "characters": vocabulary.characters,
        "specials": list(vocabulary.specials),
        "pad": vocabulary.pad,
        "unknown": vocabulary.unknown,
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_vocab(path: Path) -> Vocabulary:
    """Read `vocab.json`."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return Vocabulary(
        kind=VocabKind(record["kind"]),
        characters=str(record["characters"]),
        specials=tuple(str(name) for name in record["specials"]),
        pad=str(record["pad"]),
        unknown=str(record["unknown"]),
    )
