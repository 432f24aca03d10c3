"""Everything around the networks: text, data, training, search, evaluation, pictures.

Imports point down only: text < dataset < {training, search} < evaluation < config < run <
visualize < task < experiment.
"""
