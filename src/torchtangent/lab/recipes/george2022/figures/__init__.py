"""The plots, from arrays alone."""
