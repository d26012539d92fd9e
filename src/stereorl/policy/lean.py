"""A short forward pass for the commonest architecture: Llama and what is built like it.

At one token per step, a third of the time of the library's forward goes into Python: module calls, six-step norms, one
matrix product for each of q, k and v. This is the same arithmetic in about fifteen calls per layer. It is used only for
models of the named kinds and only after it has given the library's logits on a probe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stereorl.policy.linear import ServedLinear

KINDS = frozenset({"llama", "mistral", "qwen2"})
_PROBE = 7
# (layer, queries [N, H, D], new keys [N, KV heads, D], new values) -> [N, H, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
MakeLinear = Callable[..., ServedLinear]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    norm_1: nn.Parameter
    qkv: ServedLinear
    out: ServedLinear
    norm_2: nn.Parameter
    gate_up: ServedLinear
    down: ServedLinear


class Lean:
    """`linear(*names)` makes one layer out of the named ones, side by side. Parameters are the model's own objects."""

    def __init__(self, model: Any, linear: MakeLinear):
        config, body = model.config, model.model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self._eps: float = config.rms_norm_eps
        self._shape = [config.hidden_size]
        self._embedding, self._norm, self._rotary = body.embed_tokens, body.norm.weight, body.rotary_emb
        self._layers = [
            self._layer(layer, f"model.layers.{i}", linear) for i, layer in enumerate(body.layers)
        ]
        self.head = linear("lm_head")

    @staticmethod
    def _layer(layer: Any, name: str, linear: MakeLinear) -> _Layer:
        return _Layer(
            layer.input_layernorm.weight,
            linear(*(f"{name}.self_attn.{part}_proj" for part in "qkv")),
            linear(f"{name}.self_attn.o_proj"),
            layer.post_attention_layernorm.weight,
            linear(f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"),
            linear(f"{name}.mlp.down_proj"),
        )

    def hidden(self, ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """Hidden states [N, hidden size] of tokens at their positions; `attend` knows which sees which."""
        x = functional.embedding(ids_N, self._embedding.weight)
        cos, sin = (part[0][:, None] for part in self._rotary(x[None], position_ids=positions_N[None]))
        half = self.width // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        rotated = self.heads + self.kv_heads
        for index, layer in enumerate(self._layers):
            h = torch.rms_norm(x, self._shape, layer.norm_1, self._eps)
            qkv = layer.qkv(h).view(len(x), rotated + self.kv_heads, self.width)
            qk = qkv[:, :rotated]
            swapped = torch.cat([qk[..., half:], qk[..., :half]], dim=-1)
            qk = torch.addcmul(qk * cos, swapped, signed)
            seen = attend(index, qk[:, : self.heads], qk[:, self.heads :], qkv[:, rotated:])
            x = layer.out(seen.reshape(len(x), -1)).add_(x)
            h = torch.rms_norm(x, self._shape, layer.norm_2, self._eps)
            gate, up = layer.gate_up(h).chunk(2, dim=1)
            x = layer.down(functional.silu(gate).mul_(up)).add_(x)
        return torch.rms_norm(x, self._shape, self._norm, self._eps)

    def body(self, input_ids: Tensor, **ignored: Any) -> Any:
        """One sequence [1, N] through the model, as a transformers body returns it."""
        ids = input_ids[0]
        hidden = self.hidden(ids, torch.arange(len(ids), device=ids.device), _causal)
        return SimpleNamespace(last_hidden_state=hidden[None])

    def agrees(self, model: Any) -> bool:
        """Whether a probe gives the logits that `model` itself gives."""
        vocabulary = model.config.vocab_size
        ids = torch.arange(_PROBE, device=model.device)[None] * 7919 % vocabulary
        with torch.inference_mode():
            ours = self.head(self.body(ids).last_hidden_state[0])
            theirs = model(input_ids=ids, use_cache=False).logits[0]
        return torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def fits(model: Any) -> bool:
    """Whether `Lean` may be tried on this model."""
    config = model.config
    return config.model_type in KINDS and config.hidden_act == "silu" and model.dtype == torch.float32


def _causal(layer: int, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_NHD, k_NHD, v_NHD))
    grouped = q_NHD.shape[1] != k_NHD.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)[0].transpose(
        0, 1
    )
