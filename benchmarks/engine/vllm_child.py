"""Plays workloads on vLLM in a Python that has it; `vllm_side.py` starts it. Standard library and vLLM only.

stdin    {"folder", "batch", "context"}; then one workload a line: a list of rollouts,
         each a list of turns [[ids before the answer], tokens of the answer]
stdout   {"version"}; then {"tokens", "processor_s", "wall_s"} for each workload; {"failed"} instead of either
"""

import json
import os
import sys
import time
from typing import Any, TextIO


def main() -> int:
    """Entry point; what vLLM writes to standard output goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        engine = _engine(json.loads(sys.stdin.readline()), answers)
        for line in sys.stdin:
            _say(answers, _timed(engine, json.loads(line)))
    except Exception as error:  # noqa: BLE001  # the other side reports whatever it is
        _say(answers, {"failed": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _engine(settings: dict[str, Any], answers: TextIO) -> Any:
    import vllm

    arguments = vllm.EngineArgs(
        model=settings["folder"],
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=settings["context"],
        max_num_seqs=settings["batch"],
        enable_prefix_caching=True,
    )
    engine = vllm.LLMEngine.from_engine_args(arguments)
    _say(answers, {"version": vllm.__version__})
    return engine


def _timed(engine: Any, rollouts: list[list[Any]]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    tokens = _play(engine, rollouts)
    return {
        "tokens": tokens,
        "processor_s": time.process_time() - processor,
        "wall_s": time.perf_counter() - wall,
    }


def _play(engine: Any, rollouts: list[list[Any]]) -> int:
    from vllm import SamplingParams

    contexts: list[list[int]] = [[] for _ in rollouts]
    play = time.perf_counter_ns()

    def submit(at: int, turn: int) -> None:
        added, output = rollouts[at][turn]
        contexts[at].extend(added)
        params = SamplingParams(
            temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False, logprobs=0
        )
        name = f"{play}.{at}.{turn}"
        engine.add_request(name, {"prompt_token_ids": list(contexts[at])}, params)

    for at in range(len(rollouts)):
        submit(at, 0)
    tokens = 0
    while engine.has_unfinished_requests():
        for output in (one for one in engine.step() if one.finished):
            _, at, turn = map(int, output.request_id.split("."))
            sampled = list(output.outputs[0].token_ids)
            assert len(sampled) == rollouts[at][turn][1], "another length than was imposed"
            tokens += len(sampled)
            contexts[at].extend(sampled)
            if turn + 1 < len(rollouts[at]):
                submit(at, turn + 1)
    return tokens


def _say(answers: TextIO, record: dict[str, Any]) -> None:
    answers.write(json.dumps(record) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
