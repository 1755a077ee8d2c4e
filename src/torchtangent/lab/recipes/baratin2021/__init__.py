"""Baratin, George et al., *Implicit regularization via neural feature alignment* (2021); chapter 6 of the thesis."""
