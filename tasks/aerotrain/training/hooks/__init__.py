"""What looks on while a job trains, and tells others of it."""
