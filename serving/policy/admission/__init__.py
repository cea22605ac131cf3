"""Who may enter, and when: bounded queues, limits per key, two classes of work. Pure."""
