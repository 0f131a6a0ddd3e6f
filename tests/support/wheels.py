"""Tiny wheels, written by a test: nothing is downloaded."""

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
) -> Path:
    """A wheel of pure Python with these modules; without any, one of the package's name."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {one}\n" for one in requires]
    content = {
        **(files or {f"{name.replace('-', '_')}.py": f"VERSION = {version!r}\n"}),
        f"{info}/METADATA": "".join(metadata),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in content.items())
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in content.items():
            archive.writestr(inner, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def sha256_of(path: Path) -> str:
    """As a pin says it."""
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={urlsafe_b64encode(digest).rstrip(b'=').decode()}"
