#!/bin/sh
# Run once, by the image's entrypoint, on a new cluster: the role that serves. The owner migrates; this one is
# granted rows by `rootstock migrate`, and row-level security holds it to one tenant's at a time.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
    --set password="$POSTGRES_SERVING_PASSWORD" <<'SQL'
CREATE ROLE rootstock_serving LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD :'password';
SQL
