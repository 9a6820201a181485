"""Deletes organizations' data when its period is over, previews that, and certifies what was deleted."""
