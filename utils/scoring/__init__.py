"""What evaluate.py can be asked for, a verb or two in a module."""
