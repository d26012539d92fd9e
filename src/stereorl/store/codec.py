"""Values of `data` <-> what a column holds. Lossless both ways, or MisalignedError."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stereorl.data import Message, Sampling
from stereorl.data.turn import FloatArray, IntArray
from stereorl.errors import MisalignedError


def pack_ints(values: npt.ArrayLike, what: str) -> bytes:
    """Little-endian int32. MisalignedError when a value is no int32, rather than a wrapped one."""
    array = np.asarray(values)
    if array.ndim == 1 and (array.dtype.kind in "iu" or not array.size):
        packed = array.astype("<i4")
        if np.array_equal(packed, array):
            return packed.tobytes()
    raise MisalignedError(f"{what} is not a row of 32-bit integers (shape {array.shape}, {array.dtype}).")


def pack_floats(values: npt.ArrayLike, what: str) -> bytes:
    """Little-endian float32; float64 is rounded to it."""
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.floating):
        raise MisalignedError(f"{what} is not a row of floats (shape {array.shape}, {array.dtype}).")
    return array.astype("<f4").tobytes()


def unpack_ints(blob: bytes) -> IntArray:
    return np.frombuffer(blob, "<i4").astype(np.int32)


def unpack_floats(blob: bytes) -> FloatArray:
    return np.frombuffer(blob, "<f4").astype(np.float32)


def pack_top(ids: npt.ArrayLike, log_probs: npt.ArrayLike, rows: int, what: str) -> tuple[bytes, bytes]:
    """[R, K] ids and log-probs, row by row. MisalignedError unless both have `rows` rows of K >= 1 values."""
    ids_RK, logp_RK = np.asarray(ids), np.asarray(log_probs)
    if ids_RK.ndim != 2 or ids_RK.shape != logp_RK.shape or len(ids_RK) != rows or not ids_RK.shape[1]:
        raise MisalignedError(f"{what} are {ids_RK.shape} and {logp_RK.shape} values for {rows} tokens.")
    if not np.isfinite(logp_RK).all():
        raise MisalignedError(f"{what} are not all finite.")
    return pack_ints(ids_RK.ravel(), what), pack_floats(logp_RK.ravel(), what)


def unpack_top(ids: bytes, log_probs: bytes, rows: int) -> tuple[IntArray, FloatArray]:
    """[R, K] ids and log-probs; K is what the length makes it."""
    return unpack_ints(ids).reshape(rows, -1), unpack_floats(log_probs).reshape(rows, -1)


def dump(value: Any) -> str:
    """Compact JSON that any database stores: characters as they are, unless they are no valid text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value, separators=(",", ":"))
    return text


def dump_metrics(metrics: Mapping[str, Any]) -> str:
    """JSON with NaN and infinities as Python writes them; NumPy scalars and arrays become plain numbers and
    lists.
    """
    return json.dumps(dict(metrics), default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"A metric of type {type(value).__name__} cannot be stored. Pass numbers, text, lists or dicts."
    )


def dump_sampling(sampling: Sampling) -> str:
    return dump(dataclasses.asdict(sampling))


def load_sampling(text: str) -> Sampling:
    fields = json.loads(text)
    return Sampling(**{**fields, "stop": tuple(fields["stop"])})


def part_of(message: Message) -> tuple[bytes, str]:
    """(digest, body) of a message."""
    return bytes.fromhex(message.digest()), dump(message.as_dict())


def tools_part(tools: Iterable[Mapping[str, Any]]) -> tuple[bytes, str] | None:
    """(digest, body) of a turn's tools; None when it has none."""
    body = dump([dict(tool) for tool in tools])
    return (digest_of("tools", body), body) if body != "[]" else None


def node_of(parent: bytes | None, part: bytes) -> bytes:
    """The key of a message in its context: a hash over the whole conversation up to it."""
    return hashlib.sha256((parent or b"") + part).digest()


def digest_of(*fields: object) -> bytes:
    """The natural key of a fact, so that storing it twice stores it once."""
    return hashlib.sha256(json.dumps(fields, default=repr).encode()).digest()
