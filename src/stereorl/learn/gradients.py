"""The gradient of each term over a whole batch, so that conflict can be measured, and answered.

One backward pass per term through the same graph. A term whose gradient is zero at the model's output (a signal that no
row carries, a KL at the reference) costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stereorl.core import Combiner, cosine, norm

SIGNALS = ("eval", "dir")


class TermGradients:
    """Flat gradients [P] by term, summed over micro-batches."""

    def __init__(self, parameters: Sequence[Tensor]):
        self._parameters = list(parameters)
        self._size = sum(p.numel() for p in parameters)
        self._flat: dict[str, Tensor] = {}

    def add(self, terms: Mapping[str, Tensor], output: Tensor | None = None) -> None:
        """Backward through each term. `output` is the tensor that all of them pass through, if there is one."""
        live = [name for name, term in terms.items() if term.requires_grad]
        if output is not None and output.requires_grad:
            live = [name for name in live if self._reaches(terms[name], output)]
        for name in live:
            self._add(name, terms[name], keep=name != live[-1])

    @staticmethod
    def _reaches(term: Tensor, output: Tensor) -> bool:
        (slope,) = torch.autograd.grad(term, output, retain_graph=True, allow_unused=True)
        return slope is not None and bool(slope.count_nonzero())

    def _add(self, name: str, term: Tensor, *, keep: bool) -> None:
        grads = torch.autograd.grad(term, self._parameters, retain_graph=keep, allow_unused=True)
        if name not in self._flat:
            first = self._parameters[0]
            self._flat[name] = torch.zeros(self._size, dtype=first.dtype, device=first.device)
        at = 0
        for parameter, grad in zip(self._parameters, grads, strict=True):
            if grad is not None:
                self._flat[name][at : at + parameter.numel()] += grad.reshape(-1)
            at += parameter.numel()

    def norms(self) -> dict[str, float]:
        """Per term that has a gradient, its norm."""
        return {name: float(norm(flat_P)) for name, flat_P in self._flat.items()}

    def cosine(self) -> float | None:
        """Between the two signals' gradients; None when one of them is absent."""
        if any(name not in self._flat for name in SIGNALS):
            return None
        return cosine(self._flat["eval"], self._flat["dir"])

    def put(self, combine: Combiner) -> None:
        """Set each parameter's `grad`: the signals' gradients combined, and every regulariser's added to that."""
        signals = [self._flat[name] for name in SIGNALS if name in self._flat]
        others = [flat_P for name, flat_P in self._flat.items() if name not in SIGNALS]
        if not signals and not others:
            return
        total_P = combine(signals).clone() if signals else torch.zeros_like(others[0])
        for other_P in others:
            total_P += other_P
        at = 0
        for parameter in self._parameters:
            size = parameter.numel()
            parameter.grad = total_P[at : at + size].view(parameter.shape)
            at += size


def statistics(gradients: TermGradients | None) -> dict[str, Any]:
    """grad_norm_<term> and grad_cosine, where they are known."""
    if gradients is None:
        return {}
    found: dict[str, Any] = {f"grad_norm_{name}": value for name, value in gradients.norms().items()}
    similarity = gradients.cosine()
    return found if similarity is None else {**found, "grad_cosine": similarity}
