"""Predictions of a linearized network in closed form: kernel regression, and gradient descent and flow at any time.

The loss is torch's `mse_loss`, the mean of (f − y)² over samples and outputs. K is the kernel of N training points,
(N, N), or (N, N, C, C) for C outputs: a tensor, an array (also on disk), features, an operator, or anything with
`shape` and `@`. As a matrix, its row n·C + c belongs to output c of sample n. Targets are (N,), or (N, K) for K of them
at once; for C outputs (N, C) or (N, C, K). Predictions have the form of the targets and K's dtype; computations are in
float64.
"""

from torchtangent.linear.predict.dynamics import descent, flow, time_to
from torchtangent.linear.predict.regression import classify, coefficients, leave_one_out, ridge

__all__ = ["classify", "coefficients", "descent", "flow", "leave_one_out", "ridge", "time_to"]
