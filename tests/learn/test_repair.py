"""A learner dies at each of its named points; the next one ends where an undisturbed one would (invariants 4, 5)."""

from __future__ import annotations

import pytest

from stereorl import faults
from stereorl.learn.repair import repair
from tests.learn.home import equal, make_home, tensors

POINTS = [
    "learn.judged.before",
    "learn.judged.after",
    "learn.scored.before",
    "learn.scored.after",
    "learn.claimed",
    "learn.stepped",
    "learn.staged",
    "learn.published",
    "learn.current",
    "learn.marked",
]
FOUR = ("good", "bad", "bad please answer in one short sentence", "good")


class Killed(BaseException):
    """Not an Exception, so that no handler in between survives it."""


def die_at(monkeypatch, name):
    def point(here):
        if here == name:
            raise Killed(name)

    monkeypatch.setattr(faults, "point", point)


def talk(home, seed, version=0):
    return [t for k, text in enumerate(FOUR) for t in home.talk(text, seed=10 * seed + k, version=version)]


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_every_point_is_repaired(tmp_path, monkeypatch, point):
    calm, home = make_home(tmp_path / "calm"), make_home(tmp_path / "home")
    learner = calm.learner()
    for seed, version in ((0, 0), (1, 1)):
        talk(calm, seed, version)
        calm.drain(learner)

    first = home.learner()
    talk(home, 0)
    home.drain(first)
    turn_ids = talk(home, 1, version=1)
    die_at(monkeypatch, point)
    with pytest.raises(Killed):
        home.drain(first)
    monkeypatch.undo()
    second = home.learner()
    home.drain(second)

    assert home.versions.current() == 2
    funnel = home.store.funnel()
    assert (funnel.captured, funnel.trained, funnel.waiting) == (8, 8, 0)
    assert {home.store.detail(turn_id).version for turn_id in turn_ids} == {2}
    published = [step for step in home.store.steps() if step.outcome == "published"]
    assert [step.version for step in published] == [1, 2]  # each turn in exactly one published step
    assert home.store.open_steps() == []
    assert not list(home.versions.root.glob(".stage-*"))
    assert equal(tensors(second), tensors(learner))


def test_a_rollback_between_death_and_restart_stands(tmp_path, monkeypatch):
    """Dead after CURRENT moved, then rolled back by hand to the parent: the repair must not promote it again."""
    home = make_home(tmp_path / "home")
    talk(home, 0)
    die_at(monkeypatch, "learn.current")
    with pytest.raises(Killed):
        home.drain(home.learner())
    monkeypatch.undo()
    assert home.versions.current() == 1
    home.versions.set_current(0)
    assert repair(home.store, home.versions) == 1
    assert home.versions.current() == 0
    assert home.store.steps()[0].outcome == "published"


def test_a_rejected_version_is_marked_and_does_not_serve(tmp_path, monkeypatch):
    home = make_home(tmp_path / "home")
    talk(home, 0)
    die_at(monkeypatch, "learn.published")
    with pytest.raises(Killed):
        home.drain(home.learner(kl_cap=1e-12))
    monkeypatch.undo()
    repair(home.store, home.versions)
    assert home.versions.current() == 0
    assert home.store.steps()[0].outcome == "rejected"


def test_repairing_twice_changes_nothing(tmp_path, monkeypatch):
    home = make_home(tmp_path / "home")
    talk(home, 0)
    die_at(monkeypatch, "learn.published")
    with pytest.raises(Killed):
        home.drain(home.learner())
    monkeypatch.undo()
    assert repair(home.store, home.versions) == 1
    assert repair(home.store, home.versions) == 0
    assert home.versions.current() == 1
