"""Job specs by chance: most parts well-formed, some contradictory, some simply wrong."""

import copy
from typing import Any, Final

from hypothesis import strategies as st

from api.jobs.outcome import Surroundings
from api.jobs.resolution import value_at
from api.jobs.validation import validate

Json = Any

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]),
    min_size=1,
    max_size=12,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def part(**fields: st.SearchStrategy[Json]) -> st.SearchStrategy[dict[str, Json]]:
    """A mapping with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def auto(values: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """One of these, or `auto`."""
    return st.just("auto") | values


MODEL = st.fixed_dictionaries(
    {"base": st.sampled_from(["tiny-calc", "tiny-calc", "tiny-text", "tiny-clac", "hf:a/b@c"])},
    optional={
        "training": part(
            type=st.sampled_from(["full", "full", "lora"]), rank=st.none() | st.just(8)
        ),
        "context_tokens": st.none() | st.integers(16, 96) | st.just(100_000),
        "on_history_rewrite": st.sampled_from(["segment", "segment", "keep"]),
    },
)
ENVIRONMENT = st.fixed_dictionaries(
    {"ref": st.sampled_from(["calc", "calc", "calc@1", "calc@9", "clac"])},
    optional={
        "weight": st.floats(0.1, 10.0),
        "config": st.dictionaries(NAMES, DOCUMENTS, max_size=3),
        "split": st.sampled_from(["train", "train", "test", "dev"]),
        "limit": st.none() | st.integers(1, 50),
        "shuffle": st.booleans(),
        "harness": st.none() | st.just("chat"),
        "max_turns": st.none() | st.integers(1, 20),
        "wall_s": st.none() | st.floats(1.0, 900.0),
        "filter": st.none() | st.just({"level": 1}),
    },
)
ROLLOUT = part(
    group_size=st.integers(1, 16) | st.just(512),
    groups_per_batch=st.integers(1, 64),
    sampling=part(
        temperature=st.floats(0.1, 2.0),
        top_p=st.floats(0.1, 1.0),
        max_tokens_per_turn=st.integers(1, 4096),
        stop=st.lists(NAMES, max_size=3),
    ),
    max_tokens=st.none() | st.integers(1, 4096),
    on_truncated=st.sampled_from(["score", "mask", "zero"]),
    on_failure=part(
        tries=st.integers(1, 5),
        then=st.sampled_from(["shrink", "drop"]),
        min_group_size=auto(st.integers(1, 10)),
    ),
    pause_job_if_failed_share=st.floats(0.0, 1.0),
)
ALGORITHM = part(
    advantage=st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce_pp", "python:a.py:f", "gprp"]),
    loss=part(
        type=st.sampled_from(["dapo", "grpo"]),
        clip_low=st.floats(0.01, 0.9),
        clip_high=auto(st.floats(0.01, 1.0)),
    ),
    correction=part(type=st.sampled_from(["tis", "tis", "none"]), cap=st.floats(1.0, 10.0)),
    kl=part(coef=st.floats(0.0, 1.0)),
    on_no_signal=st.sampled_from(["skip", "wait", "pause"]),
    control=st.none() | st.just("shuffled_rewards"),
)
OPTIMIZER = part(
    lr=auto(st.floats(1e-8, 1e-2)),
    betas=st.just([0.9, 0.99]),
    weight_decay=st.floats(0.0, 0.5),
    grad_clip=st.floats(0.1, 5.0),
    warmup_steps=st.integers(0, 200),
)
SCHEDULING = part(
    order=auto(st.sampled_from(["oldest", "nearest", "longest"])),
    async_ratio=auto(st.floats(1.0, 4.0)),
    max_staleness=st.integers(0, 4),
)
EVALUATION = st.none() | part(
    every_steps=st.none() | st.integers(1, 50),
    split=st.sampled_from(["test", "test", "train", "tets"]),
    tasks=st.integers(1, 300),
    rollouts_per_task=st.integers(1, 8),
    environments=st.just([])
    | st.lists(
        st.fixed_dictionaries(
            {"ref": st.sampled_from(["calc", "calc@1", "clac"])},
            optional={
                "name": st.sampled_from(["easy", "hard"]),
                "weight": st.floats(0.1, 10.0),
                "split": st.none() | st.sampled_from(["test", "train", "tets"]),
                "limit": st.none() | st.integers(1, 50),
                "max_turns": st.none() | st.integers(1, 20),
                "filter": st.none() | st.just({"level": 1}),
            },
        ),
        max_size=3,
    ),
    select_best=st.none() | st.sampled_from(["score", "pass@1", "easy/score", "pass@999", "x"]),
    sampling=part(temperature=st.floats(0.0, 2.0), stop=st.none() | st.just(["x"])),
)
RESOURCES = part(
    trainer_gpus=auto(st.integers(1, 2)),
    rollout_gpus=part(min=st.integers(1, 3), max=auto(st.integers(1, 4))),
    tensor_parallel=auto(st.just(1)),
    placement=auto(st.just("split")),
    priority=st.sampled_from(["low", "normal", "high"]),
)
SPECS: Final[st.SearchStrategy[dict[str, Json]]] = st.fixed_dictionaries(
    {
        "name": NAMES,
        "model": MODEL,
        "environments": st.lists(ENVIRONMENT, min_size=1, max_size=1)
        | st.lists(ENVIRONMENT, max_size=2),
    },
    optional={
        "seed": st.integers(0, 2**31 - 1),
        "rollout": ROLLOUT,
        "algorithm": ALGORITHM,
        "optimizer": OPTIMIZER,
        "scheduling": SCHEDULING,
        "evaluation": EVALUATION,
        "checkpoints": part(
            every_steps=st.integers(1, 50), keep_last=st.integers(2, 5), keep_best=st.integers(0, 3)
        ),
        "resources": RESOURCES,
        "stop": part(max_steps=st.integers(1, 300), max_epochs=st.none() | st.just(2.0)),
        "budget": part(max_wall_hours=st.none() | st.floats(0.01, 100.0), warn_at=st.floats(0, 1)),
        "on_divergence": st.sampled_from(["stop", "skip", "warn"]),
        "secrets": st.just({}) | st.just({"TOKEN": "hub"}),
        "judges": st.just({})
        | st.just({"j": {"url": "https://judge.example/v1", "model": "m", "secret": None}})
        | st.just({"j": {"url": "http://127.0.0.1/v1", "model": "m"}}),
        "labels": st.dictionaries(NAMES, NAMES, max_size=3),
    },
)
"""Well-formed documents; many are valid, the others contradict the project, the pool or themselves."""


@st.composite
def broken_specs(draw: st.DrawFn) -> dict[str, Json]:
    """A spec with something replaced, removed or added at a random place."""
    spec = copy.deepcopy(draw(SPECS))
    place: Any = spec
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and draw(st.booleans()):
            place = place[key]
            continue
        if draw(st.booleans()):
            place[key] = draw(DOCUMENTS)
        else:
            del place[key]
        break
    if isinstance(place, dict) and draw(st.booleans()):
        place[draw(NAMES)] = draw(DOCUMENTS)
    return spec


DOCUMENTS_OF_ALL_KINDS = SPECS | broken_specs()
"""What a user may send."""


def mended(spec: dict[str, Json], around: Surroundings) -> dict[str, Json]:
    """The spec without what validation finds wrong in it: what is left out has a valid default."""
    spec = copy.deepcopy(spec)
    for _ in range(20):
        errors = [one for one in validate(spec, around).findings if one.severity == "error"]
        if not errors:
            break
        for one in errors:
            _mend(spec, one.pointer)
    return spec


def _mend(spec: dict[str, Json], pointer: str) -> None:
    if pointer.startswith("/model"):
        spec["model"] = {"base": "tiny-calc"}
        return
    if pointer.startswith("/environments"):
        spec["environments"] = [{"ref": "calc"}]
        return
    path, _, last = pointer.rpartition("/")
    parent = value_at(spec, path) if path else spec
    if isinstance(parent, dict) and last in parent:
        del parent[last]
    else:
        # The default contradicts something else of this part.
        spec.pop(pointer.split("/")[1], None)
