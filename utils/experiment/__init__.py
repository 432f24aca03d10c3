"""Many trainings that are compared, each train.py in a process of its own, and results that are kept."""
