"""What the shared tests have in common: cases, devices, oracles, and the bridge between the frameworks."""
