"""Frames between processes: msgpack `{kind, version, body}` with a registry over domain records.

msgspec refuses a union of dataclasses, so that the envelope names the kind and the registry holds one
decoder per record. Unknown kinds and newer versions are refused by name, never guessed.
"""

from typing import Any, Final, TypeVar

import msgspec

from domain import events, wire
from infra import door_frames, pool_frames

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""A frame holds references or one turn; anything larger is a defect or an attack."""

KINDS: Final[tuple[type[Any], ...]] = (
    wire.Hello,
    wire.Challenge,
    wire.Proof,
    wire.Refused,
    wire.HostSnapshot,
    wire.LeaderBeat,
    wire.HostBeat,
    wire.Place,
    wire.Ranks,
    wire.Forget,
    wire.Suspend,
    wire.TurnReports,
    wire.Sync,
    wire.Wake,
    wire.Finish,
    wire.Checkpoint,
    wire.Fork,
    wire.ForkRefused,
    pool_frames.RoomRefused,
    wire.Release,
    wire.ReleaseAttempt,
    wire.Grade,
    wire.AgentHello,
    wire.Attach,
    wire.Attached,
    wire.TakeTurn,
    pool_frames.InGeneration,
    wire.TurnReply,
    wire.Seal,
    wire.Sealed,
    wire.AgentRefused,
    door_frames.DoorChallenge,
    door_frames.DoorHello,
    door_frames.DoorOpen,
    door_frames.DoorLook,
    door_frames.DoorExec,
    door_frames.DoorExecuted,
    door_frames.DoorRead,
    door_frames.DoorContent,
    door_frames.DoorWrite,
    door_frames.DoorMeasure,
    door_frames.DoorMeasured,
    door_frames.DoorDone,
    door_frames.DoorRefused,
    events.NodeReported,
    events.SandboxReady,
    events.TurnSampled,
    events.TurnFinished,
    events.TryFailed,
    events.RolloutClosed,
    events.GroupGraded,
    events.GradeFailed,
    events.TrainerReady,
    events.StepCommitted,
    events.TrainerFailed,
    events.PayloadLost,
    events.CheckpointWritten,
    events.EngineSynced,
    events.EngineSyncFailed,
)

VERSIONS: Final[dict[str, int]] = {kind.__name__: 1 for kind in KINDS}


T = TypeVar("T")


class FrameRefused(ValueError):
    """The bytes are no frame that this process understands; the connection must end."""


class _Envelope(msgspec.Struct, array_like=True):
    kind: str
    version: int
    body: msgspec.Raw


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENVELOPE: Final = msgspec.msgpack.Decoder(_Envelope)
_DECODERS: Final = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in KINDS}


def encode(record: object) -> bytes:
    """Bytes of one frame; the record's class must be registered."""
    kind = type(record).__name__
    assert kind in VERSIONS, f"frame kind {kind} is not registered"
    body = msgspec.Raw(_ENCODER.encode(record))
    return _ENCODER.encode(_Envelope(kind, VERSIONS[kind], body))


def decode(data: bytes) -> object:
    """The record of one frame. Raises FrameRefused."""
    try:
        envelope = _ENVELOPE.decode(data)
        decoder = _DECODERS.get(envelope.kind)
        if decoder is None or envelope.version > VERSIONS[envelope.kind]:
            raise FrameRefused(f"unknown frame {envelope.kind} version {envelope.version}")
        return decoder.decode(envelope.body)
    except msgspec.MsgspecError as error:
        raise FrameRefused(str(error)) from error


def to_json(record: object) -> bytes:
    """Canonical JSON of a record, keys sorted: for stored objects and their shas."""
    return msgspec.json.encode(record, order="sorted")


def from_json(data: bytes | str, kind: type[T]) -> T:
    """A record from JSON bytes. Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=kind)


def to_msgpack(record: object) -> bytes:
    """Msgpack of one record without an envelope, for stored payloads whose kind the path says."""
    return _ENCODER.encode(record)


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """A record from msgpack bytes. Raises msgspec.ValidationError."""
    return msgspec.msgpack.decode(data, type=kind)


def convert(value: object, kind: type[T]) -> T:
    """A record from plain JSON values, for instance a jsonb column."""
    return msgspec.convert(value, type=kind)
