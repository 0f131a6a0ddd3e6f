"""vLLM beside the engine: why it was not run, and what its child process answers."""

import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.engine.vllm_side import VARIABLE, NotRun, child
from benchmarks.engine.workload import Rollout, Turn

ROLLOUTS: Final = (
    Rollout(0, 0, (Turn((1, 2, 3), 2), Turn((4,), 1))),
    Rollout(1, 0, (Turn((5,), 4),)),
)

STAND_IN: Final = '''
"""Answers like vLLM's engine: one token of every open request a step, the length of its context."""
from types import SimpleNamespace

__version__ = "0.32.0"

def EngineArgs(**fields):
    assert fields["max_num_seqs"] == 2 and fields["skip_tokenizer_init"]
    return fields

def SamplingParams(**fields):
    assert fields["ignore_eos"] and fields["temperature"] == 0.0
    return SimpleNamespace(**fields)

class LLMEngine:
    @classmethod
    def from_engine_args(cls, arguments):
        print("a log line on standard output")
        one = cls()
        one.open = {}
        return one

    def add_request(self, name, prompt, params):
        self.open[name] = (len(prompt["prompt_token_ids"]), params.max_tokens, [])

    def has_unfinished_requests(self):
        return bool(self.open)

    def step(self):
        outputs = []
        for name, (length, count, sampled) in list(self.open.items()):
            sampled.append(length + len(sampled))
            finished = len(sampled) == count
            if finished:
                del self.open[name]
            answer = SimpleNamespace(token_ids=sampled)
            outputs.append(
                SimpleNamespace(request_id=name, finished=finished, outputs=[answer])
            )
        return outputs
'''


def test_without_a_named_python_it_says_which_variable_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(NotRun, match=VARIABLE), child(tmp_path, 2):
        pass


@pytest.mark.parametrize(
    "content", ["raise ImportError('no such build')", "import os; os._exit(3)"]
)
def test_a_python_whose_vllm_does_not_start_is_a_reason_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    (tmp_path / "vllm.py").write_text(content)
    with pytest.raises(NotRun, match=r"no such build|it ended"), child(tmp_path, 2):
        pass


def test_a_python_that_is_not_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "python"))
    with pytest.raises(NotRun, match="No such file"), child(tmp_path, 2):
        pass


def test_the_child_plays_every_turn_of_every_workload_and_times_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    (tmp_path / "vllm.py").write_text(STAND_IN)
    with child(tmp_path, 2) as one:
        assert one.version == "0.32.0"
        for _ in range(2):
            run = one.run(ROLLOUTS)
            assert run.tokens == 7
            assert run.wall_s > 0.0
        with pytest.raises(NotRun, match="IndexError"):
            one.run((Rollout(0, 0, ()),))
