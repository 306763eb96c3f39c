package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// collationVersions is the first version of PostgreSQL that records the version of a database's collation.
const collationVersions = 150_000

// checkCollation compares the recorded version of the database's collation with the version on the server's machine.
// After a change, lookups by an older index of text may miss rows. The keys of notifyd's indexes have the collation "C",
// which never changes, so the check is for the indexes of the user.
func checkCollation(ctx context.Context, e *exam) (string, []Finding, error) {
	number, err := row[struct{ Number int }](ctx, e.conn, `SELECT current_setting('server_version_num')::int`)
	if err != nil {
		return "", nil, err
	}

	if number.Number < collationVersions {
		return "This version of PostgreSQL does not record the version of a collation.", nil, nil
	}

	type facts struct{ Database, Created, Actual string }
	f, err := row[facts](ctx, e.conn, `SELECT datname, coalesce(datcollversion, ''), coalesce(pg_database_collation_actual_version(oid), '')
		FROM pg_database WHERE datname = current_database()`)
	if err != nil {
		return "", nil, err
	}

	if f.Created == f.Actual || f.Created == "" {
		return "The collation of the database has not changed since its creation.", nil, nil
	}

	name := pgx.Identifier{f.Database}.Sanitize()
	return "", []Finding{found(Warning, "REINDEX DATABASE "+name+", then ALTER DATABASE "+name+" REFRESH COLLATION VERSION",
		"The collation of the database %s was version %s, and is version %s on this machine of the server: indexes of "+
			"text may miss rows. Those of notifyd have the collation C, which does not change.",
		f.Database, f.Created, f.Actual)}, nil
}
