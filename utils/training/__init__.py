"""What the Trainer is given: objective, schedule, checkpoints, observers."""
