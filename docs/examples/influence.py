"""Influence functions: which training images pull a prediction up or down, by the inverse of EKFAC's Fisher matrix."""

from torch import Tensor, nn
from torch.nn import functional as F
from trained import model, x_test, x_train, y_test, y_train

import torchtangent as tt


class Losses(nn.Module):
    """The loss of each sample as its output: the rows of the Jacobian are then the gradients of the samples."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y, reduction="none")


curvature = tt.fisher(model, (x_train, y_train), tt.EKFAC)
asked = int(F.cross_entropy(model(x_test), y_test, reduction="none").argmax())  # the test image it is worst at
g = tt.jacobian(Losses(model), (x_test[[asked]], y_test[[asked]])).dense().flatten()

# Weighting a training image a little more changes the loss of the test image by −gᵀ (F + damping)⁻¹ g_n / N. The
# gradients g_n of all training images are the rows of a Jacobian, whose matrix (N, P) is never formed.
J = tt.jacobian(Losses(model), (x_train, y_train))
change = -(J @ curvature.solve(g, damping=1e-3)).squeeze(1) / len(x_train)
order = change.argsort()
print(f"test image {asked}, a {int(y_test[asked])} that is taken for a {int(model(x_test[asked]).argmax())}")
for title, found in (("more of these would help", order[:5]), ("more of these would harm", order.flip(0)[:5])):
    print(f"{title}: " + ", ".join(f"image {n} (a {int(y_train[n])}, {change[n]:+.2g})" for n in found.tolist()))
