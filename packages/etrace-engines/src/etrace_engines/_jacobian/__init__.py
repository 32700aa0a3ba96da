"""How the hidden states of one step depend on the step before, and on the outputs of parameter operations."""
