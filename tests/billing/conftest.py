"""A tenant and the services of accounts, as the tests of tenants have them."""

from tests.tenants.conftest import accounts, tenant

__all__ = ["accounts", "tenant"]
