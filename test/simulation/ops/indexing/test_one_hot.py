"""``one_hot`` on CUDA: the number of classes is the program's to know."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, indices
from torch.nn.functional import one_hot

from pytorch_memlab import simulate

INDEX = 8


@computed_or_dry
def test_known_classes_are_not_looked_at(compute):
    """The CPU takes a minimum and a maximum, which a dry run would have to assume."""
    made = events(lambda x: one_hot(x, 50), lambda: indices(3, 1000), compute=compute)
    assert made == [3 * 1000 * 50 * INDEX]
    with simulate("1GiB", compute=compute, strict=True):
        classes = torch.randint(50, (3, 1000), device="cuda")
        assert one_hot(classes, 50).shape == (3, 1000, 50)


def test_classes_are_counted_where_they_are_not_given():
    assert events(one_hot, lambda: indices(9, below=7)) == [INDEX, -INDEX, 9 * 7 * INDEX]


def test_values_and_refusals():
    classes = torch.tensor([[2, 0], [1, 1]])
    expected = [one_hot(classes), one_hot(classes, 5), one_hot(classes[:0], 5)]
    with simulate("1GiB"):
        classes = classes.cuda()
        found = [one_hot(classes), one_hot(classes, 5), one_hot(classes[:0], 5)]
        assert all(one.is_cuda for one in found)
        assert [one.tolist() for one in found] == [one.tolist() for one in expected]
        with pytest.raises(RuntimeError, match="num_classes should be positive"):
            one_hot(classes, 0)
        with pytest.raises(RuntimeError, match="only applicable to index tensor"):
            one_hot(classes.int(), 5)
