"""Ortiz-Jiménez et al., *What can linearized neural networks actually say about generalization?* (2021)."""
