package outboxsql

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

// MigrateNext is [Migrate] by a notifyd that knows one version more.
func MigrateNext(ctx context.Context, conn *pgx.Conn, schema, name, sql string) ([]Version, error) {
	return migrate(ctx, conn, schema, append(migrations(), migration{name: name, sql: sql}), MigrateOptions{})
}

// GrantedTables returns the tables that Grants knows.
func GrantedTables() (names []string) {
	for _, g := range pgschema.TableGrants() {
		names = append(names, g.Table)
	}
	return names
}
