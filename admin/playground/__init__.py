"""The playground section: chat with a model or an adapter from the browser."""
