"""Model objects that share parameters: the same weights under several kinds of attention, without a copy."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from stereorl.errors import EngineError


def shell(model: Any, attention: str) -> Any:
    """Another object of the model's class over the same parameters and buffers, using `attention`."""
    config = copy.deepcopy(model.config)
    with torch.device("meta"):
        made = type(model)(config)
    own = dict(model.named_modules(remove_duplicate=False))
    for name, module in made.named_modules(remove_duplicate=False):
        module._parameters.update(own[name]._parameters)
        module._buffers.update(own[name]._buffers)
    for part in (config, *(getattr(config, sub) for sub in config.sub_configs)):
        part._attn_implementation_internal = attention
    if any(tensor.is_meta for tensor in (*made.parameters(), *made.buffers())):
        raise EngineError(
            f"{type(model).__name__} keeps weights outside its parameters; it cannot be served here."
        )
    return made.eval()


def own_parameters(model: Any) -> None:
    """Give a shell Parameters of its own over the same memory, so that a swap leaves the caller's model alone."""
    own: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                own.setdefault(id(param), nn.Parameter(param.detach(), requires_grad=False))
                module._parameters[name] = own[id(param)]
