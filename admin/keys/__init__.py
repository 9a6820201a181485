"""The API keys section."""
