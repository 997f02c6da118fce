"""Plans a run for TPUs that are not there."""
