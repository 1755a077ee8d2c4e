"""Optimizers that know the geometry: KFAC and EKFAC for networks, SuperNat for linear models."""

from torchtangent.optim.damping import Adaptive
from torchtangent.optim.ekfac import EKFAC
from torchtangent.optim.kfac import KFAC
from torchtangent.optim.supernat import SuperNat

__all__ = ["EKFAC", "KFAC", "Adaptive", "SuperNat"]
