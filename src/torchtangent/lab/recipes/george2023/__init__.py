"""Thomas George, *Deep networks training and generalization: insights from linearization* (2023)."""
