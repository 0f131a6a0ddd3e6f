"""The learner: model, optimizer and the open step's gradient. Synchronous; one thread at a time.

It knows nothing of rows and hosts: the host feeds payloads and closes steps, recovery feeds the
recorded ones. The same calls in the same order give the same bits on a CPU.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor

from domain.engine import Probe
from domain.trajectory import GroupPayload
from workers.models.decoder import Decoder
from workers.models.folder import ModelFolder, load_decoder, weights_sha
from workers.trainer.accumulate import Contribution, GradientSum, objective_of
from workers.trainer.batching import NonFinite
from workers.trainer.config import TrainSpec, learning_rate
from workers.trainer.meters import Meters, metrics_of
from workers.trainer.optimizer import NamedAdamW
from workers.trainer.probe import make_probe


@dataclass(frozen=True, slots=True)
class Closed:
    """What closing a step did."""

    step: int
    learning_rate: float
    weights_sha: str
    metrics: Mapping[str, float]


class Learner:
    """Trains one model. `step` is the last closed step; the next one is being filled."""

    def __init__(self, folder: ModelFolder, spec: TrainSpec, device: torch.device) -> None:
        torch.manual_seed(spec.seed)
        self.spec = spec
        self.folder = folder
        self.step = 0
        self._device = device
        self._model = load_decoder(folder).to(device)
        self._optimizer = NamedAdamW(self._model, spec.optimizer)
        self._gradients = GradientSum(
            self._model,
            objective_of(spec),
            folder.vocabulary.pad_id,
            self._reference() if spec.algorithm.kl.coef > 0 else None,
        )
        self._sha = weights_sha(self._model.state_dict())

    @property
    def weights_sha(self) -> str:
        """Identity of the weights as they are now."""
        return self._sha

    @property
    def is_exact(self) -> bool:
        """Whether repeating recorded steps must give the same bits: on a CPU."""
        return self._device.type == "cpu"

    def add(self, payload: GroupPayload) -> Contribution:
        """Backward of one group for the step being filled. After NonFinite: `clear`, add anew."""
        return self._gradients.add(payload, self.step + 1)

    def clear(self) -> None:
        """Forget what the step being filled has received."""
        self._gradients.clear()

    def close(self, rate: float | None = None) -> Closed:
        """Scale, clip, update. A recorded step brings its recorded rate.

        Raises NonFinite, with weights and optimizer untouched, when the gradient is not finite.
        """
        step = self.step + 1
        rate = learning_rate(self.spec.optimizer, step) if rate is None else rate
        contributions = tuple(self._gradients.contributions)
        if self._gradients.tokens > 0:
            self._gradients.scale()
            norm = self._optimizer.clip()
            if not math.isfinite(norm):
                raise NonFinite(None, "gradient")
            self._optimizer.update(rate)
        else:
            norm = 0.0
        self._sha = weights_sha(self._model.state_dict())
        self._advance()
        return Closed(step, rate, self._sha, _metrics(contributions, norm, rate))

    def skip(self) -> Closed:
        """Close the step without an update: weights and optimizer stay as they are."""
        step = self.step + 1
        rate = learning_rate(self.spec.optimizer, step)
        metrics = _metrics(tuple(self._gradients.contributions), None, rate)
        self._advance()
        return Closed(step, rate, self._sha, metrics)

    def _advance(self) -> None:
        self._gradients.clear()
        self.step += 1

    def probe(self) -> Probe:
        """What an engine with these weights must answer."""
        return make_probe(self._model, self.step, self._sha)

    def weights_file(self) -> bytes:
        """The weights as a safetensors file."""
        return save(_on_cpu(self._model.state_dict()))

    def optimizer_file(self) -> bytes:
        """The optimizer's state as a safetensors file."""
        return save(_on_cpu(self._optimizer.state()))

    def state_file(self, next_ordinal: int, unconsumed: tuple[int, ...]) -> bytes:
        """Step, schedule, random state and data position as JSON."""
        record = {
            "step": self.step,
            "weights_sha": self._sha,
            "learning_rate": learning_rate(self.spec.optimizer, self.step + 1),
            "torch_rng": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(),
            "next_ordinal": next_ordinal,
            "unconsumed": list(unconsumed),
        }
        return (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()

    def load_weights(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Take these weights as those of `step`; the optimizer stays as it is."""
        self._model.load_state_dict(dict(weights))
        self._sha = weights_sha(self._model.state_dict())
        self.step = step

    def load_optimizer(self, moments: Mapping[str, Tensor], state: bytes) -> None:
        """Continue the optimizer and the random state of a checkpoint."""
        self._optimizer.load(moments)
        record = json.loads(state)
        torch.set_rng_state(
            torch.tensor(list(base64.b64decode(record["torch_rng"])), dtype=torch.uint8)
        )

    def _reference(self) -> Decoder:
        return load_decoder(self.folder).to(self._device).requires_grad_(False)


def _on_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}


def _metrics(
    contributions: tuple[Contribution, ...], norm: float | None, rate: float
) -> dict[str, float]:
    meters = Meters.merged(c.meters for c in contributions)
    rewards = [reward for c in contributions for reward in c.rewards]
    staleness = [lag for c in contributions for lag in c.staleness]
    metrics = dict(metrics_of(meters, rewards, staleness))
    metrics |= {"groups": float(len(contributions)), "learning_rate": rate}
    if norm is not None:
        metrics["grad_norm"] = norm
    return metrics
