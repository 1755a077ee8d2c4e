"""neural-tangents in JAX, in an environment without torch: structured derivatives and its other implementations.

Channels come last and weights as JAX has them, (inputs, outputs) and HWIO: what XLA does best on a CPU. The
kernel does not depend on the order of the parameters.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from jax import lax

DISTRIBUTIONS = ("neural-tangents", "jax", "jaxlib")
Params = dict[str, jax.Array]


def prepare(
    data: Mapping[str, np.ndarray], implementation: str, vmap_axes: int | None, batch: int | None
) -> Callable[[], jax.Array]:
    """The kernel of all outputs, compiled; in tiles of the largest divisor of N that is at most `batch`."""
    layers = json.loads(str(data["about"]))["layers"]
    params = {name: _weights(data[name]) for name in data if name not in ("about", "x")}
    x = jnp.asarray(data["x"] if data["x"].ndim == 2 else data["x"].transpose(0, 2, 3, 1))
    kernel = nt.empirical_ntk_fn(
        lambda params, x: _apply(layers, params, x),
        trace_axes=(),
        vmap_axes=vmap_axes,
        implementation=nt.NtkImplementation[implementation],
    )
    if batch is None:
        compiled = jax.jit(lambda x, params: kernel(x, None, params)).lower(x, params).compile()
        return lambda: compiled(x, params).block_until_ready()
    tile = max(n for n in range(1, batch + 1) if len(x) % n == 0)
    tiled = nt.batch(kernel, batch_size=tile)
    tiled(x[:tile], None, params)  # compiles
    return lambda: tiled(x, None, params).block_until_ready()


def unpack(K: jax.Array) -> np.ndarray:
    """(N, N, C, C) as it is."""
    return np.asarray(K)


def _weights(w: np.ndarray) -> jax.Array:
    """(O, I) → (I, O), OIHW → HWIO."""
    return jnp.asarray(w.transpose(*range(2, w.ndim), 1, 0) if w.ndim > 1 else w)


def _apply(layers: list[list[Any]], params: Params, x: jax.Array) -> jax.Array:
    """The network that `benchmarks.ntk.cases.layers` describes."""
    for kind, *more in layers:
        x = _LAYERS[kind](params, x, *more)
    return x


def _linear(params: Params, x: jax.Array, name: str) -> jax.Array:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def _conv(params: Params, x: jax.Array, name: str, stride: list[int], padding: list[int]) -> jax.Array:
    y = lax.conv_general_dilated(
        x, params[f"{name}.weight"], stride, [(p, p) for p in padding], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + params[f"{name}.bias"] if f"{name}.bias" in params else y


def _average(params: Params, x: jax.Array, size: int) -> jax.Array:
    window = (1, size, size, 1)
    return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / size**2


def _flatten(params: Params, x: jax.Array) -> jax.Array:
    """In torch's order: channels before pixels."""
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def _sum(params: Params, x: jax.Array, *branches: list[list[Any]]) -> jax.Array:
    return sum(_apply(branch, params, x) for branch in branches)


_LAYERS: dict[str, Callable[..., jax.Array]] = {
    "linear": _linear,
    "conv": _conv,
    "relu": lambda params, x: jax.nn.relu(x),
    "average": _average,
    "flatten": _flatten,
    "sum": _sum,
}
