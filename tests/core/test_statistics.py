"""Statistics of an update, by hand: an absent one is not a 0."""

from __future__ import annotations

import pytest
import torch

from stereorl.core import entropy_estimate, masked_mean, spread

NAN = float("nan")


def test_statistics_by_hand():
    value = torch.tensor([[1.0, -3.0, NAN], [2.0, NAN, NAN]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    none = torch.zeros_like(mask)
    assert masked_mean(value, mask) == pytest.approx(0.0)
    assert masked_mean(value, none) is None
    logp = torch.tensor([[-1.0, -3.0, NAN], [-0.5, NAN, NAN]])
    assert entropy_estimate(logp, mask) == pytest.approx((1 + 3 + 0.5) / 3)
    assert entropy_estimate(logp, none) is None
    # sizes 1, 2, 3: the 95th percentile lies at index 1.9, between 2 and 3
    assert spread(value, mask) == pytest.approx({"mean": 0.0, "p95": 2.9, "max": 3.0})
    assert spread(value, none) == {}
    with pytest.raises(ValueError, match="boolean"):
        masked_mean(value, mask.float())
