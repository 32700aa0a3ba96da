"""Drivers over whole sequences: gradients, evolution, fitting."""
