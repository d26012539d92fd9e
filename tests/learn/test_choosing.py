"""Which hint teaches: by source, by length, by agreement, and what can be scored at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stereorl.config import Config
from stereorl.data import Hint
from stereorl.errors import TeacherError
from stereorl.learn.choosing import Longest, Overlap, Policy, Shortest
from stereorl.learn.parts import assemble
from stereorl.policy.adapters import attach
from stereorl.policy.engine import Scores
from stereorl.store.store import Store
from stereorl.store.versions import Versions
from tests.learn.home import FlatTeacher
from tests.learn.tiny import make_turn, tiny_loaded

STUDENT = np.array([[1, 2, 3], [4, 5, 6]], np.int32)


def hint(text, source="model"):
    return Hint(text, source, True, "")


class Table(FlatTeacher):
    """Per hint its likeliest ids; a text instead is the reason why there are none."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.calls = rows, []

    def score(self, pairs, *, top_k=0):
        self.calls.append([text for _, text in pairs])
        found = [self.rows.get(text, "no_row") for _, text in pairs]
        return [
            row
            if isinstance(row, str)
            else Scores(np.zeros(2, np.float32), np.array(row, np.int32)[:, :top_k])
            for row in found
        ]


class Student:
    def likeliest(self, turn, k):
        return torch.from_numpy(STUDENT[:, :k])


def by_overlap(teacher, k=3):
    return Overlap(Student(), teacher, k)


def texts(order):
    return [item.text for item in order]


HINTS = (hint("a quote, long", "user"), hint("bbbb"), hint("cc"), hint("dd"), hint("tool", "tool"))
TURN = make_turn([1, 2], [3, 4])


def test_feedback_comes_first_as_it_came_then_models_then_the_rest():
    newest, older = hint("a long correction", "feedback"), hint("ok", "feedback")
    (order,) = Shortest().order([(TURN, (*HINTS[:3], newest, older))])
    assert texts(order) == ["a long correction", "ok", "cc", "bbbb", "a quote, long"]
    teacher = Table({})
    assert by_overlap(teacher).order([(TURN, (*HINTS, newest, older))])[0][:2] == [newest, older]
    assert teacher.calls == []  # nothing to decide


def test_by_length_and_of_equals_the_first():
    (short,), (long,) = (choice.order([(TURN, HINTS)]) for choice in (Shortest(), Longest()))
    assert texts(short) == ["cc", "dd", "bbbb", "tool", "a quote, long"]
    assert texts(long) == ["bbbb", "cc", "dd", "a quote, long", "tool"]


def test_by_agreement_and_of_equals_the_shorter():
    rows = {
        "bbbb": [[1, 2, 9], [4, 8, 9]],  # 3 shared
        "cc": [[7, 8, 9], [4, 8, 9]],  # 1
        "dd": [[3, 2, 9], [5, 8, 9]],  # 3
    }
    teacher = Table(rows)
    assert texts(by_overlap(teacher).order([(TURN, HINTS)])[0]) == [
        "dd",
        "bbbb",
        "cc",
        "tool",
        "a quote, long",
    ]
    assert teacher.calls == [["cc", "dd", "bbbb"]]
    (order,) = by_overlap(Table(rows), k=1).order([(TURN, HINTS)])  # only 1 and 4 are looked at
    assert order[0].text == "bbbb"


def test_one_that_cannot_be_compared_comes_last():
    rows = {"bbbb": [[1, 8, 9], [7, 8, 9]], "cc": "hint_over_context", "dd": [[7, 8, 9], [7, 8, 9]]}
    assert texts(by_overlap(Table(rows)).order([(TURN, HINTS[1:4])])[0]) == ["bbbb", "dd", "cc"]


def test_quotes_are_compared_where_no_model_wrote():
    quotes = (hint("aaa", "user"), hint("bb", "tool"))
    rows = {"aaa": STUDENT, "bb": STUDENT + 50}
    assert texts(by_overlap(Table(rows)).order([(TURN, quotes)])[0]) == ["aaa", "bb"]


def test_a_teacher_that_fails_is_no_choice():
    teacher = FlatTeacher()
    teacher.failure = TeacherError("away")
    with pytest.raises(TeacherError):
        by_overlap(teacher).order([(TURN, HINTS)])


def test_the_policy_is_read_as_it_is_and_left_as_it_was():
    model = attach(tiny_loaded(), kind="lora", r=4, seed=0)
    policy = Policy(model)
    before = policy.likeliest(TURN, 5)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_B" in name:
                param.normal_(std=0.5)
    model.train()
    after = policy.likeliest(TURN, 5)
    assert model.training
    assert before.shape == after.shape == (2, 5)
    assert not torch.equal(before, after)
    logits = model.eval()(torch.tensor([[1, 2, 3, 4]])).logits[0, 1:3]
    assert after.tolist() == logits.topk(5).indices.tolist()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, Overlap), ({"hint_choice": "longest"}, Longest), ({"hint_choice": "shortest"}, Shortest)],
)
def test_the_setting_names_the_rule(tmp_path, settings, kind):
    config = Config.model_validate({"home": tmp_path, "signals": settings, "objective": {"top_k": 50}})
    with Store.open(config.store_url) as store:
        parts = assemble(
            config,
            store=store,
            versions=Versions(config.versions_path),
            loaded=tiny_loaded(),
            teacher=FlatTeacher(),
        )
    choice = parts.scorer._choice
    assert isinstance(choice, kind)
    assert getattr(choice, "k", 20) == 20
