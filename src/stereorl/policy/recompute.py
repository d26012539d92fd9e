"""Long rows without their activations: each layer's forward is run again in backward instead of being kept.

A row of 4,096 tokens would hold some ten gigabytes of a 135 M model's activations; recomputed it holds its layers'
inputs, for about a third more time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputing(model: Any, *, on: bool) -> Iterator[None]:
    """Within it a forward of a transformers model keeps layer inputs only. Values and gradients stay the same.

    The layers alone are told that they train; what is inside them (dropout) is not. `on` False: nothing changes.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)] if on else []
    before = [layer.training for layer in layers]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(
            checkpoint, use_reentrant=False, preserve_rng_state=False
        )
        layer.gradient_checkpointing = layer.training = True
    try:
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.gradient_checkpointing, layer.training = False, training
