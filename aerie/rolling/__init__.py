"""Rolling capture: states are captured, trained on and removed in turn, within a byte budget."""
