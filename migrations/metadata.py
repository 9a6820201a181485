"""Every table of every domain in one MetaData: what migrations are compared with."""

from db.base import Base

metadata = Base.metadata
