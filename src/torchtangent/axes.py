"""The alphabet of axes that every shape annotation uses.

An annotation such as ``Float[Tensor, "N S I"]`` reads as a tensor of samples × locations × input
widths. One letter means one thing in the whole library:

| axis | meaning |
|---|---|
| N, M | samples (M: those of a second batch) |
| C, E | outputs of the network (E: a second output index) |
| S, T | locations at which a layer applies its weight: output pixels, positions of a sequence |
| I | the width of a layer's input (of its patch, for a convolution), per group |
| O | the width of a layer's output, per group |
| G | groups of a grouped convolution |
| P | parameters: the length of a flat parameter vector |
| K | columns: several vectors treated at once, or the number of eigenpairs asked for |
| R | rank: rows of a factor, columns of a thin basis |

Other letters, and lower case, are local to the function that uses them.
"""

AXES = {
    "N": "samples",
    "M": "samples of a second batch",
    "C": "outputs of the network",
    "E": "outputs of the network, second index",
    "S": "locations of a layer",
    "T": "locations of a layer, second index",
    "I": "input width of a layer, per group",
    "O": "output width of a layer, per group",
    "G": "groups",
    "P": "parameters",
    "K": "columns: vectors treated at once",
    "R": "rank",
}
