"""One tree of settings: unknown keys are refused with advice, each value's source is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from stereorl.config import Config, load_config
from stereorl.errors import ConfigError


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[learn]\nlr = 1e-4\nbatch_size = 3\n")
    known = load_config(file, {"learn.lr": 2e-4, "learn.seed": None})
    assert (known.config.learn.lr, known.config.learn.batch_size) == (2e-4, 3)
    assert known.sources == {"learn.lr": "command line", "learn.batch_size": str(file)}


def test_an_unknown_key_names_its_neighbours() -> None:
    with pytest.raises(ConfigError, match=r"learn\.batchsize.*learn\.batch_size"):
        load_config(None, {"learn.batchsize": 3})


def test_the_word_none_switches_an_optional_setting_off_and_no_other() -> None:
    assert load_config(None, {"objective.gap_clip": "none"}).config.objective.gap_clip is None
    assert load_config(None, {"preset": "none"}).config.preset == "none"
    with pytest.raises(ConfigError, match=r"learn\.lr"):
        load_config(None, {"learn.lr": "none"})


def test_a_preset_sets_the_weights_unless_they_are_set() -> None:
    weights = load_config(None, {"preset": "code"}).config.weights
    assert (weights.w_eval, weights.w_dir) == (0.8, 1.5)
    assert load_config(None, {"preset": "code", "weights.w_dir": 2.0}).config.weights.w_dir == 2.0


@pytest.mark.parametrize(
    ("preset", "weights"),
    [
        ("none", (0.3, 1.0)),
        ("dialogue", (1.0, 0.8)),
        ("tool", (1.0, 1.2)),
        ("code", (0.8, 1.5)),
        ("gui", (1.0, 0.5)),
    ],
)
def test_each_preset(preset: str, weights: tuple[float, float]) -> None:
    effective = load_config(None, {"preset": preset})
    assert (effective.config.weights.w_eval, effective.config.weights.w_dir) == weights
    assert effective.sources.get("weights.w_dir") == (None if preset == "none" else f"preset {preset}")


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    with pytest.raises(ConfigError, match="No configuration file"):
        load_config(file)
    file.write_text("[learn\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(file)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_values_of_the_wrong_kind_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="preset"):
        load_config(None, {"preset": ["code"]})
    with pytest.raises(ConfigError, match="home"):
        load_config(None, {"home": "~nobody-of-this-name/x"}).config.home_path  # noqa: B018


def test_settings_cannot_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().learn.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    "key", ["learn.lr", "learn.poll_s", "objective.kl_coef", "weights.density_alpha", "learn.lora_alpha"]
)
def test_numbers_are_finite(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load_config(None, {key: value})


def test_decays_of_the_optimiser_lie_below_one() -> None:
    with pytest.raises(ConfigError, match=r"learn\.betas"):
        load_config(None, {"learn.betas": [0.9, 1.0]})


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://x:99999", "ftp://x/v1", "127.0.0.1:8000", "http:///v1", ""]
)
@pytest.mark.parametrize("section", ["judge_endpoint", "teacher_endpoint"])
def test_an_endpoint_has_a_whole_url(section: str, url: str) -> None:
    with pytest.raises(ConfigError, match=rf"signals\.{section}\.url.*give a whole URL"):
        load_config(None, {f"signals.{section}.url": url})
