"""The last matrix of a causal LM, and log-probs through it without [tokens, vocabulary] held for backward.

The head is 43 % of a training step at 49k words and more at larger vocabularies, so it is run on response
positions only, a chunk at a time. Two ways through, equal in value:
  frozen head (LoRA)   d logp / d hidden = (W[id] - p W) * scale / T is worked out in forward, where p is
                       at hand, and kept as [N, H]; backward is then one product.
  trained or capped    each chunk is an activation checkpoint: backward computes its logits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
        if wants_grad and self._plain:
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

    def log_probs_at(
        self, hidden_NH: Tensor, ids_NK: Tensor, temperature_N: Tensor, *, chunk: int = CHUNK
    ) -> Tensor:
        """`log softmax(logits / T)` at K ids of each position, float32 [N, K]; gradients as `log_probs`."""
        wants_grad = torch.is_grad_enabled() and (hidden_NH.requires_grad or self._trained)
        if wants_grad and self._plain:
            apply: Callable[..., Tensor] = _FrozenHeadAt.apply
            return apply(hidden_NH, self.linear.weight, ids_NK, self.scale / temperature_N, chunk)
        parts = [
            checkpoint(self._chunk_at, *part, use_reentrant=False, preserve_rng_state=False)
            if wants_grad
            else self._chunk_at(*part)
            for part in _chunks(chunk, hidden_NH, ids_NK, temperature_N)
        ]
        return torch.cat(parts) if parts else hidden_NH.new_zeros(ids_NK.shape, dtype=torch.float32)

    def map(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        hidden_NH: Tensor,
        temperature_N: Tensor,
        other: Head,
        other_NH: Tensor,
        *,
        chunk: int = CHUNK,
    ) -> Tensor:
        """`function(log softmax(own logits / T), log softmax(other's logits / T)) -> [n]`, a chunk at a time: [N].

        The value of a token must depend on its own row alone. Gradients flow to `hidden_NH` (and a trained head); of
        a frozen head they are worked out in forward, while the chunk's logits are at hand.
        """
        if torch.is_grad_enabled() and hidden_NH.requires_grad and self._plain:
            apply: Callable[..., Tensor] = _FrozenHeadMap.apply
            return apply(hidden_NH, self, function, temperature_N, other, other_NH, chunk)

        def part(own_nH: Tensor, t_n: Tensor, other_nH: Tensor) -> Tensor:
            with torch.no_grad():
                other_nV = (other.logits(other_nH) / t_n[:, None]).log_softmax(1)
            return function((self.logits(own_nH) / t_n[:, None]).log_softmax(1), other_nV)

        wants_grad = torch.is_grad_enabled() and (hidden_NH.requires_grad or self._trained)
        parts = [
            checkpoint(part, *piece, use_reentrant=False, preserve_rng_state=False)
            if wants_grad
            else part(*piece)
            for piece in _chunks(chunk, hidden_NH, temperature_N, other_NH)
        ]
        return torch.cat(parts) if parts else hidden_NH.new_zeros(0, dtype=torch.float32)

    def chunks(
        self, hidden_NH: Tensor, temperature_N: Tensor, *, chunk: int = CHUNK
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(logits [n, V], temperatures [n]) of a chunk of positions after the other."""
        for hidden_nH, t_n in _chunks(chunk, hidden_NH, temperature_N):
            yield self.logits(hidden_nH), t_n

    def frozen(self) -> Head:
        """A head that keeps the present weights, whatever the model's become; itself when it does not train."""
        if not self._trained:
            return self
        return replace(self, linear=_Frozen(self.linear.weight.data, self.linear.bias))

    @property
    def _plain(self) -> bool:
        return not self._trained and self.softcap is None and self.linear.bias is None

    @property
    def device(self) -> torch.device:
        found: torch.device = self.linear.weight.device
        return found

    @property
    def _trained(self) -> bool:
        return any(param.requires_grad for param in self.linear.parameters())

    def _chunk(self, hidden_NH: Tensor, ids_N: Tensor, temperature_N: Tensor) -> Tensor:
        return token_log_probs(self.logits(hidden_NH) / temperature_N[:, None], ids_N)

    def _chunk_at(self, hidden_NH: Tensor, ids_NK: Tensor, temperature_N: Tensor) -> Tensor:
        return token_log_probs(self.logits(hidden_NH) / temperature_N[:, None], ids_NK)


class _Frozen:
    """A linear layer's values without the layer: `weight` is the tensor the layer had, not the one it will have."""

    def __init__(self, weight_VH: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight_VH, None if bias is None else bias.data

    def __call__(self, hidden_NH: Tensor) -> Tensor:
        return functional.linear(hidden_NH, self.weight, self.bias)

    def parameters(self) -> tuple[Tensor, ...]:
        return ()


def token_log_probs(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    """`logits[id] - logsumexp(logits)`, of one id [N] or of K [N, K] at each position; never -inf by underflow, as
    log(softmax) would be.
    """
    if ids_N.dim() == 2:
        return logits_NV.gather(1, ids_N) - logits_NV.logsumexp(1, keepdim=True)
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


class _FrozenHeadAt(torch.autograd.Function):
    """d logp[k] / d hidden = (W[id_k] - p W) * scale / T; p W is kept, the rows of W are taken again in backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, ids_NK: Tensor, factor_N: Tensor, chunk: int
    ) -> Tensor:
        logp_NK = hidden_NH.new_empty(ids_NK.shape, dtype=torch.float32)
        mean_NH = torch.empty_like(hidden_NH)
        for at in range(0, len(ids_NK), chunk):
            part = slice(at, at + chunk)
            logits = functional.linear(hidden_NH[part], weight_VH).float().mul_(factor_N[part, None])
            lse = logits.logsumexp(1, keepdim=True)
            logp_NK[part] = logits.gather(1, ids_NK[part]) - lse
            mean_NH[part] = logits.sub_(lse).exp_().to(weight_VH.dtype) @ weight_VH
        ctx.save_for_backward(mean_NH, weight_VH, ids_NK, factor_N)
        ctx.chunk = chunk
        return logp_NK

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        mean_NH, weight_VH, ids_NK, factor_N = ctx.saved_tensors
        out_NH = torch.empty_like(mean_NH)
        for at in range(0, len(ids_NK), ctx.chunk):
            part = slice(at, at + ctx.chunk)
            grad_nK = grad_NK[part]
            own_nH = torch.einsum("nk,nkh->nh", grad_nK, weight_VH[ids_NK[part]].float())
            total_n1 = grad_nK.sum(1, keepdim=True)
            out_NH[part] = ((own_nH - total_n1 * mean_NH[part].float()) * factor_N[part, None]).to(
                out_NH.dtype
            )
        return out_NH, None, None, None, None


class _FrozenHeadMap(torch.autograd.Function):
    """The gradient of each token's value with respect to its hidden state is worked out in forward: dv/dz W *
    scale / T.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        head: Head,
        function: Callable[[Tensor, Tensor], Tensor],
        temperature_N: Tensor,
        other: Head,
        other_NH: Tensor,
        chunk: int,
    ) -> Tensor:
        weight_VH = head.linear.weight
        value_N = hidden_NH.new_empty(len(hidden_NH), dtype=torch.float32)
        slope_NH = torch.empty_like(hidden_NH)
        for at in range(0, len(hidden_NH), chunk):
            part = slice(at, at + chunk)
            t_n1 = temperature_N[part, None]
            other_nV = other.logits(other_NH[part]).div(t_n1).log_softmax(1)
            logits_nV = functional.linear(hidden_NH[part], weight_VH).float().mul_(head.scale / t_n1)
            with torch.enable_grad():
                logits_nV.requires_grad_()
                value_n = function(logits_nV.log_softmax(1), other_nV)
                (slope_nV,) = torch.autograd.grad(value_n.sum(), logits_nV)
            value_N[part] = value_n.detach()
            slope_NH[part] = (slope_nV.to(weight_VH.dtype) @ weight_VH).mul_(head.scale / t_n1)
        ctx.save_for_backward(slope_NH)
        return value_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, None, None, None, None, None, None]:
        (slope_NH,) = ctx.saved_tensors
        own_NH = (slope_NH.float() * grad_N[:, None]).to(slope_NH.dtype)
        return own_NH, None, None, None, None, None, None


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
