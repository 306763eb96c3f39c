package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrInvalid is wrapped by the error of a request that cannot be fulfilled, whatever the state of the database.
var ErrInvalid = errors.New("invalid capture")

// invalid is an error that wraps [ErrInvalid] and has its own text.
type invalid struct{ error }

// Is reports whether target is [ErrInvalid].
func (invalid) Is(target error) bool { return target == ErrInvalid }

// relation describes a table, from the catalog.
type relation struct {
	OID         uint32
	Schema      string
	Table       string
	Kind        string // pg_class.relkind
	Persistence string
	Inherits    bool // it inherits or is inherited, and is not a partition
	Owned       bool // it is a table of an outbox
	Foreign     bool // it has a partition that is a foreign table
}

// column is a column of a table.
type column struct {
	Name    string
	NotNull bool
	Virtual bool // a generated column that is not stored: transition tables lack its value
	JSON    bool // of type json, or an array or a domain of it
}

// index is a unique index that could identify rows.
type index struct {
	Columns   []string
	Primary   bool
	Immediate bool
}

const sqlRelation = `SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
	c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid AND NOT c.relispartition),
	n.nspname IN ('pg_catalog', 'information_schema') OR c.relname LIKE 'outbox\_%'
		AND EXISTS (SELECT FROM pg_class AS m WHERE m.relnamespace = n.oid AND m.relname = 'outbox_migrations'),
	c.relkind = 'p' AND EXISTS (SELECT FROM pg_partition_tree(c.oid) AS t JOIN pg_class AS f ON f.oid = t.relid WHERE f.relkind = 'f')
	FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = `

const sqlColumns = `SELECT a.attname::text, a.attnotnull, a.attgenerated = 'v',
	coalesce(nullif(y.typbasetype, 0), nullif(y.typelem, 0), y.oid) IN ('json'::regtype, 'json[]'::regtype)
	FROM pg_attribute AS a JOIN pg_type AS y ON y.oid = a.atttypid
	WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

const sqlIndexes = `SELECT ARRAY(
		SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (n, at)
			JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.n ORDER BY k.at),
	i.indisprimary, i.indimmediate
	FROM pg_index AS i
	WHERE i.indrelid = $1::oid AND i.indisunique AND i.indisvalid AND i.indisready AND i.indpred IS NULL AND i.indexprs IS NULL
	ORDER BY i.indisprimary DESC, i.indexrelid`

// find returns the table that name means in SQL of the role.
func find(ctx context.Context, db outboxsql.DB, name string) (*relation, error) {
	const undefined, syntax, badName, notSupported = "42P01", "42601", "42602", "0A000"
	refusals := []string{undefined, syntax, badName, notSupported}

	oid, err := resolve(ctx, db, name)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(refusals, pg.Code) {
		return nil, invalid{fmt.Errorf("table %q: %s: write it as in SQL: orders, shop.orders, '\"Orders\"'", name, pg.Message)}
	}
	if err != nil {
		return nil, fmt.Errorf("find table %s: %w", name, err)
	}
	r, err := one[relation](ctx, db, sqlRelation+"$1::oid", oid)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, invalid{fmt.Errorf("table %q does not exist: write it as in SQL, with its schema: shop.orders, "+
			"'shop.\"Orders\"'", name)}
	}
	if err != nil {
		return nil, fmt.Errorf("find table %s: %w", name, err)
	}

	return r, nil
}

// resolve returns the oid of a table, nil for an unknown one. It searches with the role's own search_path, because
// session.SetDirect has replaced that of the session.
func resolve(ctx context.Context, db outboxsql.DB, name string) (oid *uint32, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path TO DEFAULT`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid`, name).Scan(&oid)
	})
	return oid, err
}

// one returns the one row of a query as a struct, by position.
func one[T any](ctx context.Context, q pgschema.Querier, sql string, args ...any) (*T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[T])
}

// all returns the rows of a query as structs, by position.
func all[T any](ctx context.Context, q pgschema.Querier, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// refuse returns an error if no capture of the table is possible.
func (r *relation) refuse() error {
	name := qualified(r.Schema, r.Table)
	kinds := map[string]string{
		"v": "a view",
		"m": "a materialized view",
		"f": "a foreign table",
		"S": "a sequence",
		"i": "an index",
		"I": "an index",
		"c": "a type",
		"t": "a TOAST table",
	}

	switch kind := kinds[r.Kind]; {
	case r.Owned:
		return invalid{fmt.Errorf("%s cannot be captured: it belongs to PostgreSQL or to an outbox: name a table of "+
			"the application", name)}
	case kind != "":
		return invalid{fmt.Errorf("%s cannot be captured: it is %s, where triggers see no changed rows: name a table", name, kind)}
	case r.Foreign:
		return invalid{fmt.Errorf("%s cannot be captured: a partition is a foreign table, whose writes would fail: "+
			"capture the other partitions", name)}
	case r.Persistence == "t":
		return invalid{fmt.Errorf("%s cannot be captured: it is temporary, and its triggers end with the session: "+
			"name a permanent table", name)}
	case r.Persistence == "u":
		return invalid{fmt.Errorf("%s cannot be captured: it is unlogged, and empty after a crash, which writes no "+
			"event: ALTER TABLE %[1]s SET LOGGED", name)}
	case r.Inherits:
		return invalid{fmt.Errorf("%s cannot be captured: it inherits or is inherited, so that no index makes its key "+
			"unique: use declarative partitions, or capture a table without inheritance", name)}
	}

	return nil
}

// names returns the names of columns.
func names(columns []column) []string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = c.Name
	}
	return list
}

// keyOf returns the key of a table: the wanted columns if they identify a row, or the primary key.
func keyOf(name string, columns []column, indexes []index, wanted []string) ([]string, error) {
	if len(wanted) == 0 {
		if len(indexes) == 0 || !indexes[0].Primary {
			return nil, invalid{fmt.Errorf("%s has no primary key: name the columns of a unique index with --key", name)}
		}
		wanted = indexes[0].Columns
	}

	if err := distinct("--key", name, columns, wanted); err != nil {
		return nil, err
	}

	if problem := keyProblem(columns, indexes, wanted); problem != "" {
		return nil, invalid{fmt.Errorf("--key: %s of %s: %s", strings.Join(wanted, ", "), name, problem)}
	}

	return wanted, nil
}

// keyProblem returns why columns do not identify a row, or "".
func keyProblem(columns []column, indexes []index, key []string) string {
	for _, c := range columns {
		if slices.Contains(key, c.Name) && !c.NotNull {
			return fmt.Sprintf("%s may be NULL, so that it identifies no row: SET NOT NULL, or use another key", c.Name)
		}
	}

	deferrable := false
	for _, i := range indexes {
		isOther := func(name string) bool { return !slices.Contains(key, name) }
		if len(i.Columns) == 0 || slices.ContainsFunc(i.Columns, isOther) {
			continue
		}
		if i.Immediate {
			return ""
		}
		deferrable = true
	}

	if deferrable {
		return "the constraint is deferrable, so that two rows may have the key for a while: use a key whose " +
			"constraint is not deferrable"
	}
	return "no unique index without a condition covers it, so that two rows may have the same key: use the primary " +
		"key, or add the index"
}

// distinct returns an error unless all names are columns of the table, each once.
func distinct(flag, table string, columns []column, wanted []string) error {
	for i, name := range wanted {
		switch {
		case slices.Contains(wanted[:i], name):
			return invalid{fmt.Errorf("%s: column %q is named twice", flag, name)}
		case !slices.Contains(names(columns), name):
			return invalid{fmt.Errorf("%s: %s has no column %q: its columns are %s",
				flag, table, name, strings.Join(names(columns), ", "))}
		}
	}
	return nil
}

// columnsOf returns the columns in the events, and those left out. The key is always in the events.
func columnsOf(name string, columns []column, key, only, exclude []string) (captured, excluded []string, err error) {
	excluded = []string{} // as JSON, it is a list
	if len(only) > 0 && len(exclude) > 0 {
		return nil, nil, invalid{errors.New("--columns names the columns of the events, and --exclude the others: use one of them")}
	}

	err = errors.Join(distinct("--columns", name, columns, only), distinct("--exclude", name, columns, exclude))
	if err != nil {
		return nil, nil, err
	}

	for _, c := range columns {
		inKey := slices.Contains(key, c.Name)
		isWanted := slices.Contains(only, c.Name)
		if len(only) == 0 {
			isWanted = !c.Virtual && !slices.Contains(exclude, c.Name)
		}

		switch {
		case c.Virtual && (inKey || isWanted):
			return nil, nil, invalid{fmt.Errorf("column %q of %s is generated and not stored, so that triggers do not see its value: "+
				"leave it out, or make it STORED", c.Name, name)}
		case inKey && slices.Contains(exclude, c.Name):
			return nil, nil, invalid{fmt.Errorf("--exclude: column %q of %s is in the key, which is aggregate_id: use "+
				"another key", c.Name, name)}
		case inKey, isWanted:
			captured = append(captured, c.Name)
		default:
			excluded = append(excluded, c.Name)
		}
	}

	return captured, excluded, nil
}
