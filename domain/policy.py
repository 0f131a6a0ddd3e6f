"""Identity of weights. The version shown to users is the step; engines compare the sha."""

from dataclasses import dataclass

from domain.ids import AttemptId


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """One published policy version of an attempt.

    `uri` and `probe_uri` are object-store paths that contain the trainer's epoch; `weights_sha` is
    the sha256 over names, shapes and bytes of all tensors.
    """

    attempt_id: AttemptId
    version: int
    weights_sha: str
    uri: str
    probe_uri: str
    trainer_epoch: int
