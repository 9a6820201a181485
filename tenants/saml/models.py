"""Defines the row of an organization's SAML connection."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ARRAY, CheckConstraint, ForeignKey, Text, func, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned
from tenants.saml.statements import IdentityProvider


class SamlConnection(TenantOwned, Base):
    """The identity provider that members of one organization sign in with."""

    __tablename__ = "saml_connections"
    __table_args__ = (
        CheckConstraint("cardinality(certificates) BETWEEN 1 AND 2", name="certificates_few"),
        CheckConstraint("tenant_id <> 'operator'", name="not_of_operators"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), unique=True)
    entity_id: Mapped[str]
    """The issuer of its assertions."""
    sso_url: Mapped[str]
    """Where it signs people in, by the redirect binding."""
    certificates: Mapped[list[str]] = mapped_column(ARRAY(Text))
    """PEM. Its signatures are made with the key of one of them."""
    email_attribute: Mapped[str | None]
    """The attribute with the user's address. None: one of the usual names, else the NameID."""
    groups_attribute: Mapped[str | None]
    """The attribute with the user's groups. None: assertions say nothing of groups."""
    is_enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    allows_idp_initiated: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether it can sign people in without having been asked."""
    creates_members: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether people who are not members become members when they sign in."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    @property
    def issuer(self) -> str:
        """The issuer under which identities are linked: of this connection alone, so that what one
        organization's provider says is never another's, nor that of an OpenID provider, whose issuer is a
        URL.
        """
        return f"saml:{self.id}"

    @property
    def identity_provider(self) -> IdentityProvider:
        return IdentityProvider(
            self.entity_id, self.certificates, self.email_attribute, self.groups_attribute
        )
