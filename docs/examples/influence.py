"""Influence functions: which training images pull a prediction up or down, by the inverse of EKFAC's Fisher matrix."""

from functools import partial

from torch.nn import functional as F
from trained import model, x_test, x_train, y_test, y_train

import torchtangent as tt

losses = partial(F.cross_entropy, reduction="none")  # one for each sample
curvature = tt.fisher(model, (x_train, y_train), tt.EKFAC)
asked = int(losses(model(x_test), y_test).argmax())  # the test image it is worst at
g = tt.gradients(model, (x_test[[asked]], y_test[[asked]]), losses).dense()[0]

# Weighting a training image a little more changes the loss of the test image by −gᵀ (F + damping)⁻¹ g_n / N. The
# gradients g_n of all training images are the rows of a matrix (N, P) that is never formed.
G = tt.gradients(model, (x_train, y_train), losses)
change = -(G @ curvature.solve(g, damping=1e-3)) / len(x_train)
order = change.argsort()
print(f"test image {asked}, a {int(y_test[asked])} that is taken for a {int(model(x_test[asked]).argmax())}")
for title, found in (("more of these would help", order[:5]), ("more of these would harm", order.flip(0)[:5])):
    print(f"{title}: " + ", ".join(f"image {n} (a {int(y_train[n])}, {change[n]:+.2g})" for n in found.tolist()))
