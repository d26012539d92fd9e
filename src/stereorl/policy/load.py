"""Find, identify and load a causal language model: the embedded one, a folder, or a Hugging Face hub name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stereorl.config import ModelConfig
from stereorl.errors import ModelError
from stereorl.policy import embedded
from stereorl.policy.quiet import quiet

_STRIPES, _STRIPE_BYTES = 16, 1 << 16
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.bin")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model for use. `folder` holds its files, `digest` identifies its weights, `model` can be None."""

    model: Any
    tokenizer: Any
    name: str
    digest: str
    context_length: int
    device: torch.device
    folder: Path
    eos_ids: frozenset[int]


def load(config: ModelConfig, *, with_model: bool = True) -> Loaded:
    """Load what `config.name` names. Raises ModelError with what to do."""
    name, folder = (
        (embedded.NAME, embedded.embedded_folder()) if config.name == "embedded" else _resolve(config.name)
    )
    digest = embedded.SHA256 if config.name == "embedded" else _digest(folder)
    settings, tokenizer, model = _read(folder, config, with_model)
    device = _device(config.device)
    if model is not None:
        model = model.to(device).eval().requires_grad_(False)
    own = int(getattr(settings.get_text_config(), "max_position_embeddings", None) or 1 << 20)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        name=name,
        digest=digest,
        context_length=min(own, config.context_length or own),
        device=device,
        folder=folder,
        eos_ids=_eos_ids(folder, settings, tokenizer),
    )


def _resolve(name: str) -> tuple[str, Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} holds no config.json: it is not a Hugging Face model folder.")
        return path.resolve().name, path.resolve()
    if path.is_absolute() or name.startswith((".", "~")):
        raise ModelError(f"There is no folder {path}.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        with quiet():
            return name, Path(snapshot_download(name, allow_patterns=list(_WANTED)))
    except HFValidationError as error:
        raise ModelError(f"'{name}' is neither 'embedded', nor a folder, nor a hub name: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"Cannot fetch '{name}' from the hub: {error}. Check the name and the network, or give a folder."
        ) from error


def _read(folder: Path, config: ModelConfig, with_model: bool) -> tuple[Any, Any, Any]:
    import transformers

    try:
        with quiet():
            settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            if not with_model:
                return settings, tokenizer, None
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, config.dtype),
                local_files_only=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"Cannot load a causal language model from {folder}: {error}") from error
    return settings, tokenizer, model


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"Device '{name}' cannot be used here: {error}") from error


def _digest(folder: Path) -> str:
    """sha256 of config.json and, per weight file, size and evenly spaced stripes: any retraining shows."""
    total = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = file.stat().st_size
        total.update(f"{file.name}:{size};".encode())
        with file.open("rb") as handle:
            for stripe in range(_STRIPES):
                handle.seek(max(0, size - _STRIPE_BYTES) * stripe // (_STRIPES - 1))
                total.update(handle.read(_STRIPE_BYTES))
    return total.hexdigest()


def _eos_ids(folder: Path, settings: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a reply: what the tokenizer, the model and its generation settings say."""
    ids: set[int] = set()
    file = folder / "generation_config.json"
    generation = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for value in (
        tokenizer.eos_token_id,
        getattr(settings, "eos_token_id", None),
        generation.get("eos_token_id"),
    ):
        if isinstance(value, Sequence):
            ids.update(int(v) for v in value)
        elif value is not None:
            ids.add(int(value))
    return frozenset(ids)
