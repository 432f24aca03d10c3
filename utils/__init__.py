"""Everything around the networks: text, data, training, search, evaluation, pictures.

Imports point down only, in the order of folders and files that tests/test_floors.py lists and checks.
"""
