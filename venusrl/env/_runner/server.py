"""The runner's loop: take requests of the parent, run them side by side, send what they give.

| task | consumes | ends with |
|---|---|---|
| serve | frames of the parent | the parent's side closing: the process ends |
| request, one each | its parameters | a `result` frame, always |
| beat | time | the loop; its lag is how long user code blocked it |
| logs | prints | the loop |
"""

from __future__ import annotations

import asyncio
import os
from typing import Final, cast

from venusrl.env._runner.channel import Channel, ChannelClosed
from venusrl.env._runner.faults import RunnerFault, fault_of
from venusrl.env._runner.grading import Grader, GradeRequest
from venusrl.env._runner.hidden import take
from venusrl.env._runner.instances import Instances
from venusrl.env._runner.loader import entry_class, load_tasks
from venusrl.env._runner.logs import LogStream, current_instance
from venusrl.env.environment import Environment
from venusrl.env.messages import Finish, Json, NewHistory
from venusrl.env.wire import (
    BadRecord,
    Record,
    float_field,
    int_field,
    list_field,
    message_from_json,
    message_to_json,
    messages_from_json,
    record_field,
    rollout_from_json,
    task_from_json,
    task_to_json,
    text_field,
)

BEAT_S: Final = 0.25
"""How often the loop shows that it turns; the parent's bound on a blocked loop is many of these."""

TASKS_A_FRAME: Final = 256
"""Tasks in one `part` frame, so that a large split never makes a frame too large."""


class Server:
    """Answers the parent's requests until it closes the stream."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._log_waiting = asyncio.Event()
        self._log_sending = asyncio.Lock()
        self.log = LogStream(self._log_waiting.set, channel.try_send)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._class: type[Environment] | None = None
        self._config: Record = {}
        self._instances: Instances | None = None
        self._grader: Grader | None = None

    async def serve(self) -> None:
        """Run until the parent is gone, then drop everything that still runs."""
        background = [asyncio.create_task(self._beat()), asyncio.create_task(self._send_logs())]
        try:
            async for frame in self._channel.frames():
                self._take(frame)
        except ChannelClosed:
            pass  # The parent is gone; nobody is left to tell.
        for task in [*background, *self._running.values()]:
            task.cancel()

    def _take(self, frame: Record) -> None:
        number = int_field(frame, "id")
        if frame.get("t") == "cancel":
            if number in self._running:
                self._running[number].cancel()
            return
        task = asyncio.create_task(self._answer(number, frame))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _answer(self, number: int, frame: Record) -> None:
        result: dict[str, Json] = {"t": "result", "id": number}
        try:
            method = text_field(frame, "method")
            result["ok"] = await self._dispatch(number, method, record_field(frame, "params"))
        except RunnerFault as fault:
            result["error"] = {"cause": fault.cause, "detail": fault.detail}
        except BadRecord as error:
            result["error"] = {"cause": "bad_frame", "detail": str(error)}
        except asyncio.CancelledError:
            result["error"] = {"cause": "call_timeout", "detail": "cancelled"}
        await self._send_waiting_logs()
        try:
            await self._channel.send(result)
        except BadRecord as error:
            unsaid: Json = {"cause": "bad_frame", "detail": f"the answer cannot be sent: {error}"}
            await self._channel.send({"t": "result", "id": number, "error": unsaid})

    async def _dispatch(self, number: int, method: str, params: Record) -> Json:
        if method == "start":
            return self._start(params)
        assert self._class is not None, "the first request is `start`"
        assert self._instances is not None
        match method:
            case "load":
                return await self._load(number, text_field(params, "split"))
            case "grade":
                return await self._grade(params)
        name = text_field(params, "instance")
        current_instance.set(name)
        match method:
            case "open":
                task = task_from_json(params.get("task"))
                self._instances.open(name, task, int_field(params, "seed"))
                return None
            case "setup":
                return await self._instances.setup(name, float_field(params, "timeout_s"))
            case "reply":
                return await self._reply(self._instances, name, params)
            case "snapshot":
                return await self._instances.snapshot(name, float_field(params, "timeout_s"))
            case "restore":
                history = messages_from_json(list_field(params, "history"))
                timeout_s = float_field(params, "timeout_s")
                await self._instances.restore(name, params.get("state"), history, timeout_s)
                return None
            case "close":
                self._instances.close(name)
                self.log.end_lines(name)
                return None
        raise BadRecord(f"unknown method {method[:32]}")

    def _start(self, params: Record) -> Json:
        take({name: str(value) for name, value in record_field(params, "secrets").items()})
        cls = entry_class(text_field(params, "entry"))
        self._class = cls
        self._config = record_field(params, "config")
        self._instances = Instances(self._channel, cls, self._config)
        self._grader = Grader(self._channel, cls, self._config)
        components: list[Json] = [
            {
                "name": spec.name,
                "kind": spec.kind,
                "weight": spec.weight,
                "timeout_s": spec.timeout_s,
            }
            for spec in cls.components()
        ]
        tools: list[Json] = [spec.as_json() for spec in cls.tools().values()]
        return {"tools": tools, "components": components, "pid": os.getpid()}

    async def _load(self, number: int, split: str) -> Json:
        assert self._class is not None
        tasks = load_tasks(self._class, split, self._config)
        for start in range(0, len(tasks), TASKS_A_FRAME):
            part: list[Json] = [task_to_json(task) for task in tasks[start : start + TASKS_A_FRAME]]
            await self._channel.send({"t": "part", "id": number, "items": part})
        return len(tasks)

    async def _reply(self, instances: Instances, name: str, params: Record) -> Json:
        finish = text_field(params, "finish")
        answer, state = await instances.reply(
            name,
            int_field(params, "turn"),
            message_from_json(params.get("message")),
            cast(Finish, finish if finish in ("stop", "length") else "stop"),
            float_field(params, "timeout_s"),
        )
        if answer is None:
            return {"messages": None, "state": state}
        shown: Json = [message_to_json(one) for one in answer]
        is_rewrite = isinstance(answer, NewHistory)
        return {"messages": shown, "state": state, "is_rewrite": is_rewrite}

    async def _grade(self, params: Record) -> Json:
        assert self._grader is not None
        rollouts = tuple(rollout_from_json(one) for one in list_field(params, "rollouts"))
        request = GradeRequest(text_field(params, "grade"), rollouts, int_field(params, "seed"))
        try:
            return list(await self._grader.grade(request))
        except OSError as error:
            raise fault_of(error, "starting a grading child") from error

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            await self._channel.send({"t": "beat", "lag_s": max(0.0, loop.time() - expected)})

    async def _send_logs(self) -> None:
        while True:
            await self._log_waiting.wait()
            self._log_waiting.clear()
            await self._send_waiting_logs()

    async def _send_waiting_logs(self) -> None:
        """Also before each answer: what a call printed arrives before the call is over."""
        async with self._log_sending:
            for frame in self.log.take():
                await self._channel.send(frame)
