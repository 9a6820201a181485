"""The `rootstock` command line: serves, operates and checks an installation."""
