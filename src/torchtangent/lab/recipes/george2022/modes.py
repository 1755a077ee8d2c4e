"""Regression with squared parameters, solved mode by mode (section 5.4 of the thesis).

f = Xθ with θ = ½ Σ_λ w_λ² v_λ, X = Σ_λ √μ_λ u_λ v_λᵀ, is fitted to y by gradient flow on ½‖f − y‖². Modes do not mix:
θ_λ = v_λᵀθ goes from θ⁰_λ to θ*_λ = y_λ/√μ_λ, with y_λ = u_λᵀy, at a pace of its own. In the formulas ỹ_λ = √μ_λ y_λ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Array = np.ndarray


@dataclass(frozen=True)
class Modes:
    """A regression problem in its singular modes.

    Attributes:
        left: u_λ, in columns; zero for the modes that inputs do not have.
        right: v_λ, in columns.
        mu: Squared singular values μ_λ.
        y: u_λᵀy, nowhere negative: the signs of u_λ and v_λ are free, and ½w² reaches no negative θ*.
    """

    left: Float[Array, "N R"]
    right: Float[Array, "D R"]
    mu: Float[Array, " R"]
    y: Float[Array, " R"]

    @property
    def target(self) -> Float[Array, " R"]:
        """θ*_λ; zero where μ_λ is, for no value fits better there than another."""
        return self.y / np.sqrt(np.where(self.mu > 0, self.mu, np.inf))

    @property
    def labels(self) -> Float[Array, " R"]:
        """ỹ_λ, which sets the pace of the network."""
        return np.sqrt(self.mu) * self.y

    def outputs(self, theta: Float[Array, "T R"]) -> Float[Array, "T N"]:
        """f on the samples."""
        return (np.sqrt(self.mu) * theta) @ self.left.T


def decompose(x: Float[Array, "N D"], y: Float[Array, " N"], *, flip: bool = True) -> Modes:
    """All D modes of the inputs, in decreasing order; those beyond the rank have μ = 0.

    Without `flip`, signs are as the singular value decomposition returns them, and y_λ may be negative.

    >>> modes = decompose(np.diag([2.0, 1.0]), np.array([-2.0, 3.0]))
    >>> modes.mu, modes.y, modes.target
    (array([4., 1.]), array([2., 3.]), array([1., 3.]))
    """
    u, s, vt = np.linalg.svd(x)
    rank = int(np.sum(s > s[0] * max(x.shape) * np.finfo(s.dtype).eps))
    mu, left = np.zeros(x.shape[1]), np.zeros((len(x), x.shape[1]))
    mu[:rank], left[:, :rank] = s[:rank] ** 2, u[:, :rank]
    return _signed(left, vt.T, mu, y) if flip else Modes(left, vt.T, mu, left.T @ y)


def in_basis(x: Float[Array, "N D"], y: Float[Array, " N"], left: Float[Array, "N R"]) -> Modes:
    """The modes that belong to given left singular vectors: where singular values coincide, these are a choice."""
    mu = np.square(x.T @ left).sum(0)
    return _signed(left, x.T @ left / np.sqrt(mu), mu, y)


def _signed(left: Array, right: Array, mu: Array, y: Array) -> Modes:
    """With u_λ and v_λ flipped together where u_λᵀy is negative."""
    sign = np.where(left.T @ y < 0, -1.0, 1.0)
    return Modes(left * sign, right * sign, mu, sign * (left.T @ y))


def network(
    t: Float[Array, " T"], start: Float[Array, " R"], mu: Float[Array, " R"], target: Float[Array, " R"]
) -> Float[Array, "T R"]:
    """θ_λ(t) of the network, proposition 5.4.1: θ⁰θ* / (θ⁰ − e^(−2ỹt) (θ⁰ − θ*)), or θ⁰ / (1 + 2μθ⁰t) where θ* = 0.

    >>> network(np.array([0.0, 100.0]), np.array([0.1, 0.1]), np.array([1.0, 0.0]), np.array([2.0, 0.0])).round(6)
    array([[0.1, 0.1],
           [2. , 0.1]])
    """
    rate = 2 * mu * np.asarray(t)[:, None]
    # Both cases in one: (1 − e^(−2ỹt)) / θ* goes to 2μt as θ* → 0.
    safe = np.where(target == 0, 1.0, target)
    growth = np.where(target == 0, rate, -np.expm1(-rate * safe) / safe)
    return start / (np.exp(-rate * target) + start * growth)


def linearized(
    t: Float[Array, " T"],
    start: Float[Array, " R"],
    mu: Float[Array, " R"],
    target: Float[Array, " R"],
    *,
    factor: float = 2.0,
) -> Float[Array, "T R"]:
    """θ_λ(t) of the linearized network: θ* + e^(−2μθ⁰t) (θ⁰ − θ*).

    The thesis prints the exponent −μθ⁰t (eq. 5.4.6), which is `factor` 1: but ∂f/∂w_λ = √μ w⁰ u_λ, and (w⁰)² = 2θ⁰.
    """
    return target + np.exp(-factor * mu * start * np.asarray(t)[:, None]) * (start - target)


def network_time(start: Array, mu: Array, target: Array, epsilon: float) -> Array:
    """When the network's θ_λ is within ε of θ*: (1/2ỹ) log((θ* − ε)(θ* − θ⁰) / εθ⁰), the root of the closed form.

    >>> start, mu, target = np.array([1e-3]), np.array([4.0]), np.array([0.5])
    >>> network(network_time(start, mu, target, 0.01), start, mu, target).round(6)
    array([[0.49]])
    """
    return np.log((target - epsilon) / epsilon * (target - start) / start) / (2 * mu * target)


def linearized_time(start: Array, mu: Array, target: Array, epsilon: float) -> Array:
    """When the linearized network's θ_λ is within ε of θ*: (1/2μθ⁰) log((θ* − θ⁰) / ε)."""
    return np.log((target - start) / epsilon) / (2 * mu * start)
