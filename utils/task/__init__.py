"""What train.py can train: for each task its texts, network, objective, scores, and what to do at the end."""
