"""Raw bodies on disk: compressed against the agent's previous one, byte-exact on read (1.2).

A file of records, each a JSON line that describes it and then its bytes. Nothing is parsed here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash
import zstandard

KEY_FRAME_EVERY = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One raw body."""

    call: str
    kind: str
    """`request` or `response`."""
    agent: str
    data: bytes


class BodyWriter:
    """Appends bodies; safe to call from worker threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._previous: dict[tuple[str, str], bytes] = {}
        self._count: dict[tuple[str, str], int] = {}

    def append(self, body: Body) -> None:
        """Write one body. Every 32nd of an agent and kind stands alone."""
        with self._lock:
            lane = (body.agent, body.kind)
            count = self._count.get(lane, 0)
            base = self._previous.get(lane) if count % KEY_FRAME_EVERY else None
            same = _common(base or b"", body.data)
            packed = _compressor(base, same).compress(body.data[same:])
            head = {
                "call": body.call,
                "kind": body.kind,
                "agent": body.agent,
                "key_frame": base is None,
                "same": same,
                "bytes": len(packed),
                "xxh3": xxhash.xxh3_64_hexdigest(body.data),
            }
            self._file.write(orjson.dumps(head) + b"\n" + packed)
            self._previous[lane], self._count[lane] = body.data, count + 1

    def fileno(self) -> int:
        """Return the file's descriptor, to sync it."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def read_bodies(path: Path) -> Iterator[Body]:
    """Yield the bodies of a file; a record torn by a crash ends it.

    Raises:
        ValueError: a body does not have the checksum it was written with.
    """
    previous: dict[tuple[str, str], bytes] = {}
    with path.open("rb") as file:
        while line := file.readline():
            head = orjson.loads(line) if line.endswith(b"\n") else None
            packed = file.read(head["bytes"]) if head else b""
            if head is None or len(packed) < head["bytes"]:
                return
            lane = (head["agent"], head["kind"])
            base = None if head["key_frame"] else previous[lane]
            data = _decompressed(packed, base, head["same"])
            if xxhash.xxh3_64_hexdigest(data) != head["xxh3"]:
                raise ValueError(f"{path}: the {head['kind']} of {head['call']} is damaged")
            previous[lane] = data
            yield Body(call=head["call"], kind=head["kind"], agent=head["agent"], data=data)


def _common(base: bytes, data: bytes) -> int:
    """Return how many bytes two bodies begin with in common: a history that only grew.

    Compares halves of what is left, so that the work is done by memcmp.
    """
    low, high = 0, min(len(base), len(data))
    while low < high:
        middle = (low + high + 1) // 2
        if data.startswith(base[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _compressor(base: bytes | None, same: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(dict_data=_dictionary(base, same))


def _decompressed(packed: bytes, base: bytes | None, same: int) -> bytes:
    rest = zstandard.ZstdDecompressor(dict_data=_dictionary(base, same)).decompress(packed)
    return (base or b"")[:same] + rest


def _dictionary(base: bytes | None, same: int) -> zstandard.ZstdCompressionDict | None:
    """Return what stood after the common beginning: it costs time by its length."""
    tail = (base or b"")[same:]
    if not tail:
        return None
    return zstandard.ZstdCompressionDict(tail, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
