"""The live view of inference engines."""
