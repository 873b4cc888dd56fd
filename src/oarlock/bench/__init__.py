"""A grid of runs: methods × class orders × protocols, each run in a process of its own."""
