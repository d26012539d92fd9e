"""One typed tree of settings; no torch here. Class defaults are the vetted run.

Unknown keys are refused. `load_config` merges, in rising precedence: defaults, a TOML file, overrides
(dotted keys from the command line), and remembers where each value came from.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from stereorl.choices import COMBINERS, ESTIMATORS, FUSIONS, SCALES, SCHEDULES, Table, check_name
from stereorl.errors import ConfigError


def _names(text: str, table: Table) -> str:
    return f"{text}: {', '.join(table)}, or package.module:Class."


class Section(BaseModel):
    """A group of settings; refuses unknown keys and cannot change after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _none_is_a_word(cls, data: Any) -> Any:
        """TOML has no null: the word "none" switches an optional setting off."""
        if not isinstance(data, dict):
            return data
        optional = {name for name, f in cls.model_fields.items() if type(None) in get_args(f.annotation)}
        return {key: None if value == "none" and key in optional else value for key, value in data.items()}


class ModelConfig(Section):
    name: str = Field("embedded", description="'embedded', a folder, or a Hugging Face hub name.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Weights' type, for serving and learning."
    )
    device: str = Field("cpu", description="Torch device that holds the model.")
    context_length: int | None = Field(
        None, gt=0, description="Upper bound on prompt + reply; None: the model's own."
    )


class EngineConfig(Section):
    threads: int | None = Field(None, gt=0, description="Torch threads for serving; None: all cores.")
    max_concurrent: int = Field(16, gt=0, description="Requests decoded in one batch.")
    cache_tokens: int = Field(16384, ge=1024, description="Tokens held in the paged KV cache.")
    prefill_tokens: int = Field(
        512, ge=64, description="Most tokens in one forward pass (prefill is cut into pieces)."
    )
    prefix_cache: bool = Field(True, description="Share the KV cache of equal prefixes (salted by version).")
    max_queue: int = Field(256, gt=0, description="Requests that may wait; more get HTTP 429.")
    timeout_s: float = Field(600, gt=0, description="Longest wait for one reply.")


class ServeConfig(Section):
    host: str = Field("127.0.0.1", description="Bind address; any but loopback needs an API key.")
    port: int = Field(8018, ge=0, le=65535, description="Port; 0 picks a free one.")
    api_key_env: str = Field(
        "STEREORL_API_KEY", description="Environment variable that holds the API key, if any."
    )
    max_body_mb: float = Field(8.0, gt=0, description="Largest request body.")
    default_max_tokens: int = Field(256, gt=0, description="Reply length when the client names none.")
    default_temperature: float = Field(0.6, ge=0, le=2, description="Temperature when the client names none.")
    regenerate: Literal["ignore", "negative"] = Field(
        "ignore",
        description="What the same prompt sent again means: nothing, or dissatisfaction with the first reply.",
    )
    idle_timeout_s: float = Field(
        1800, gt=0, description="A session without a request for so long is closed."
    )
    poll_s: float = Field(0.2, gt=0, description="How often a new version is looked for.")


def _web_address(url: str | None) -> str | None:
    """Refuses what no request can be sent to."""
    try:
        parts = None if url is None else urlsplit(url)
        if parts is None or (parts.scheme in ("http", "https") and parts.hostname and parts.port != 0):
            return url
    except ValueError:
        pass
    raise ValueError("give a whole URL, such as http://127.0.0.1:8000/v1")


WebAddress = Annotated[str | None, AfterValidator(_web_address)]


class StoreConfig(Section):
    url: str | None = Field(None, description="SQLAlchemy URL; None: SQLite in the home folder.")
    batch_ms: float = Field(2.0, ge=0, description="How long the writer gathers records into one commit.")


class JudgeEndpointConfig(Section):
    """An OpenAI-compatible chat endpoint that judges, writes hints, or both."""

    url: WebAddress = Field(None, description="Base URL, such as http://127.0.0.1:8000/v1.")
    model: str = Field("default", description="Model name sent with each request.")
    api_key_env: str = Field("STEREORL_JUDGE_API_KEY", description="Environment variable that holds its key.")
    timeout_s: float = Field(60, gt=0, description="Longest wait for one answer.")
    temperature: float = Field(0.6, ge=0, le=2, description="Temperature of its votes.")
    max_tokens: int = Field(512, gt=0, description="Longest answer.")


class TeacherEndpointConfig(Section):
    """An endpoint that returns the log-probs of given ids; its tokenizer must be the policy's."""

    url: WebAddress = Field(None, description="Base URL, such as http://127.0.0.1:8000/v1.")
    api: Literal["stereorl", "vllm"] = Field(
        "stereorl",
        description="What it speaks: /v1/score of another StereoRL server, or vLLM's prompt_logprobs "
        "(at temperature 1 only: other turns get no teacher).",
    )
    model: str = Field("default", description="Model name sent with each request.")
    api_key_env: str = Field(
        "STEREORL_TEACHER_API_KEY", description="Environment variable that holds its key."
    )
    timeout_s: float = Field(60, gt=0, description="Longest wait for one score.")


JudgeName = Literal["rules", "base", "endpoint"]


class SignalsConfig(Section):
    judge: list[JudgeName] = Field(
        ["rules"],
        min_length=1,
        description="Who votes, in order: each is asked where all before it abstained. 'rules' needs no model; "
        "'base' is the policy's frozen base; 'endpoint' is signals.judge_endpoint.",
    )
    judge_votes: int = Field(
        1, gt=0, le=15, description="Independent votes m of a model; the majority decides."
    )
    judge_margin: float = Field(
        0.3, ge=0, description="The base judge abstains below so many nats between its two best verdicts."
    )
    judge_retries: int = Field(
        4, ge=0, description="How often a judge that failed or abstained altogether is asked again."
    )
    judge_backoff_s: float = Field(
        5.0, gt=0, description="Pause before it is asked again; doubles each time."
    )
    hinter: Literal["quote", "base", "endpoint"] = Field(
        "quote",
        description="Who words the hint: the user's own sentence, or a model (the quote is its fallback).",
    )
    hint_candidates: int = Field(
        3, gt=0, le=8, description="Candidates kept at most when a model writes hints."
    )
    hint_choice: Literal["overlap", "shortest", "longest"] = Field(
        "overlap",
        description="Which candidate teaches: the one whose teacher agrees most with the policy's likeliest tokens, "
        "or by length.",
    )
    hint_trust: list[Literal["user", "tool"]] = Field(
        ["user"],
        description="Roles whose words may become a hint (a tool's error line only in a fixed form).",
    )
    hint_max_chars: int = Field(400, gt=0, description="Longest hint; longer text is cut at a sentence.")
    hint_label: str = Field(
        "[user's hint / instruction]", description="Label put before the hint in the user message."
    )
    teacher: Literal["base", "live", "ema", "remote"] = Field(
        "base", description="Whose log-probs, under the hint, teach. A live teacher degenerates in long runs."
    )
    ema_rate: float = Field(
        0.05, gt=0, le=1, description="How far the ema teacher moves towards the policy with each update."
    )
    judge_endpoint: JudgeEndpointConfig = JudgeEndpointConfig()
    teacher_endpoint: TeacherEndpointConfig = TeacherEndpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _one_judge_is_a_list(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("judge"), str):
            return {**data, "judge": [part.strip() for part in data["judge"].split(",")]}
        return data

    @model_validator(mode="after")
    def _endpoints_are_given(self) -> SignalsConfig:
        if ("endpoint" in self.judge or self.hinter == "endpoint") and not self.judge_endpoint.url:
            raise ValueError("set signals.judge_endpoint.url to the endpoint that judges or writes hints")
        if self.teacher == "remote" and not self.teacher_endpoint.url:
            raise ValueError("set signals.teacher_endpoint.url to the endpoint that teaches")
        return self


class WeightsConfig(Section):
    """The weights of the two signals over time."""

    w_eval: float = Field(
        0.3, ge=0, description="Weight of the evaluative signal (where the schedule starts)."
    )
    w_dir: float = Field(1.0, ge=0, description="Weight of the directive signal (where the schedule starts).")
    schedule: str = Field("constant", description=_names("How they move", SCHEDULES))
    w_eval_end: float | None = Field(
        None, ge=0, description="linear, cosine: w_eval at the end; none: as it starts."
    )
    w_dir_end: float = Field(0.05, ge=0, description="linear, cosine, complementary: w_dir at the end.")
    steps: int = Field(40, gt=0, description="linear, cosine, complementary: updates from start to end.")
    threshold: float = Field(
        0.5,
        ge=-1,
        le=1,
        description="performance: mean reward from which w_dir decays (below it, it recovers).",
    )
    decay: float = Field(0.9, gt=0, lt=1, description="performance: factor on w_dir per update.")
    floor: float = Field(0.05, ge=0, description="performance: w_dir falls no lower.")
    density_alpha: float = Field(
        0.5, description="density: w_dir = start * (1 + alpha * mean share of hints)."
    )
    window: int = Field(10, gt=0, description="density, performance, balance: updates looked back on.")
    balance_bound: float = Field(10.0, ge=1, description="balance: the weights' ratio moves at most so far.")

    @field_validator("schedule")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_name(SCHEDULES, name)


class ObjectiveConfig(Section):
    """What is minimised (DESIGN section 5, docs/equations.md)."""

    fusion: str = Field("advantage_sum", description=_names("How the signals become one objective", FUSIONS))
    estimator: str = Field(
        "auto", description=_names("How the directive signal is read; auto: the fusion's own", ESTIMATORS)
    )
    top_k: int = Field(20, gt=0, description="topk_clip, topk_tail: vocabulary entries per token.")
    support: Literal["student", "teacher", "overlap"] = Field(
        "student", description="topk_clip, topk_tail: whose likeliest entries."
    )
    divergence_alpha: float = Field(
        1.0,
        ge=0,
        le=1,
        description="topk_tail, full: 1 reverse KL, 0 forward KL, between them generalised JSD.",
    )
    gap_clip: float | None = Field(
        2.0, gt=0, description="Bound C on |teacher - student| per token, in nats; 'none': no bound."
    )
    control_variate: bool = Field(
        False,
        description="sampled: subtract the gap's mean over the vocabulary (needs a teacher in process).",
    )
    token_threshold: float = Field(
        0.1, ge=0, description="loss_sum: directive tokens with a smaller |gap| are left out."
    )
    entropy_beta: float = Field(
        0.0,
        ge=0,
        description="route: weight exp(-beta * entropy of the teacher) on distilled tokens; 0: equal.",
    )
    clip: Literal["paper", "mirrored"] = Field(
        "paper",
        description="The same interval for both signs of the advantage, or mirrored for negative ones.",
    )
    eps_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below 1 - eps_low.")
    eps_high: float = Field(0.28, gt=0, description="The ratio is clipped above 1 + eps_high.")
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="Bound c on the ratio where the advantage is negative (usual: 3); 'none': off.",
    )
    baseline: Literal["running", "batch", "none"] = Field(
        "running", description="What is subtracted from the reward."
    )
    baseline_decay: float = Field(0.9, ge=0, lt=1, description="Decay of the running mean, per update.")
    kl: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of the KL to the reference.")
    kl_coef: float = Field(0.1, ge=0, description="Weight of the KL to the reference.")
    anchor_coef: float = Field(
        0.0,
        ge=0,
        description="Weight of the squared distance of the trained parameters from where they began.",
    )
    aggregation: Literal["seq_mean_token_mean", "token_mean"] = Field(
        "seq_mean_token_mean", description="Each reply counts the same, or each token."
    )
    importance_cap: float = Field(2.0, gt=0, description="Cap on pi_old / pi_behaviour.")
    scale: str = Field("none", description=_names("What each signal is divided by before its weight", SCALES))
    scale_window: int = Field(20, gt=1, description="scale 'loss': updates looked back on.")
    term_gradients: bool = Field(
        True,
        description="Measure each term's gradient norm and the signals' cosine at every update (a backward "
        "pass more per term).",
    )
    combine: str = Field("sum", description=_names("How the two signals' gradients become one", COMBINERS))

    @field_validator("fusion", "estimator", "scale", "combine")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        tables = {
            "fusion": FUSIONS,
            "estimator": {"auto": "", **ESTIMATORS},
            "scale": SCALES,
            "combine": COMBINERS,
        }
        return check_name(tables[str(info.field_name)], name)

    @model_validator(mode="after")
    def _terms_are_at_hand(self) -> ObjectiveConfig:
        if self.combine != "sum" and not self.term_gradients:
            raise ValueError(f"combine = {self.combine} needs term_gradients = true")
        return self


class LearnConfig(Section):
    batch_size: int = Field(8, gt=0, description="Samples per update.")
    max_wait_s: float = Field(
        60, gt=0, description="Train on fewer once the oldest sample has waited so long."
    )
    poll_s: float = Field(
        0.25, gt=0, description="Pause between looks into the store when there is nothing to do."
    )
    threads: int | None = Field(None, gt=0, description="Torch threads for learning; None: half the cores.")
    idle_only_s: float | None = Field(
        None, gt=0, description="Train only when no request came for so long (laptops)."
    )
    buffer_size: int = Field(
        4096, gt=0, description="Samples that may wait; beyond, the oldest are dropped by name (buffer_full)."
    )
    replay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of each batch drawn again from trained turns, importance-corrected.",
    )
    max_staleness: int = Field(
        16, ge=0, description="Samples older than so many versions are dropped, by name."
    )
    tensorboard: bool = Field(False, description="Write the step statistics to home/tensorboard too.")
    seed: int = Field(0, description="Seeds the fresh adapter.")
    adapter: Literal["lora", "full"] = Field("lora", description="LoRA by PEFT, or all weights.")
    lora_r: int = Field(16, gt=0, description="Rank of the LoRA adapter.")
    lora_alpha: float = Field(32, gt=0, description="The adapter's output is scaled by lora_alpha / lora_r.")
    lr: float = Field(5e-4, ge=0, description="Learning rate of AdamW.")
    betas: tuple[float, float] = Field((0.9, 0.98), description="Decay of AdamW's two moments.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of AdamW.")
    grad_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    epochs: int = Field(1, gt=0, description="Optimiser steps per batch.")
    micro_tokens: int = Field(1024, gt=0, description="Most tokens in one forward pass of the learner.")

    @field_validator("betas")
    @classmethod
    def _decays(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both lie in [0, 1)")
        return betas


class GateConfig(Section):
    kl_cap: float = Field(
        2.0, gt=0, description="Largest mean k3 to the reference, nats per token, on the batch."
    )
    retention_prompts: int = Field(
        6, ge=0, description="Unrelated prompts whose base replies must stay likely."
    )
    retention_drop: float = Field(
        0.5, gt=0, description="Largest drop of their mean log-prob per token, in nats."
    )
    keep_versions: int = Field(
        20, gt=1, description="Optimiser states kept; older versions keep their adapter only."
    )


class Config(Section):
    """Every setting of StereoRL."""

    home: Path = Field(Path("~/.stereorl"), description="Where the store, the versions and the logs live.")
    preset: Literal["none", "dialogue", "tool", "code", "gui"] = Field(
        "none", description="Named weights from the first article; set weights win over it."
    )
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    serve: ServeConfig = ServeConfig()
    store: StoreConfig = StoreConfig()
    signals: SignalsConfig = SignalsConfig()
    weights: WeightsConfig = WeightsConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    learn: LearnConfig = LearnConfig()
    gate: GateConfig = GateConfig()

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        if isinstance(data, dict) and str(data.get("preset")) in PRESETS:
            w_eval, w_dir = PRESETS[data["preset"]]
            weights = data.get("weights", {})
            if isinstance(weights, dict):
                data = {**data, "weights": {"w_eval": w_eval, "w_dir": w_dir, **weights}}
        return data

    @property
    def home_path(self) -> Path:
        try:
            return self.home.expanduser().absolute()
        except RuntimeError as error:
            raise ConfigError(
                f"Setting 'home': '{self.home}' is in nobody's home folder; give a whole path."
            ) from error

    @property
    def store_url(self) -> str:
        return self.store.url or f"sqlite:///{self.home_path / 'stereorl.db'}"

    @property
    def versions_path(self) -> Path:
        return self.home_path / "versions"


PRESETS: dict[str, tuple[float, float]] = {
    "dialogue": (1.0, 0.8),
    "tool": (1.0, 1.2),
    "code": (0.8, 1.5),
    "gui": (1.0, 0.5),
}


class Effective(BaseModel):
    """A configuration together with the source of each value that is not a default."""

    model_config = ConfigDict(frozen=True)
    config: Config
    sources: dict[str, str]


def load_config(file: Path | None = None, overrides: dict[str, Any] | None = None) -> Effective:
    """Merge defaults, `file` (or `$STEREORL_CONFIG`) and dotted `overrides` such as `{"learn.lr": 1e-4}`.

    Overrides whose value is None are ignored, so that absent command-line flags may be passed on as they are.
    Raises ConfigError with the key, the reason and, for an unknown key, the nearest known ones.
    """
    path = file or (Path(os.environ["STEREORL_CONFIG"]) if os.environ.get("STEREORL_CONFIG") else None)
    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if path is not None:
        try:
            tree = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(f"No configuration file at {path}.") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        sources.update(dict.fromkeys(flatten(tree), str(path)))
    if os.environ.get("STEREORL_HOME") and "home" not in tree:
        tree["home"] = os.environ["STEREORL_HOME"]
        sources["home"] = "$STEREORL_HOME"
    for key, value in (overrides or {}).items():
        if value is not None:
            _set(tree, key, value)
            sources[key] = "command line"
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(item["loc"], item["msg"], item["type"]) for item in error.errors())
        ) from None
    if config.preset in PRESETS:
        for key in ("weights.w_eval", "weights.w_dir"):
            sources.setdefault(key, f"preset {config.preset}")
    return Effective(config=config, sources=sources)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return flat


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for name in parents:
        child = tree.setdefault(name, {})
        if not isinstance(child, dict):
            raise ConfigError(f"'{dotted}': '{name}' is a value, not a section.")
        tree = child
    tree[leaf] = value


def _explain(loc: tuple[int | str, ...], message: str, kind: str) -> str:
    name = ".".join(str(part) for part in loc)
    if kind == "extra_forbidden":
        known = list(flatten(Config().model_dump()))
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        return f"Unknown setting '{name}'." + (f" Did you mean {' or '.join(near)}?" if near else "")
    return f"Setting '{name}': {message}."
