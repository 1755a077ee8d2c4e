"""George, Laurent, Bouthillier, Ballas and Vincent, *Fast approximate natural gradient descent in a KFE* (2018)."""
