"""Archives: equal trees pack equal, and a hostile one leaves nothing behind."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.package import OF_PACKAGES, Bounds, content_hash, pack, unpack
from venusrl.env.host.manifest import PackageInvalid, read_manifest

MANIFEST = 'name = "calc"\nversion = "1"\nsdk = 1\nentry = "env:Calc"\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "tasks").mkdir(parents=True)
    (folder / "venus.toml").write_text(MANIFEST)
    (folder / "env.py").write_text("x = 1\n")
    (folder / "tasks" / "train.jsonl").write_text("{}\n")
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o700)
    return folder


def archive_of(add: Callable[[tarfile.TarFile], None]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        add(archive)
    return out.getvalue()


def member(
    name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> bytes:
    def add(archive: tarfile.TarFile) -> None:
        header = tarfile.TarInfo(name)
        header.type, header.linkname = kind, link
        header.size = len(content) if kind == tarfile.REGTYPE else 0
        archive.addfile(header, io.BytesIO(content))

    return archive_of(add)


def refused(archive: bytes, target: Path, bounds: Bounds = OF_PACKAGES) -> str:
    with pytest.raises(PackageInvalid) as caught:
        unpack(archive, target, bounds)
    assert list(target.parent.iterdir()) == []
    return caught.value.findings[0].message


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "unpacked" / "package"


def test_a_tree_survives_packing_and_keeps_its_hash(source: Path, target: Path) -> None:
    digest = unpack(pack(source), target)
    assert digest == content_hash(source) == content_hash(target)
    assert (target / "tasks" / "train.jsonl").read_text() == "{}\n"
    assert os.access(target / "run.sh", os.X_OK)
    assert read_manifest(target).name == "calc"


def test_packing_does_not_depend_on_times_modes_or_by_products(source: Path) -> None:
    first, digest = pack(source), content_hash(source)
    os.utime(source / "env.py", (1, 1))
    (source / "env.py").chmod(0o600)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "env.pyc").write_bytes(b"x")
    (source / ".git").mkdir()
    assert pack(source) == first
    assert content_hash(source) == digest


@pytest.mark.parametrize("change", ["content", "name", "mode"])
def test_the_hash_changes_with_the_tree(source: Path, change: str) -> None:
    digest = content_hash(source)
    if change == "content":
        (source / "env.py").write_text("x = 2\n")
    elif change == "name":
        (source / "env.py").rename(source / "environment.py")
    else:
        (source / "env.py").chmod(0o755)
    assert content_hash(source) != digest


def test_a_link_is_not_packed(source: Path) -> None:
    (source / "secret").symlink_to("/etc/passwd")
    with pytest.raises(PackageInvalid, match="is a link"):
        pack(source)


def test_unpacking_twice_is_fine_and_over_another_tree_is_not(source: Path, target: Path) -> None:
    archive = pack(source)
    assert unpack(archive, target) == unpack(archive, target)
    (target / "env.py").write_text("changed")
    with pytest.raises(OSError):
        unpack(archive, target)


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/evil", "a\\b", "a\nb", "a/" * 20 + "b", "n" * 300]
)
def test_a_path_that_leaves_the_folder_is_refused(target: Path, name: str) -> None:
    refused(member(name), target)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
)
def test_links_and_special_files_are_refused(target: Path, kind: bytes) -> None:
    assert "link or a special file" in refused(member("a", kind=kind, link="/etc/passwd"), target)


def test_a_file_that_occurs_twice_is_refused(target: Path) -> None:
    def add(archive: tarfile.TarFile) -> None:
        for content in (b"good", b"evil"):
            header = tarfile.TarInfo("env.py")
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))

    assert refused(archive_of(add), target) == "occurs twice"


def test_a_file_below_a_file_is_refused(target: Path) -> None:
    def add(archive: tarfile.TarFile) -> None:
        archive.addfile(tarfile.TarInfo("a"))
        archive.addfile(tarfile.TarInfo("a/b"))

    refused(archive_of(add), target)


def test_a_bomb_ends_at_the_limit(target: Path) -> None:
    bounds = Bounds(unpacked_bytes=1 << 20, files=10)
    assert "exceeds" in refused(member("zeros", bytes(4 << 20)), target, bounds)
    header_bomb = gzip.compress(_pax_header(4 << 20))
    assert "header extension exceeds" in refused(header_bomb, target, bounds)


def _pax_header(size: int) -> bytes:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, size
    return header.tobuf(tarfile.USTAR_FORMAT) + bytes(size)


def test_too_many_files_are_refused(target: Path) -> None:
    def add(archive: tarfile.TarFile) -> None:
        for number in range(5):
            archive.addfile(tarfile.TarInfo(f"f{number}"))

    assert "more than 3 files" in refused(archive_of(add), target, Bounds(files=3))


def test_an_oversize_archive_is_refused(target: Path) -> None:
    target.parent.mkdir(parents=True)
    assert "exceeds 10" in refused(bytes(11), target, Bounds(archive_bytes=10))


@pytest.mark.parametrize("archive", [b"", b"x" * 100, gzip.compress(b"x" * 100, mtime=0)])
def test_what_is_no_archive_is_refused(target: Path, archive: bytes) -> None:
    if archive:
        assert "not a readable" in refused(archive, target)
    else:
        refused(archive, target)


def test_a_truncated_archive_is_refused(source: Path, target: Path) -> None:
    archive = pack(source)
    refused(archive[: len(archive) // 2], target)


def test_a_package_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageInvalid, match="is missing"):
        read_manifest(tmp_path)
