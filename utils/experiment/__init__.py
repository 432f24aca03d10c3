"""Many trainings that are compared: each is train.py in a process of its own."""
