"""All eigenvalues of the Hessian of a loss, before and after training, from a few hundred products."""

from torch.nn.functional import cross_entropy
from trained import initial, model, x_train, y_train

import torchtangent as tt

for name, network in [("at initialization", initial), ("after training", model)]:
    H = tt.hessian(network, (x_train, y_train), cross_entropy)
    found = tt.spectrum.density(H, steps=40, probes=3)  # found.curve() is the density to draw
    negative, error = found.below(-0.1 * float(found.points.max()))  # not 0: most of the others are close to it
    logdet, spread = found.trace(lambda values: (values.abs() + 1e-3).log())

    print(f"The Hessian {name}, with {H.size:,} eigenvalues:")
    print(f"  smallest and largest       {found.points.min():.3g}, {found.points.max():.3g}")
    print(f"  below -10 % of the largest {100 * negative:.1f} ± {100 * error:.1f} %")
    print(f"  log det(|H| + 0.001)       {logdet:.0f} ± {spread:.0f}")
