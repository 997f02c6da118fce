"""Plans a run for TPUs without having them."""
