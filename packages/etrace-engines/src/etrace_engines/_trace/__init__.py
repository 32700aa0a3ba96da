"""The trace recursions, as pure functions on arrays."""
