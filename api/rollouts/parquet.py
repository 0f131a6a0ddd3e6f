"""Records of an export as Parquet, one row group a page, written as the pages come.

pyarrow is imported when the first one is asked for: the gateway's start does not pay for it.
"""

import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from api.rollouts.records import TIMES


class ParquetStream:
    """`add` gives the bytes of one row group, `end` those that close the file."""

    def __init__(self) -> None:
        """Raises ImportError on a server without pyarrow."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa = pa
        self._schema = _schema(pa)
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), self._schema, compression="zstd"
        )

    def add(self, records: Sequence[Mapping[str, Any]]) -> bytes:
        """A row group of these records."""
        rows = [_row_of(record) for record in records]
        self._writer.write_table(self._pa.Table.from_pylist(rows, schema=self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        """The file's footer."""
        self._writer.close()
        return self._sink.take()


class _Sink(io.RawIOBase):
    """Keeps what was written since it was last taken, and counts all of it: offsets are in the footer."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._written += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._written

    def take(self) -> bytes:
        taken, self._chunks = b"".join(self._chunks), []
        return taken


def _row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Nested free-form parts are JSON text: their shape is the environment's; times are times."""
    texts = {name: json.dumps(record[name]) for name in ("components", "messages", "metrics")}
    said = {name: record[name] for name in TIMES}
    times = {name: text and datetime.fromisoformat(text) for name, text in said.items()}
    return {**record, **texts, **times}


def _schema(pa: Any) -> Any:
    text, integer, number = pa.string(), pa.int64(), pa.float64()
    node = pa.struct(
        [
            *(("id", text), ("parent", text), ("segment", integer), ("kind", text)),
            *(("start", integer), ("token_ids", pa.list_(pa.int32()))),
            *(("mask", pa.list_(pa.int8())), ("logprobs", pa.list_(number))),
            ("versions", pa.list_(pa.int32())),
        ]
    )
    turn = pa.struct(
        [
            *(("turn", integer), ("start", integer), ("sampled_end", integer), ("end", integer)),
            *(("tool_calls", integer), ("finish", text), ("generate_s", number)),
            *(("tool_s", number), ("segment", integer)),
        ]
    )
    return pa.schema(
        [
            *((name, text) for name in ("schema", "id", "group_id", "job_id", "attempt_id")),
            *(("index", integer), ("task_id", text), ("purpose", text), ("environment", integer)),
            ("try", integer),
            *((name, text) for name in ("end", "cause", "verdict")),
            *(("reward", number), ("unscorable_reason", text), ("advantage", number)),
            *(("disposition", text), ("bucket", text)),
            *(("oldest_version", integer), ("newest_version", integer)),
            *(("components", text), ("messages", text), ("metrics", text)),
            *(("nodes", pa.list_(node)), ("turns", pa.list_(turn)), ("error", text)),
            ("rewrites", pa.list_(integer)),
            *(("tokens", integer), ("sampled_tokens", integer)),
            *((name, pa.timestamp("us", tz="UTC")) for name in TIMES),
        ]
    )
