"""The fault harness: the real system under seeded faults, judged from histories that were recorded outside of it.

`python -m chaos` (`make chaos`). `plan` decides what will go wrong, `world` runs the processes, `faults` hurt them,
`driver` asks for things meanwhile, `witness` and `reads` write down what happened, `rules` judge. Nothing of the system
knows of the harness.
"""
