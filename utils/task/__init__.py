"""What train.py can train: for each task its texts, network and objective, what good is, and what comes at the end."""
