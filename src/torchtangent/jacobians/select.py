"""Which parameters: by name pattern, by predicate, or all that are trainable."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from fnmatch import fnmatchcase

from torch import nn

from torchtangent.jacobians.call import alone
from torchtangent.notice import listed

Params = str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None


def select(model: nn.Module, params: Params = None) -> dict[str, nn.Parameter]:
    """The trainable parameters of `model` that `params` chooses, in `named_parameters()` order.

    Args:
        model: Any module.
        params: Shell-style patterns on the full name ("head.*", ["*.weight", "cls_token"]), names of modules ("head"),
            or a predicate `(name, parameter) -> bool`. None takes every parameter with `requires_grad`.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> list(select(net, "2.*"))
    ['2.weight', '2.bias']
    """
    with alone():  # another thread may have replaced the parameters temporarily
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters. "
            "Set requires_grad_(True) on those to differentiate with respect to."
        )
    for name, p in trainable.items():
        if p.is_complex():
            raise ValueError(
                f"Parameter '{name}' is complex. Hold it as real numbers, nn.Parameter(torch.view_as_real(w)), and "
                "make it complex where it is used, torch.view_as_complex(self.w)."
            )
    if params is None:
        return trainable
    if isinstance(params, nn.Module):
        raise TypeError('params is a module: choose its parameters by name, as params="head.*" does.')
    if callable(params):
        chosen = {name: p for name, p in trainable.items() if params(name, p)}
        asked = "the predicate params=..."
    else:
        patterns = [params] if isinstance(params, str) else list(params)
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(
                    f"params takes names or patterns of names, such as 'head.*', or a function of (name, parameter); "
                    f"there is a {type(pattern).__name__} among them."
                )
        for pattern in patterns:
            if not any(matches(name, pattern, trainable) for name in trainable):
                raise ValueError(
                    f"params pattern '{pattern}' matches no trainable parameter. "
                    f"The trainable ones are: {listed(list(trainable), most=12)}."
                )
        chosen = {n: p for n, p in trainable.items() if any(matches(n, pattern, trainable) for pattern in patterns)}
        asked = f"params={patterns}"
    if not chosen:
        raise ValueError(
            f"No trainable parameter is chosen by {asked}. The trainable ones are: {listed(list(trainable), most=12)}."
        )
    return chosen


def matches(name: str, pattern: str, names: Container[str] = ()) -> bool:
    """Whether a parameter is chosen by a pattern on its full name, or by the name of a module that it is in.

    A pattern that is one of `names` is that name: brackets and stars in it have no meaning.

    >>> matches("body.0.weight", "body"), matches("body.0.weight", "*.weight"), matches("w0", "w[0]", ["w[0]", "w0"])
    (True, True, False)
    """
    if pattern in names:
        return name == pattern
    return name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def among(names: Container[str]) -> Callable[[str, nn.Parameter], bool]:
    """A predicate for `params=` that chooses the parameters with these names, whatever later calls would select."""
    return lambda name, _: name in names
