"""Gates: checks that stop the build and say what is wrong, what they saw and the remedy."""
