"""What a kernel says about a task: alignment α(g), RKHS norms, kernel alignment, CKA, energy, and a ranking of tasks.

A target g is a function of the samples: (N,), or (N, K) for K targets at once; for a network with C outputs (N, C) or
(N, C, K). Kernels are (N, N) or (N, N, C, C): tensors, arrays on disk, operators or features.
"""

from torchtangent.alignment.ranking import Ranking, Task, rank_tasks
from torchtangent.alignment.rkhs import bound, energy, norm, of_kernel, of_spectrum, target
from torchtangent.alignment.similarity import cka, kernels

__all__ = [
    "Ranking",
    "Task",
    "bound",
    "cka",
    "energy",
    "kernels",
    "norm",
    "of_kernel",
    "of_spectrum",
    "rank_tasks",
    "target",
]
