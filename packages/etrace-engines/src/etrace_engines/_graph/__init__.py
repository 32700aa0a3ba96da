"""What is known about a model before a rule is chosen: step function, relations, positions, groups."""
