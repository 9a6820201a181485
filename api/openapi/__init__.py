"""The OpenAPI document: schemas of requests and responses, errors of each operation, links between them."""
