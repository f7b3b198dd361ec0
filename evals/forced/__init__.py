"""Teacher-forced lockstep: both arms walk the same tokens through their decode path."""
