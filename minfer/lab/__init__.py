"""What a person sees: plots and widgets over arithmetic, campaign and engine."""
