"""One engine per trace factorisation, and the one place that chooses it."""
