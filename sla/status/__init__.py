"""The public status page: states of components, sampled every minute, and the snapshot that it shows."""
