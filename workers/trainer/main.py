"""Entry of a trainer's process, under a keeper: the trainer and link of one job attempt."""

import asyncio

from domain.errors import FencedOut, ObjectNotWritten
from infra.clock import SystemClock
from infra.host_process import HostContext, run_host
from infra.ids import IdSource
from infra.link import LeaderLink
from stores.blobs import Blobs
from stores.system.leadership import find_leader
from stores.unit_of_work import Database, HostFence
from workers.trainer.host import TrainerHost, TrainerPorts
from workers.trainer.thread import TorchThread, pick_device


async def serve(context: HostContext) -> None:
    """Be the trainer until the lease ends; an unexpected end is a fault with a cause."""
    attempt_id = context.birth.attempt_id
    if attempt_id is None:
        raise context.fault("a trainer without an attempt")
    settings = context.settings
    database = Database(settings.database_url)
    thread = TorchThread()
    link = LeaderLink(
        context.host_id,
        context.epoch,
        context.birth.key,
        find_leader=lambda: find_leader(settings.database_url),
        snapshot=lambda: host.snapshot(),
        on_frame=lambda frame: host.on_frame(frame),
    )

    def set_mode(mode: str) -> None:
        context.mode = mode

    host = TrainerHost(
        HostFence(context.host_id, context.epoch),
        attempt_id,
        TrainerPorts(
            database=database,
            blobs=Blobs(settings.object_store_url),
            thread=thread,
            device=pick_device(),
            cache=settings.home / "hosts" / context.host_id,
            clock=SystemClock(),
            ids=IdSource(),
            emit=link.send,
            set_mode=set_mode,
        ),
    )
    try:
        await _until_over(context, host, link)
    except (FencedOut, ObjectNotWritten) as error:
        raise context.fault(f"{type(error).__name__}: {error}") from error
    finally:
        await database.close()


async def _until_over(context: HostContext, host: TrainerHost, link: LeaderLink) -> None:
    tasks = [asyncio.create_task(link.run()), asyncio.create_task(host.run())]
    stopped = asyncio.create_task(context.stopping.wait())
    try:
        done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)


if __name__ == "__main__":
    run_host(serve)
