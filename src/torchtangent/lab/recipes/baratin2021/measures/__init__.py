"""How the claims' values are read off the arrays."""
