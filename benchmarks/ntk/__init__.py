"""The tangent kernel, us and the peers on the same work: `python -m benchmarks.ntk.run`."""
