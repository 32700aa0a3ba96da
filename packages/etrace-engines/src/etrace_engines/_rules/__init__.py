"""Rules by name, and the one call that compiles a model for one."""
