"""`venus rollouts branch` and `branches`: continuations from before a turn, and the curve by turn."""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from venusrl.cli.output import (
    EXIT_USAGE,
    AsJson,
    Limit,
    connected,
    fail,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from venusrl.models.branches import Border, BranchResult, Continuation

TOOL_OUTPUT: Final = "tool_output"
"""What `--set` may set."""


def branch(
    rollout_id: str,
    turn: Annotated[
        list[int] | None, typer.Option(min=0, help="Before which turn; may be repeated.")
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Before every turn: pass rate by turn.")
    ] = False,
    n: Annotated[int, typer.Option("-n", min=1, max=16, help="Continuations from each.")] = 8,
    set_: Annotated[
        str | None, typer.Option("--set", help="tool_output=TEXT or tool_output=@FILE.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A checkpoint; the job's newest without it.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=10.0)] = None,
    save_case: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Append the best one to this cases file of a package."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a closed rollout from before a turn, several times; nothing of it is trained.

    The recorded actions run again in fresh sandboxes: files come back, memory does not.
    """
    if bool(turn) == curve:
        fail("say --turn, or --curve for all turns", EXIT_USAGE, as_json)
    changed = _tool_output(set_, as_json)
    with connected(as_json) as client:
        result = client.rollouts.branch(
            rollout_id,
            turn or None,
            n=n,
            checkpoint=model,
            tool_output=changed,
            temperature=temperature,
        )
    saved = None if save_case is None else _save(result, save_case)
    if as_json:
        write_json(result)
    else:
        _show(result, is_curve=curve)
    if save_case is None:
        return
    if saved is None:
        fail("none of them can be written as a case", 1, as_json)
    if not as_json:
        write_line(f"case: {saved}, in {save_case}")


def branches(rollout_id: str, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Branches of a rollout, with how they went."""
    with connected(as_json) as client:
        found = list(islice(client.rollouts.branches(rollout_id), limit))
    if as_json:
        write_json(found)
        return
    rows = []
    for one in found:
        borders = [] if one.result is None else one.result.borders
        code = "" if one.error is None else one.error.get("code")
        passed = f"{sum(b.passed for b in borders)}/{sum(b.scored for b in borders)}"
        turns = " ".join(str(number) for number in one.turns)
        rows.append((one.id, one.state, turns, one.n, one.checkpoint_id, passed, code))
    write_table(("branch", "state", "turns", "n", "checkpoint", "passed", "error"), rows)


def _tool_output(asked: str | None, as_json: bool) -> str | None:
    if asked is None:
        return None
    name, is_set, value = asked.partition("=")
    if name != TOOL_OUTPUT or not is_set:
        fail("--set takes tool_output=TEXT or tool_output=@FILE", EXIT_USAGE, as_json)
    if value.startswith("@"):
        try:
            return Path(value[1:]).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            fail(f"{value[1:]} is no UTF-8 text, which a tool's answer is", EXIT_USAGE, as_json)
    return value


def _show(result: "BranchResult", *, is_curve: bool) -> None:
    write_line(
        f"{result.branch_id}: {result.checkpoint_id} (version {result.policy_version}) goes on"
        f" with {result.rollout_id}; restored by replay on {result.runtime}: {result.restored} only"
    )
    rows = [_border(one) for one in result.borders]
    columns = ("before turn", "tokens", "live", "files", "differ", "passed", "pass rate", "reward")
    write_table(columns, rows)
    if not is_curve:
        for border in result.borders:
            write_line("")
            ends = [
                (f"{border.turn}/{one.index}", one.end, one.verdict, one.reward, one.turns,
                 one.sampled_tokens, one.cause or one.unscorable_reason or "")
                for one in border.continuations
            ]  # fmt: skip
            names = ("continuation", "end", "verdict", "reward", "turns", "sampled", "cause")
            write_table(names, ends)
    if result.not_played:
        write_line(f"note: no time was left for turns {result.not_played}")


def _border(one: "Border") -> tuple[object, ...]:
    return (
        one.turn,
        one.prefix_tokens,
        f"{one.live}/{len(one.continuations)}",
        one.files,
        len(one.differing_files),
        f"{one.passed}/{one.scored}",
        None if one.pass_rate is None else f"{one.pass_rate:.2f}",
        None if one.mean_reward is None else f"{one.mean_reward:.3f}",
    )


def _save(result: "BranchResult", file: Path) -> str | None:
    """Append the one of the highest reward as a case; its name, or None where none is a script."""
    found = [one for border in result.borders for one in border.continuations if one.case]
    if not found:
        return None
    best: Continuation = max(found, key=lambda one: one.reward or 0.0)
    assert best.case is not None
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    end = "" if not text or text.endswith("\n") else "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}{end}{json.dumps(best.case)}\n", encoding="utf-8")
    return str(best.case["name"])
