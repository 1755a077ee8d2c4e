"""The tangent kernel measured while a network trains.

probe = tt.TangentProbe(model, x, y)        # before training: later records are compared with this state
for step, batch in enumerate(batches):
    probe.log(step)                         # measures at steps 0, 5, 10, 15, …, ever further apart
    train(batch)
steps, cka = probe.series("cka")
"""

from torchtangent.probe.measures import MEASURES, measure
from torchtangent.probe.probe import TangentProbe
from torchtangent.probe.state import State

__all__ = ["MEASURES", "State", "TangentProbe", "measure"]
