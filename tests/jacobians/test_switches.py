"""Settings of the process: whoever came last has them, and the last one out turns them back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from torchtangent.jacobians.call import float32_products, undisturbed
from torchtangent.jacobians.switches import Setting


class Lamp:
    """A switch that counts how often it is turned."""

    def __init__(self) -> None:
        self.value, self.turns = "user's", 0
        self.setting = Setting((lambda: self.value, self.turn))

    def turn(self, value: str) -> None:
        self.value, self.turns = value, self.turns + 1


def test_one_in_another() -> None:
    lamp = Lamp()
    with lamp.setting.at("a"):
        with lamp.setting.at("b"):
            assert lamp.value == "b"
        assert lamp.value == "a"
    assert lamp.value == "user's"
    lamp.value = "changed"
    with lamp.setting.at("a"):
        pass
    assert lamp.value == "changed"


def test_the_same_in_another_turns_nothing() -> None:
    lamp = Lamp()
    with lamp.setting.at("a"), lamp.setting.at("a"), lamp.setting.at("a"):
        assert lamp.turns == 1
    assert lamp.turns == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_side_by_side(order: tuple[int, ...]) -> None:
    """As threads do it: the first one in may be the first one out."""
    lamp = Lamp()
    inside = {i: ExitStack() for i in range(3)}
    for i, value in enumerate("aba"):
        inside[i].enter_context(lamp.setting.at(value))
    for i in order:
        assert lamp.value == "aba"[max(inside)]
        inside.pop(i).close()
    assert lamp.value == "user's"


def test_after_an_error() -> None:
    lamp = Lamp()
    with pytest.raises(KeyError), lamp.setting.at("a"):
        raise KeyError
    assert lamp.value == "user's"


def test_attention_and_precision_side_by_side() -> None:
    cuda = torch.backends.cuda
    first, second = ExitStack(), ExitStack()
    for stack in (first, second):
        stack.enter_context(undisturbed())
        stack.enter_context(float32_products())
    first.close()
    assert not torch.backends.mha.get_fastpath_enabled()
    assert (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.matmul.fp32_precision) == (False, True, "ieee")
    second.close()
    assert torch.backends.mha.get_fastpath_enabled()
    assert (cuda.flash_sdp_enabled(), cuda.matmul.fp32_precision) == (True, "none")
