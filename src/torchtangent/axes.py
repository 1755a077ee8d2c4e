"""The alphabet of axes that every shape annotation uses.

An annotation such as ``Float[Tensor, "N S I"]`` reads as a tensor of samples × locations × input
widths. One letter means one thing in the whole library:

| axis | meaning |
|---|---|
| N, M | samples (M: those of a second batch) |
| C, E | outputs of the network (E: a second output index) |
| S | locations at which a layer applies its weight: output pixels, positions of a sequence |
| T | terms of the likelihood in a sample; in the kernel's contractions, a second index of locations |
| I | the width of a layer's input (of its patch, for a convolution), per group |
| O | the width of a layer's output, per group |
| G | groups of a grouped convolution |
| P | parameters: the length of a flat parameter vector |
| K | columns: several vectors treated at once, or the number of eigenpairs asked for |
| R | rank: rows of a factor, columns of a thin basis |

Other letters, and lower case, are local to the function that uses them.
"""
