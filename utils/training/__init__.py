"""What the Trainer is built from: objective, schedule, checkpoints, observers."""
