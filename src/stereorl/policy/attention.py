"""Attention over the paged cache for batches of many requests, without the dense mask over all of them.

transformers' own path reads the cache of every request into one row and masks [queries, all keys]; eight replies of
500 tokens then attend to 4,000 keys each. Here each request attends to its own keys: replies in progress are gathered
into padded groups of similar length, prompts run one by one, and a prompt without a past needs no gather at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

NAME = "stereorl_paged"


@dataclass(frozen=True, slots=True)
class Span:
    """One request's part of a batch: `queries` new tokens after `past` cached ones, which lie in `blocks`."""

    queries: int
    past: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Requests that each decode one token. `read` [B * N]: cache rows, padded; `mask` [B, 1, 1, N] None: all alike."""

    rows: Tensor
    read: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """A request that processes several tokens. `read` None: nothing cached before; else with `mask` [Q, past + Q]."""

    rows: slice
    read: Tensor | None
    mask: Tensor | None


class Plan:
    """What every layer of one forward pass does with the cache. Made once per batch.

    `views[layer]` are the key and value rows of the cache, [rows, KV heads, D]; token t of a block b lies at row
    `b * stride + t`. `write` [tokens in batch] are the rows of the new tokens.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        write: Tensor,
        *,
        views: dict[int, tuple[Tensor, Tensor]],
        page: int,
        stride: int,
    ):
        self._views, self._write, self._device = views, write, write.device
        self._offsets = np.arange(page)
        self._stride = stride
        singles: dict[int, list[tuple[int, np.ndarray[Any, Any]]]] = {}
        self._prompts: list[_Prompt] = []
        row = 0
        for span in spans:
            length = span.past + span.queries
            if span.queries == 1:
                singles.setdefault(length.bit_length(), []).append((row, self._rows_of(span, length)))
            else:
                self._prompts.append(self._prompt(span, row))
            row += span.queries
        self._groups = [self._group(members) for members in singles.values()]

    def attend(
        self,
        layer: int,
        query_QHD: Tensor,
        new_keys: Tensor,
        new_values: Tensor,
        scaling: float | None = None,
    ) -> Tensor:
        """Queries [Q, H, D] of all requests, their new keys and values [Q, KV heads, D] -> [Q, H, D].

        `scaling` None: one over the root of D.
        """
        keys, values = self._views[layer]
        keys.index_copy_(0, self._write, new_keys)
        values.index_copy_(0, self._write, new_values)
        out_QHD = torch.empty_like(query_QHD, memory_format=torch.contiguous_format)
        for group in self._groups:
            out_QHD[group.rows] = _decode(
                query_QHD[group.rows],
                keys.index_select(0, group.read),
                values.index_select(0, group.read),
                group.mask,
                scaling,
            )
        for prompt in self._prompts:
            if prompt.read is None:
                k, v = new_keys[prompt.rows], new_values[prompt.rows]
            else:
                k, v = keys.index_select(0, prompt.read), values.index_select(0, prompt.read)
            out_QHD[prompt.rows] = _prefill(query_QHD[prompt.rows], k, v, prompt.mask, scaling)
        return out_QHD

    def _rows_of(self, span: Span, length: int) -> np.ndarray[Any, Any]:
        used = np.asarray(span.blocks[: -(-length // len(self._offsets))], dtype=np.int64)
        rows: np.ndarray[Any, Any] = (used[:, None] * self._stride + self._offsets).reshape(-1)[:length]
        return rows

    def _group(self, members: list[tuple[int, np.ndarray[Any, Any]]]) -> _Group:
        lengths = [len(read) for _, read in members]
        longest = max(lengths)
        read_BN = np.zeros((len(members), longest), dtype=np.int64)
        for at, (_, read) in enumerate(members):
            read_BN[at, : len(read)] = read
        mask = None
        if min(lengths) < longest:
            mask_BN = np.arange(longest) < np.asarray(lengths)[:, None]
            mask = torch.from_numpy(mask_BN).to(self._device)[:, None, None]
        rows = torch.tensor([row for row, _ in members], device=self._device)
        return _Group(rows, torch.from_numpy(read_BN.reshape(-1)).to(self._device), mask)

    def _prompt(self, span: Span, row: int) -> _Prompt:
        rows = slice(row, row + span.queries)
        if span.past == 0:
            return _Prompt(rows, None, None)
        length = span.past + span.queries
        mask = torch.ones(span.queries, length, dtype=torch.bool, device=self._device).tril(span.past)
        return _Prompt(rows, torch.from_numpy(self._rows_of(span, length)).to(self._device), mask)


def _decode(
    q_BHD: Tensor, k_rows: Tensor, v_rows: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """One query per request. The query heads that share a key head are taken as that head's queries."""
    batch, heads, width = q_BHD.shape
    kv_heads = k_rows.shape[1]
    k = k_rows.view(batch, -1, kv_heads, width).transpose(1, 2)
    v = v_rows.view(batch, -1, kv_heads, v_rows.shape[2]).transpose(1, 2)
    q = q_BHD.reshape(batch, kv_heads, heads // kv_heads, width)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, -1)


def _prefill(
    q_QHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_QHD, k_NHD, v_NHD))
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[0].transpose(0, 1)


def _paged(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    plan: Plan = kwargs["plan"]
    query_QHD, key_QHD, value_QHD = (x[0].transpose(0, 1) for x in (query, key, value))
    return plan.attend(module.layer_idx, query_QHD, key_QHD, value_QHD, kwargs.get("scaling"))[None], None


def register() -> None:
    """Make `NAME` known to transformers. It needs no mask, so none is registered for it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _paged)
