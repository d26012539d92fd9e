"""How much two models agree about what comes next; chooses between hints."""

from __future__ import annotations

import torch
from torch import Tensor


def overlap(student_TK: Tensor, teacher_TK: Tensor) -> int:
    """Likeliest ids that student and teacher share, over all positions of a reply.

        overlap = sum_t |S_student,t ∩ S_teacher,t|,  S_t the K likeliest ids at position t

    Source: the choice between hints in arXiv 2603.10165 v2: of several, the one whose teacher shares most with the
    student distils what the student can follow. Shapes: integer ids [T, K] each; K may differ between the two. NumPy
    arrays are taken as well.
    Errors: ValueError when a side is not [T, K] of integers, the T differ, or a row repeats an id (it would count
    twice).
    """
    sides = [_checked(name, ids_TK) for name, ids_TK in (("student", student_TK), ("teacher", teacher_TK))]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"student_TK has {len(sides[0])} positions, but teacher_TK has {len(sides[1])}.")
    return int((sides[0][:, :, None] == sides[1][:, None, :]).sum())


def _checked(name: str, ids_TK: Tensor) -> Tensor:
    ids_TK = torch.as_tensor(ids_TK)
    if ids_TK.dim() != 2 or ids_TK.is_floating_point() or ids_TK.dtype == torch.bool:
        raise ValueError(f"{name}_TK must hold ids [T, K], not {list(ids_TK.shape)} of {ids_TK.dtype}.")
    ordered_TK = ids_TK.sort(dim=1).values
    if bool((ordered_TK[:, 1:] == ordered_TK[:, :-1]).any()):
        raise ValueError(f"{name}_TK repeats an id within a row.")
    return ids_TK
