"""Where an update's weights are said to be: text that names no file is a refusal like any other."""

from pathlib import Path

import pytest
import torch

from domain.engine import Refusal, SyncFailed, WeightKind, WeightRef
from tests.support.engines import decoder
from workers.rollout.embedded.weights import load_adapter, local_path, read_weights

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "uri", ["/tmp/a\0b", "file:///tmp/a%00b", "file://[host/a", "/tmp/\ud800", "/tmp/none"]
)
def test_weights_at_no_path_are_unreadable(uri: str) -> None:
    config = decoder(1).config
    ref = WeightRef(1, WeightKind.FILE, uri, "sha", "sum", adapter="a", tenant="org")
    with pytest.raises(SyncFailed) as whole:
        read_weights(ref, config, CPU)
    with pytest.raises(SyncFailed) as adapter:
        load_adapter(ref, config, CPU, torch.float32)
    assert whole.value.reason is adapter.value.reason is Refusal.UNREADABLE


def test_a_uri_and_a_plain_path_name_the_same_file() -> None:
    assert local_path("file:///tmp/a%20b") == local_path("/tmp/a b") == Path("/tmp/a b")
