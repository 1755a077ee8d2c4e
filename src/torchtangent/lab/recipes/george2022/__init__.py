"""George, Lajoie and Baratin, *Lazy vs hasty: linearization in deep networks impacts learning schedule* (2022)."""
