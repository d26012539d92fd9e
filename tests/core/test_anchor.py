"""The parameter anchor: by hand, its gradient, and what is refused."""

from __future__ import annotations

import pytest
import torch

from stereorl.core import parameter_anchor


def test_the_anchor_by_hand():
    """(1 - 0)^2 + (2 - 4)^2 + (3 - 3)^2 = 5; gradient 2 (theta - theta_0)."""
    theta = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]
    start = [torch.tensor([0.0, 4.0]), torch.tensor([[3.0]])]
    value = parameter_anchor(theta, start)
    assert float(value.detach()) == 5.0
    first, second = torch.autograd.grad(value, theta)
    assert first.tolist() == [2.0, -4.0]
    assert second.tolist() == [[0.0]]
    start[0].requires_grad_()
    (none,) = torch.autograd.grad(parameter_anchor(theta, start) + 0 * start[0].sum(), start[0])
    assert none.tolist() == [0.0, 0.0]  # no gradient reaches an anchor
    with pytest.raises(ValueError, match="one of each"):
        parameter_anchor([], [])
    with pytest.raises(ValueError, match="one of each"):
        parameter_anchor(theta, start[:1])
    with pytest.raises(ValueError, match="different shapes"):
        parameter_anchor(theta, start[::-1])
    double = [t.detach().double().requires_grad_() for t in theta]
    assert torch.autograd.gradcheck(lambda *p: parameter_anchor(p, [s.double() for s in start]), double)
