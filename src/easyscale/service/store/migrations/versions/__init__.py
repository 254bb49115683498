"""One file for each step, in order. There are no steps back."""
