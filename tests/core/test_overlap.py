"""The agreement of two models, by hand and against plain sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stereorl.core.overlap import overlap


def test_golden() -> None:
    student = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    teacher = torch.tensor([[3, 2, 1], [6, 0, 1], [1, 2, 3]])  # all, one, none
    assert overlap(student, teacher) == 3 + 1 + 0
    assert overlap(teacher, student) == 4


def test_reduces_to_all_ids_with_itself_and_to_none_with_others() -> None:
    ids = torch.arange(40).reshape(10, 4)
    assert overlap(ids, ids) == 40
    assert overlap(ids, ids + 100) == 0
    assert overlap(ids[:0], ids[:0]) == 0


def test_equals_plain_sets_whatever_the_order_and_the_widths() -> None:
    rng = np.random.default_rng(0)
    student = np.stack([rng.permutation(30)[:7] for _ in range(50)]).astype(np.int32)
    teacher = np.stack([rng.permutation(30)[:5] for _ in range(50)])
    by_hand = sum(len(set(s) & set(t)) for s, t in zip(student.tolist(), teacher.tolist(), strict=True))
    assert overlap(student, teacher) == by_hand  # type: ignore[arg-type]
    assert overlap(torch.from_numpy(student), torch.from_numpy(teacher[:, ::-1].copy())) == by_hand


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (torch.zeros(3), torch.zeros(3), r"student_TK must hold ids \[T, K\]"),
        (torch.tensor([[1, 2]]), torch.tensor([[1.0, 2.0]]), "teacher_TK must hold ids"),
        (torch.tensor([[1, 2]]), torch.tensor([[1, 2], [3, 4]]), "1 positions, but teacher_TK has 2"),
        (torch.tensor([[1, 2]]), torch.tensor([[3, 3]]), "teacher_TK repeats an id"),
    ],
)
def test_senseless_input_is_refused(student: torch.Tensor, teacher: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlap(student, teacher)
