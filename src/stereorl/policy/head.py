"""The last matrix of a causal LM, and log-probs through it without [tokens, vocabulary] held for backward.

The head is 43 % of a training step at 49k words and more at larger vocabularies, so it is run on response
positions only, a chunk at a time. Two ways through, equal in value:
  frozen head (LoRA)   d logp / d hidden = (W[id] - p W) * scale / T is worked out in forward, where p is
                       at hand, and kept as [N, H]; backward is then one product.
  trained or capped    each chunk is an activation checkpoint: backward computes its logits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stereorl.errors import ModelError

CHUNK = 128


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """`body` yields hidden states; logits = cap(scale * linear(hidden))."""

    body: Callable[..., Any]
    linear: Any
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """[N, H] -> float32 logits [N, V], exactly as the model's own forward computes them."""
        logits_NV: Tensor = self.linear(hidden_NH)
        if self.scale != 1.0:
            logits_NV = logits_NV * self.scale
        if self.softcap is not None:
            logits_NV = torch.tanh(logits_NV / self.softcap) * self.softcap
        return logits_NV.float()

    def log_probs(
        self, hidden_NH: Tensor, ids_N: Tensor, temperature_N: Tensor, *, chunk: int = CHUNK
    ) -> Tensor:
        """`log softmax(logits / T)[id]`, float32 [N]; gradients flow to `hidden_NH` and to a trained head."""
        wants_grad = torch.is_grad_enabled() and (hidden_NH.requires_grad or self._trained)
        if wants_grad and not self._trained and self.softcap is None and self.linear.bias is None:
            factor_N = self.scale / temperature_N
            apply: Callable[..., Tensor] = _FrozenHead.apply
            return apply(hidden_NH, self.linear.weight, ids_N, factor_N, chunk)
        parts = [
            checkpoint(self._chunk, *part, use_reentrant=False, preserve_rng_state=False)
            if wants_grad
            else self._chunk(*part)
            for part in _chunks(chunk, hidden_NH, ids_N, temperature_N)
        ]
        return torch.cat(parts) if parts else hidden_NH.new_zeros(0, dtype=torch.float32)

    @property
    def device(self) -> torch.device:
        found: torch.device = self.linear.weight.device
        return found

    @property
    def _trained(self) -> bool:
        return any(param.requires_grad for param in self.linear.parameters())

    def _chunk(self, hidden_NH: Tensor, ids_N: Tensor, temperature_N: Tensor) -> Tensor:
        return token_log_probs(self.logits(hidden_NH) / temperature_N[:, None], ids_N)


def token_log_probs(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    """`logits[id] - logsumexp(logits)`, [N]; never -inf by underflow, as log(softmax) would be."""
    return logits_NV.gather(1, ids_N[:, None]).squeeze(1) - logits_NV.logsumexp(1)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, ids_N: Tensor, factor_N: Tensor, chunk: int
    ) -> Tensor:
        logp_N = hidden_NH.new_empty(len(ids_N), dtype=torch.float32)
        slope_NH = torch.empty_like(hidden_NH)
        for at in range(0, len(ids_N), chunk):
            part = slice(at, at + chunk)
            ids, factor = ids_N[part], factor_N[part, None]
            logits = functional.linear(hidden_NH[part], weight_VH).float().mul_(factor)
            lse = logits.logsumexp(1, keepdim=True)
            logp_N[part] = (logits.gather(1, ids[:, None]) - lse).squeeze(1)
            p = logits.sub_(lse).exp_().to(weight_VH.dtype)
            slope_NH[part] = torch.addmm(weight_VH[ids], p, weight_VH, alpha=-1).mul_(factor)
        ctx.save_for_backward(slope_NH)
        return logp_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (slope_NH,) = ctx.saved_tensors
        return (slope_NH.float() * grad_N[:, None]).to(slope_NH.dtype), None, None, None, None


def _chunks(chunk: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for at in range(0, len(tensors[0]), chunk):
        yield tuple(tensor[at : at + chunk] for tensor in tensors)


_heads: WeakKeyDictionary[nn.Module, Head] = WeakKeyDictionary()


def head_of(model: Any) -> Head:
    """Body and head of a transformers causal LM, PEFT-wrapped or not; checked once against its own logits.

    Raises ModelError for a model whose logits are not cap(scale * linear(body)).
    """
    if isinstance(model, Head):
        return model
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if inner not in _heads:
        _heads[inner] = _find(inner)
    return _heads[inner]


def _find(inner: Any) -> Head:
    config, linear, body = inner.config.get_text_config(), inner.get_output_embeddings(), inner.base_model
    if not hasattr(linear, "out_features") or body is inner:
        raise ModelError(
            f"{type(inner).__name__} has no linear output head over a body; it cannot be trained here."
        )
    scale = float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))
    head = Head(body, linear, scale, getattr(config, "final_logit_softcapping", None))
    with torch.no_grad():
        probe = torch.arange(2, device=inner.device)[None]
        hidden = body(input_ids=probe, use_cache=False).last_hidden_state
        expected = inner(input_ids=probe, use_cache=False).logits[0].float()
        if not torch.allclose(head.logits(hidden[0]), expected, rtol=1e-3, atol=1e-3):
            raise ModelError(
                f"{type(inner).__name__} does more to its logits than a scale and a cap; not supported."
            )
    return head
