"""The signed-in user's own account: name, password, second factor, sessions."""
