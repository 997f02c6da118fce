"""What a run ends with: its student, its scores, and the report."""
