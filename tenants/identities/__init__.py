"""How users prove who they are, beyond a first password: other passwords, second factors, other providers."""
