"""Publishing is atomic and durable; what a crash leaves is swept; nothing broken serves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stereorl.errors import VersionError
from stereorl.store import Manifest, Versions


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "versions")


def manifest(version: int, **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "version": version,
        "parent": version - 1,
        "step_id": version * 10,
        "created_at": 1.5,
        "adapter": "lora",
        "base_model": "embedded",
        "base_digest": "abc",
        "metrics": {"loss": 0.25},
        "status": "published",
    }
    return Manifest(**{**fields, **changes})


def publish(versions: Versions, n: int, **changes: Any) -> int:
    stage = versions.stage()
    (stage / "adapter.safetensors").write_bytes(b"weights %d" % n)
    (stage / "trainer.pt").write_bytes(b"state")
    return versions.publish(stage, manifest(n, **changes))


def test_the_base_serves_until_something_else_does(versions: Versions) -> None:
    assert (versions.current(), versions.list(), versions.next_number()) == (0, [], 1)
    assert versions.path(0) is None
    versions.set_current(0)
    assert versions.current() == 0
    versions.sweep()
    versions.prune_optimizer(1)


def test_publish_then_serve_then_roll_back(versions: Versions) -> None:
    assert publish(versions, versions.next_number()) == 1
    assert versions.current() == 0  # publishing does not serve
    versions.set_current(1)
    publish(versions, 2)
    assert (versions.current(), versions.next_number()) == (1, 3)
    versions.set_current(2)
    versions.set_current(1)
    assert versions.current() == 1
    folder = versions.path(2)
    assert folder is not None
    assert sorted(f.name for f in folder.iterdir()) == ["adapter.safetensors", "manifest.json", "trainer.pt"]
    found = versions.manifest(2)
    assert set(found.files) == {"adapter.safetensors", "trainer.pt"}
    assert (found.parent, found.metrics) == (1, {"loss": 0.25})
    assert versions.find_step(20) == found
    assert versions.find_step(99) is None
    assert [m.version for m in versions.list()] == [1, 2]


def test_rejected_versions_are_kept_and_never_serve(versions: Versions) -> None:
    publish(versions, 1, status="rejected")
    assert versions.list()[0].status == "rejected"
    with pytest.raises(VersionError, match="rejected"):
        versions.set_current(1)
    versions.set_current(1, force=True)
    assert versions.current() == 1


def test_what_does_not_exist(versions: Versions) -> None:
    for call in (versions.set_current, versions.path, versions.manifest, versions.verify):
        with pytest.raises(VersionError, match="no version 7"):
            call(7)
    with pytest.raises(VersionError, match="base"):
        versions.manifest(0)


def test_numbers_are_taken_once_and_nothing_is_no_version(versions: Versions) -> None:
    publish(versions, 1)
    with pytest.raises(VersionError, match="taken"):
        publish(versions, 1)
    with pytest.raises(VersionError, match="empty"):
        versions.publish(versions.stage(), manifest(2))


def test_verify_names_what_changed(versions: Versions) -> None:
    publish(versions, 1)
    versions.verify(1)
    folder = versions.path(1)
    assert folder is not None
    (folder / "trainer.pt").unlink()
    versions.verify(1)  # the optimiser's state may go
    (folder / "adapter.safetensors").write_bytes(b"other")
    with pytest.raises(VersionError, match=r"adapter.safetensors has changed"):
        versions.verify(1)
    (folder / "adapter.safetensors").unlink()
    with pytest.raises(VersionError, match=r"adapter.safetensors is missing"):
        versions.verify(1)


@pytest.mark.parametrize("text", [b"", b"one", b"-1", b"9", b"1 2", b"9" * 5000, b"\xff\xfe\x00"])
def test_a_broken_current_raises(versions: Versions, text: bytes) -> None:
    publish(versions, 1)
    (versions.root / "CURRENT").write_bytes(text)
    with pytest.raises(VersionError):
        versions.current()
    versions.set_current(1)  # and can be set right
    assert versions.current() == 1


def test_a_current_that_cannot_be_written_leaves_nothing_behind(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(versions, 1)
    versions.set_current(1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VersionError, match="CURRENT cannot be written: No space left"):
        versions.set_current(0)
    assert versions.current() == 1
    assert [file.name for file in versions.root.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize("text", [None, "{", "[]", '{"version": 1}', json.dumps({"nonsense": 1})])
def test_a_broken_manifest_is_reported_and_does_not_hide_the_others(
    versions: Versions, text: str | None
) -> None:
    publish(versions, 1)
    publish(versions, 2)
    versions.set_current(1)
    file = versions.root / "v000001" / "manifest.json"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(VersionError):
        versions.current()
    assert [m.version for m in versions.list()] == [2]
    assert list(versions.broken()) == [1]
    assert versions.next_number() == 3


def test_renamed_folders_are_noticed(versions: Versions) -> None:
    publish(versions, 1)
    os.rename(versions.root / "v000001", versions.root / "v000005")
    with pytest.raises(VersionError, match="says it is version 1"):
        versions.path(5)


@pytest.mark.parametrize("when", ["stage", "manifest", "rename"])
def test_a_crash_while_publishing_leaves_all_or_nothing(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    publish(versions, 1)
    versions.set_current(1)
    crash = {
        "stage": "stereorl.store.versions._sync_file",
        "manifest": "os.rename",
        "rename": "stereorl.store.versions.log",
    }
    if when == "rename":  # after it, nothing is left to do: CURRENT is another step
        publish(versions, 2)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(crash[when], lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                publish(versions, 2)
    assert [m.version for m in versions.list()] == ([1, 2] if when == "rename" else [1])
    (versions.root / ".CURRENT-123").write_text("half")
    versions.sweep()
    assert [entry.name for entry in versions.root.iterdir() if entry.name.startswith(".")] == []
    assert versions.current() == 1


def test_everything_is_synced_before_the_rename(versions: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def spy_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    stage = versions.stage()
    (stage / "a").write_text("x")
    (stage / "sub").mkdir()
    (stage / "sub" / "b").write_text("y")
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    versions.publish(stage, manifest(1))
    cut = events.index("rename")
    assert {"a", "b", "manifest.json", "sub", stage.name} <= set(events[:cut])
    assert events.index("manifest.json") > max(events.index("a"), events.index("b"))
    assert events[cut + 1 :] == ["versions"]


def test_optimizer_states_of_old_versions_go(versions: Versions) -> None:
    for n in range(1, 6):
        publish(versions, n)
    versions.set_current(1)
    versions.prune_optimizer(keep=2)
    left = [n for n in range(1, 6) if (versions.root / f"v{n:06d}" / "trainer.pt").exists()]
    assert left == [1, 4, 5]
    assert len(versions.list()) == 5
