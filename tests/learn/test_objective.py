"""Every fusion with every estimator in the trainer: on a tiny model, against dense arithmetic, and resumed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from stereorl.choices import COMBINERS, ESTIMATORS, FUSIONS, SCALES, SCHEDULES, find
from stereorl.config import ObjectiveConfig
from stereorl.core import DenseVocabulary, Full, Needs, TopKTail, make_streams
from stereorl.errors import ConfigError
from stereorl.learn.batch import collate
from stereorl.learn.distributions import Distributions
from stereorl.learn.objective import make_fusion, make_scale
from stereorl.policy.adapters import reference
from stereorl.policy.score import Positions
from tests.learn.tiny import make_sample, mixed, on_policy, same, tiny_trainer, weights

HINT_IDS = [7, 8, 9]


class PrefixTeacher:
    """The frozen base with three ids before the prompt, in the place of a hint."""

    name = "base"
    moves = False

    def __init__(self) -> None:
        self.model = None
        self.followed = 0

    def positions(self, items):
        turns = [turn for turn, _ in items]
        with torch.no_grad(), reference(self.model) if self.model is not None else nullcontext():
            return Positions.of(
                self.model,
                [[*HINT_IDS, *turn.prompt_ids] for turn in turns],
                [turn.response_ids for turn in turns],
                temperature=[turn.sampling.score_temperature for turn in turns],
            ).frozen()

    def score(self, items, *, top_k=0):
        return self.positions(items).scores(top_k)

    def follow(self):
        self.followed += 1

    def state_dict(self):
        return {"followed": self.followed}

    def load_state_dict(self, state):
        self.followed = state["followed"]


def taught_trainer(**settings):
    teacher = PrefixTeacher()
    trainer = tiny_trainer(teacher=teacher, **settings)
    teacher.model = trainer.model
    return trainer


def scored(trainer, samples=None, *, top_k=4):
    """The mixed samples with the prefix teacher's own scores, on policy."""
    out = []
    for sample in samples or mixed():
        sample = on_policy(trainer.model, sample)
        if sample.has_teacher:
            (score,) = trainer.teacher.score([(sample.turn, "h")], top_k=top_k)
            sample = replace(
                sample,
                teacher_log_probs=score.log_probs,
                teacher_top_ids=score.top_ids,
                teacher_top_log_probs=score.top_log_probs,
            )
        out.append(sample)
    return out


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_every_pair_trains_and_stays_finite(fusion, estimator, adapter):
    trainer = taught_trainer(
        fusion=fusion, estimator=estimator, top_k=4, kl_coef=0.02, adapter=adapter, lr=1e-3, epochs=2
    )
    before = weights(trainer)
    for _ in range(3):
        metrics = trainer.step(scored(trainer)).metrics
        numbers = [value for value in metrics.values() if isinstance(value, float)]
        assert np.isfinite(numbers).all(), metrics
    assert not same(before, weights(trainer))
    assert metrics["loss"] == pytest.approx(
        sum(v for k, v in metrics.items() if k.startswith("term_")), abs=1e-6
    )


@pytest.mark.parametrize("support", ["student", "teacher", "overlap"])
@pytest.mark.parametrize("estimator", ["topk_clip", "topk_tail"])
def test_each_support_trains(estimator, support):
    trainer = taught_trainer(estimator=estimator, support=support, top_k=4, lr=1e-3)
    metrics = trainer.step(scored(trainer)).metrics
    assert metrics["grad_norm_dir"] > 0


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_the_whole_vocabulary_in_the_trainer_equals_dense_arithmetic(adapter):
    """Value and gradient of the reverse KL: chunked, through the trainer's streams, against logits held whole."""
    trainer = taught_trainer(adapter=adapter, estimator="full")
    trainer.step(scored(trainer))  # leave the reference behind
    samples = [s for s in scored(trainer) if s.has_teacher]
    batch = collate(samples)
    rows = list(range(len(batch)))
    parts = Distributions(Needs(vocabulary=True), trainer.teacher, samples, batch)
    taught = parts.teach(rows)
    policy = trainer.positions(batch, rows)
    vocabulary = parts.vocabulary(rows, policy, taught)
    streams = make_streams(
        policy.log_probs(),
        batch.mask_BT,
        logp_teacher_BT=batch.logp_teacher_BT,
        vocabulary=vocabulary,
    )
    loss = Full()(streams).loss_BT.sum()
    ours = torch.autograd.grad(loss, trainer.parameters)

    def dense(prefix, model):
        total = torch.zeros(*batch.mask_BT.shape, 64)
        for row, (p, r) in enumerate(zip(batch.prompts, batch.responses, strict=True)):
            ids = torch.tensor([[*prefix, *p, *r]])
            logits = model(input_ids=ids, use_cache=False).logits[0] / batch.temperature_B[row]
            first = len(prefix) + len(p) - 1
            total[row, : len(r)] = logits[first : first + len(r)].log_softmax(-1)
        return total

    with reference(trainer.model), torch.no_grad():
        teacher_BTV = dense(HINT_IDS, trainer.model)
    new_BTV = dense([], trainer.model)
    expected = (
        DenseVocabulary(new_BTV, teacher_BTV, batch.mask_BT)
        .map(lambda p, q: (p.exp() * (p - q)).sum(1))
        .sum()
    )
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=5e-6)
    theirs = torch.autograd.grad(expected, trainer.parameters)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_all_entries_as_support_equal_the_whole_vocabulary():
    losses = []
    for settings in ({"estimator": "full"}, {"estimator": "topk_tail", "top_k": 64}):
        trainer = taught_trainer(lr=0.0, w_eval=0.0, **settings)
        metrics = trainer.step(scored(trainer)).metrics
        losses.append((metrics["loss"], metrics["grad_norm"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)


def test_the_entries_chosen_first_are_kept_in_later_passes():
    trainer = taught_trainer(estimator="topk_clip", top_k=3, epochs=4, lr=0.2, grad_clip=100)
    metrics = trainer.step(scored(trainer)).metrics
    assert metrics["support_clip_fraction"] > 0  # the third pass is far from the first


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_batch_of_one_kind_or_of_one_sample_still_trains(fusion):
    for samples in (
        [make_sample(1, reward=-1.0)],
        [make_sample(2, teacher=True)],
        [make_sample(3, reward=1.0, teacher=True)],
    ):
        trainer = taught_trainer(fusion=fusion, token_threshold=0.001)
        before = weights(trainer)
        metrics = trainer.step(scored(trainer, samples)).metrics
        assert not same(before, weights(trainer)), (fusion, samples)
        assert "grad_cosine" not in metrics or samples[0].has_reward


def test_term_gradients_add_up_to_the_plain_one():
    measured, plain = (taught_trainer(lr=1e-3, kl_coef=0.1, term_gradients=on) for on in (True, False))
    for trainer in (measured, plain):
        for _ in range(2):
            metrics = trainer.step(scored(trainer)).metrics
    for left, right in zip(weights(measured), weights(plain), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=2e-6)
    assert "grad_norm_eval" not in metrics


def test_norms_and_cosine_are_those_of_the_terms():
    """Each term alone, by its own weight, has the gradient that was reported for it beside the others."""
    both = taught_trainer(lr=0.0, w_eval=0.5, w_dir=2.0)
    metrics = both.step(scored(both)).metrics
    for name, settings in {
        "eval": {"w_eval": 0.5, "w_dir": 0.0},
        "dir": {"w_eval": 0.0, "w_dir": 2.0},
    }.items():
        alone = taught_trainer(lr=0.0, **settings)
        assert alone.step(scored(alone)).metrics["grad_norm"] == pytest.approx(
            metrics[f"grad_norm_{name}"], rel=1e-4
        )
    e, d, c = metrics["grad_norm_eval"], metrics["grad_norm_dir"], metrics["grad_cosine"]
    assert metrics["grad_norm"] ** 2 == pytest.approx(e * e + d * d + 2 * e * d * c, rel=1e-3)


@pytest.mark.parametrize("combine", COMBINERS)
def test_each_combiner_steps(combine):
    trainer = taught_trainer(combine=combine, kl_coef=0.1, lr=1e-3)
    for _ in range(2):
        metrics = trainer.step(scored(trainer)).metrics
    assert np.isfinite(metrics["grad_norm"])


def against(trainer):
    """A reply that pleased, of which the teacher likes no token, some less than others: the two signals conflict."""
    sample = on_policy(trainer.model, make_sample(1, reward=1.0, teacher=True, r=6))
    return [
        replace(sample, teacher_log_probs=sample.turn.log_probs - np.linspace(0.1, 1.9, 6, dtype=np.float32))
    ]


@pytest.mark.parametrize("combine", COMBINERS)
def test_the_combiner_makes_the_gradient_that_is_followed(combine):
    """With e, d the norms and c < 0 the cosine: the sum has the square e^2 + d^2 + 2 e d c. Projected, e loses its part
    along d and the other way round: both shrink by 1 - c^2 and their product is -e d c (1 - c^2), so the square is
    (1 - c^2) (e^2 + d^2 - 2 e d c).
    """
    trainer = taught_trainer(combine=combine, lr=0.0, baseline="none")
    metrics = trainer.step(against(trainer)).metrics
    e, d, c = metrics["grad_norm_eval"], metrics["grad_norm_dir"], metrics["grad_cosine"]
    assert -0.999 < c < -0.1
    plain = e * e + d * d + 2 * e * d * c
    projected = (1 - c * c) * (e * e + d * d - 2 * e * d * c)
    expected = plain if combine == "sum" else projected
    assert metrics["grad_norm"] ** 2 == pytest.approx(expected, rel=1e-3)
    assert abs(plain / projected - 1) > 0.1


def test_every_setting_of_a_fusion_or_an_estimator_is_one_of_the_configuration_and_arrives():
    odd = ObjectiveConfig(
        top_k=7, support="overlap", divergence_alpha=0.25, gap_clip=0.75, control_variate=True, token_threshold=0.4,
        entropy_beta=0.6, clip="mirrored", eps_low=0.11, eps_high=0.33, dual_clip=4.0, kl="k2", kl_coef=0.07,
        importance_cap=1.5, scale_window=5,
    )  # fmt: skip
    for fusion in FUSIONS:
        for estimator in ESTIMATORS:
            made = make_fusion(odd.model_copy(update={"fusion": fusion, "estimator": estimator}))
            assert (type(made), type(made.estimator)) == (find(FUSIONS, fusion), find(ESTIMATORS, estimator))
            for part in (made, made.estimator):
                for name in {field.name for field in fields(part)} - {"estimator"}:
                    assert getattr(part, name) == getattr(odd, name), (fusion, estimator, name)
    assert make_scale(odd.model_copy(update={"scale": "loss"})).scale_window == 5


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_resumed_run_equals_one_that_never_stopped(schedule, scale, tmp_path):
    settings = {"schedule": schedule, "scale": scale, "steps": 4, "window": 3, "threshold": -1.0, "lr": 1e-3}
    whole = taught_trainer(**settings)
    for _ in range(5):
        expected = whole.step(scored(whole)).metrics
    first = taught_trainer(**settings)
    for _ in range(3):
        first.step(scored(first))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = taught_trainer(**settings)
    with torch.no_grad():
        for mine, theirs in zip(second.parameters, first.parameters, strict=True):
            mine.copy_(theirs)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.teacher.followed == 3
    for _ in range(2):
        got = second.step(scored(second)).metrics
    assert same(weights(whole), weights(second))
    assert (got["w_eval"], got["w_dir"]) == (expected["w_eval"], expected["w_dir"])


def test_the_anchor_pulls_the_parameters_back():
    near, free = taught_trainer(anchor_coef=10.0, lr=5e-3), taught_trainer(lr=5e-3)
    start = weights(near)
    for trainer in (near, free):
        for _ in range(6):
            metrics = trainer.step(scored(trainer)).metrics

    def moved(trainer):
        return sum(float((a - b).square().sum()) for a, b in zip(weights(trainer), start, strict=True))

    assert moved(near) < moved(free) / 2
    assert "grad_norm_anchor" not in metrics


def test_a_distant_teacher_is_refused_by_estimators_that_read_its_distribution():
    class Distant:
        name, moves = "remote", False

    with pytest.raises(ConfigError, match="remote teacher"):
        tiny_trainer(estimator="full", teacher=Distant())
    with pytest.raises(ConfigError, match="no teacher cannot"):
        tiny_trainer(estimator="full")
    tiny_trainer(estimator="topk_tail", support="teacher", teacher=Distant())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_recomputed_activations_change_no_gradient(estimator, adapter):
    """Turns longer than a pass may be: each term's backward runs the layers' forward again, to the same gradient."""
    seen = []
    for micro_tokens in (4, 4096):
        settings = {"estimator": estimator, "adapter": adapter, "micro_tokens": micro_tokens}
        trainer = taught_trainer(top_k=4, lr=1e-3, kl_coef=0.1, **settings)
        for _ in range(2):
            metrics = trainer.step(scored(trainer)).metrics
        seen.append([metrics[key] for key in ("loss", "grad_norm", "grad_norm_eval", "grad_norm_dir")])
    assert seen[0] == pytest.approx(seen[1], abs=1e-5)


@pytest.mark.parametrize("temperature", [0.05, 2.0, 0.0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_odd_temperatures_and_single_tokens_stay_finite(estimator, temperature):
    trainer = taught_trainer(estimator=estimator, top_k=1000)  # more than the vocabulary has
    samples = [
        make_sample(1, reward=1.0, teacher=True, temperature=temperature),
        make_sample(2, teacher=True, p=1, r=1),
    ]
    metrics = trainer.step(scored(trainer, samples)).metrics
    assert np.isfinite([metrics["loss"], metrics["grad_norm"]]).all()


@pytest.mark.parametrize("estimator", ["topk_tail", "topk_clip"])
def test_recorded_entries_need_no_teacher_at_the_step(estimator):
    class Silent(PrefixTeacher):
        def positions(self, items):
            raise AssertionError("asked at the step")

    asked = taught_trainer(estimator=estimator, support="teacher", top_k=4, lr=0.0)
    samples = scored(asked)
    expected = asked.step(samples).metrics["loss"]
    trainer = tiny_trainer(estimator=estimator, support="teacher", top_k=4, lr=0.0, teacher=Silent())
    assert trainer.step(samples).metrics["loss"] == pytest.approx(expected, abs=1e-6)


def test_the_default_of_topk_is_its_own_estimator():
    trainer = tiny_trainer(fusion="topk", top_k=7, teacher=PrefixTeacher())
    assert type(trainer.fusion.estimator).__name__ == "TopKClip"
    assert trainer.fusion.needs == Needs(top_k=7, support="student")
    assert isinstance(
        tiny_trainer(fusion="topk", estimator="topk_tail", teacher=PrefixTeacher()).fusion.estimator, TopKTail
    )


@pytest.mark.parametrize("estimator", ["topk_clip", "topk_tail"])
def test_recorded_entries_wider_than_the_vocabulary_are_all_of_it(estimator):
    asked = taught_trainer(estimator=estimator, support="teacher", top_k=4, lr=0.0)
    samples = scored(asked, top_k=1000)
    trainer = taught_trainer(estimator=estimator, support="teacher", top_k=10**9)
    assert trainer.step([*samples, make_sample(9, reward=1.0)]).applied
    assert trainer.step([make_sample(9, reward=1.0)]).applied


@pytest.mark.parametrize(
    "settings",
    [
        {"fusion": "os:system"},
        {"fusion": "builtins:dict"},
        {"fusion": ".x:y"},
        {"fusion": "::"},
        {"schedule": "builtins:object"},
        {"combine": "builtins:sum"},
        {"scale": "stereorl.core:Weights"},  # its fields want values
    ],
)
def test_a_name_of_what_is_no_such_part_is_refused_as_a_setting(settings):
    with pytest.raises(ConfigError, match=r"Cannot use|cannot work so"):
        tiny_trainer(**settings)
