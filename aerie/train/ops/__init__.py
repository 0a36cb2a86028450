"""What a training step does beside its matrix products; `interface` says what."""
