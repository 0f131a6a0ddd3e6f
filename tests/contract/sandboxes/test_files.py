"""Questions about files, on every runtime."""

import asyncio

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.files import (
    REMOVED_ENTRIES_MAX,
    Entry,
    EntryKind,
    FileRequest,
    Listing,
    ListRequest,
    MakeFolderRequest,
    MoveRequest,
    RemoveRequest,
    StatRequest,
)
from sandboxes.ports import Runtime, Sandbox
from tests.support.sandboxes import shell, spec
from venusrl.env.sandbox import ReadRequest, SandboxError, WriteRequest


@pytest.fixture
async def sandbox(runtime: Runtime) -> Sandbox:
    limits = SandboxLimits(disk_bytes=64 << 20)
    (made,) = await runtime.fork([spec(limits=limits)])
    return made


async def entry(sandbox: Sandbox, path: str) -> Entry:
    found = await sandbox.files(StatRequest(path))
    assert isinstance(found, Entry)
    return found


async def listing(sandbox: Sandbox, path: str, most: int = 1000) -> tuple[list[str], bool]:
    found = await sandbox.files(ListRequest(path, most))
    assert isinstance(found, Listing)
    return [one.name for one in found.entries], found.is_whole


async def reason_of(sandbox: Sandbox, request: FileRequest) -> str:
    with pytest.raises(SandboxError) as refused:
        await sandbox.files(request)
    return refused.value.reason


async def test_an_entry_says_what_it_is(sandbox: Sandbox) -> None:
    await shell(
        sandbox,
        "printf abc > file; chmod 640 file; touch -d '2024-05-06 07:08:09' file; mkdir -m 700 folder; "
        "ln -s file link; mkfifo pipe",
    )
    assert await entry(sandbox, "file") == Entry(
        "file", EntryKind.FILE, 3, 0o640, 1_714_979_289_000_000_000
    )
    kinds = {}
    for name in ("file", "folder", "link", "pipe", "/work"):
        kinds[name] = (await entry(sandbox, name)).kind.value
    assert kinds == {
        "file": "file",
        "folder": "folder",
        "link": "link",
        "pipe": "other",
        "/work": "folder",
    }
    assert (await entry(sandbox, "folder")).mode == 0o700
    assert await reason_of(sandbox, StatRequest("missing")) == "not_found"
    assert await reason_of(sandbox, StatRequest("file/below")) == "not_found"


async def test_a_listing_is_by_name_and_says_when_there_is_more(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkdir many; cd many; for i in 3 1 2; do echo > f$i; done; ln -s /etc out")
    assert await listing(sandbox, "many") == (["f1", "f2", "f3", "out"], True)
    assert await listing(sandbox, "many", 4) == (["f1", "f2", "f3", "out"], True)
    names, is_whole = await listing(sandbox, "many", 2)
    assert (len(names), is_whole) == (2, False)
    assert await listing(sandbox, "/work") == ([".tmp", "many"], True)
    assert await listing(sandbox, "many", 0) == ([], False)
    assert await reason_of(sandbox, ListRequest("missing")) == "not_found"
    assert await reason_of(sandbox, ListRequest("many/f1")) == "denied"


async def test_a_name_of_any_bytes_comes_back_and_is_found_again(sandbox: Sandbox) -> None:
    await shell(sandbox, r"mkdir odd; touch \"odd/$(printf 'a\377\n b')\"".replace('\\"', '"'))
    names, _ = await listing(sandbox, "odd")
    assert [name.encode(errors="surrogateescape") for name in names] == [b"a\xff\n b"]
    assert (await entry(sandbox, f"odd/{names[0]}")).name == names[0]


async def test_a_long_listing_is_cut_at_its_limit(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkdir many; cd many; seq 1 1500 | xargs touch")
    names, is_whole = await listing(sandbox, "many", 1000)
    assert (len(set(names)), is_whole, names == sorted(names)) == (1000, False, True)


async def test_a_folder_is_made_with_those_above_and_once(sandbox: Sandbox) -> None:
    assert await sandbox.files(MakeFolderRequest("a/b/c")) is True
    assert await sandbox.files(MakeFolderRequest("a/b/c")) is False
    assert await sandbox.files(MakeFolderRequest("/work")) is False
    await sandbox.call(WriteRequest("file", b""))
    assert await reason_of(sandbox, MakeFolderRequest("file")) == "denied"
    assert await reason_of(sandbox, MakeFolderRequest("file/below")) in ("denied", "not_found")
    assert (await shell(sandbox, "ls -d a/b/c")).exit_code == 0


async def test_a_move_takes_the_place_of_a_file_and_makes_folders(sandbox: Sandbox) -> None:
    await sandbox.call(WriteRequest("one", b"1"))
    await sandbox.call(WriteRequest("two", b"2"))
    assert await sandbox.files(MoveRequest("one", "deep/er/two")) is None
    assert await sandbox.files(MoveRequest("two", "deep/er/two")) is None
    assert await sandbox.call(ReadRequest("deep/er/two")) == b"2"
    await sandbox.files(MoveRequest("deep", "deeper"))
    assert await listing(sandbox, ".") == ([".tmp", "deeper"], True)
    assert await reason_of(sandbox, MoveRequest("missing", "x/y")) == "not_found"
    assert await reason_of(sandbox, MoveRequest("deeper", "deeper/below")) == "denied"
    assert await listing(sandbox, ".") == ([".tmp", "deeper"], True)


async def test_an_entry_is_removed_with_all_that_it_holds(sandbox: Sandbox) -> None:
    await shell(
        sandbox,
        "mkdir -p tree/a/b /dev/shm/kept; echo > tree/a/b/f; echo > /dev/shm/kept/file; "
        "ln -s /dev/shm/kept tree/a/link; mkfifo tree/pipe; ln -s /dev/shm/kept link; echo > file",
    )
    for path in ("tree", "link", "file"):
        assert await sandbox.files(RemoveRequest(path)) is None
    assert await listing(sandbox, ".") == ([".tmp"], True)
    assert (await shell(sandbox, "ls /dev/shm/kept")).stdout == b"file\n"
    assert await reason_of(sandbox, RemoveRequest("tree")) == "not_found"


async def test_what_is_too_much_to_remove_at_once_stays_whole(sandbox: Sandbox) -> None:
    count = REMOVED_ENTRIES_MAX + 1
    await shell(sandbox, f"mkdir many; cd many; seq 1 {count} | xargs touch; ls | wc -l", 50.0)
    await shell(sandbox, f"d=deep; for i in $(seq 1 {70}); do d=$d/d; done; mkdir -p $d", 50.0)
    for path in ("many", "deep"):
        assert await reason_of(sandbox, RemoveRequest(path)) == "too_large"
    left = await shell(sandbox, "ls many | wc -l; find deep | wc -l", 50.0)
    assert left.text.split() == [str(count), "71"]


async def test_questions_do_not_wait_for_a_call(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(shell(sandbox, "until [ -e go ]; do sleep 0.05; done"))
    await sandbox.files(WriteRequest("before", b"1"))
    assert await sandbox.files(ReadRequest("before")) == b"1"
    assert not running.done()
    await sandbox.files(WriteRequest("go", b""))
    assert (await running).exit_code == 0
