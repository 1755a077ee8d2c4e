"""The spectrum of the tangent kernel, before and after training."""

from trained import initial, model, x_train

import torchtangent as tt

for name, network in [("at initialization", initial), ("after training", model)]:
    K = tt.flatten(tt.ntk(network, x_train[:100]))  # (1000, 1000): a row for each image and class
    values, _ = tt.spectrum.top(K, k=len(K))
    rank, ratios = tt.spectrum.effective_rank(values), tt.spectrum.trace_ratio(values, [10, 100])

    print(f"The kernel {name}, of 100 images and 10 classes:")
    print("  largest eigenvalues      ", ", ".join(f"{value:.3g}" for value in values[:5]))
    print(f"  effective rank            {rank:.0f} of {len(K)}")
    print(f"  in the 10 and 100 largest {ratios[0]:.0%} and {ratios[1]:.0%} of the trace")
