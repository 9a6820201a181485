"""The members section: members, their roles, and invitations."""
