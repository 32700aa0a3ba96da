"""The parts of the digits demo: data, three experiments, figures and the final table."""
