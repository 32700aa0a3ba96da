"""The synthesisers: each starts at zero, so that attaching one changes nothing until it is fitted."""
