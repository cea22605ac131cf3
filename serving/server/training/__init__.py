"""The training job: corpus, schedule, checkpoints, evaluation, and the loop over chips."""
