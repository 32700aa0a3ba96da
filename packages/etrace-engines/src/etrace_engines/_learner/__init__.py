"""What users hold: learners, their presets, and `compile`."""
