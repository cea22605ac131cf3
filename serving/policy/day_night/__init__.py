"""The hand-over of chips between serving and training, and its policies. Pure."""
