"""`python -m torchtangent` is the `torchtangent` command; it says so where the lab's extra is not installed."""

from torchtangent.lab.cli import main

if __name__ == "__main__":
    main()
