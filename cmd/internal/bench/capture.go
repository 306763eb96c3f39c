package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/capture"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Capture measures the cost of the triggers of a captured table: of an update of all rows, and of updates of one row each.
// The variants take turns.
type Capture struct {
	Rows, Seconds int
}

// Define implements [Experiment].
func (x *Capture) Define(cmd *cobra.Command) {
	cmd.Use = "capture"
	cmd.Short = "What a captured table costs its writers"
	cmd.Long = `capture measures an update of all rows of a table, and updates of one row each, without
events; with the triggers of "notifyd capture add"; with the same triggers where the
function names each column; and with a trigger for each row. The four take turns, on one
connection each, and commits do not wait for a flush to disk. The exit code is 1 if a
variant has not written an event for each changed row.`

	flags := cmd.Flags()
	flags.IntVar(&x.Rows, "rows", 100_000, "`number` of rows of the table")
	flags.IntVar(&x.Seconds, "seconds", 5, "`seconds` to measure updates of one row of each of the four for")
}

// Check implements [Experiment].
func (x *Capture) Check() error {
	return atLeast(1, option{"rows", x.Rows}, option{"seconds", x.Seconds})
}

// captured is a variant of [Capture].
type captured struct {
	name, about string
	// install makes the triggers of the table; nil makes none.
	install func(ctx context.Context, conn *pgx.Conn, schema string) error
	schema  string
	conn    *pgx.Conn
	lost    int64
}

// capturedRound are the figures of a round.
type capturedRound struct{ bulk, single time.Duration }

// captureVariants returns the variants, the one without events first.
func captureVariants() []*captured {
	return []*captured{
		{name: "none", about: "no events"},
		{name: "capture", about: "notifyd capture add", install: addCapture},
		{name: "named", about: "each column by name", install: scripted(namedCapture)},
		{name: "row", about: "per-row trigger", install: scripted(rowCapture)},
	}
}

// Run implements [Experiment].
func (x *Capture) Run(ctx context.Context, e *Env) (*Result, error) {
	variants := captureVariants()
	for _, v := range variants {
		if err := prepareCapture(ctx, e, v, x.Rows); err != nil {
			return nil, fmt.Errorf("variant %s: %w", v.name, err)
		}
		defer store.Close(ctx, v.conn)
	}
	rounds := max(x.Seconds, leastRounds)
	length := time.Duration(x.Seconds) * time.Second / time.Duration(rounds)
	took, err := inTurns(ctx, rounds, variants, func(ctx context.Context, v *captured) (capturedRound, error) {
		one, err := v.round(ctx, x.Rows, length)
		if err != nil {
			return one, fmt.Errorf("variant %s: %w", v.name, err)
		}
		return one, nil
	})
	if err != nil {
		return nil, err
	}

	r := &Result{Upright: true}
	r.Say("updates of %s rows, and of one row each; medians of %d rounds, in turns", number(float64(x.Rows)), rounds)
	for i, v := range variants {
		c := r.Column(v.name + ": " + v.about)
		c.Set("bulk, ms", medianOf(took[i], func(r capturedRound) float64 { return milliseconds(r.bulk) }), 1)
		c.relate("bulk / none", "bulk, ms", r.Columns[0])
		c.Set("one row, us", medianOf(took[i], func(r capturedRound) float64 { return 1000 * milliseconds(r.single) }), 1)
		c.relate("one row / none", "one row, us", r.Columns[0])
		c.Set("lost", float64(v.lost), 0)
		r.Count(Faults{Lost: max(v.lost, -v.lost)})
	}
	return r, nil
}

// capturedColumns are the columns of the table that are in the events. The table has one more.
func capturedColumns() []string {
	return []string{"id", "customer", "total", "status", "note", "created", "updated"}
}

// prepareCapture makes the outbox and the table of a variant.
func prepareCapture(ctx context.Context, e *Env, v *captured, rows int) (err error) {
	v.schema, err = e.migrate(ctx, "capture_"+v.name, outboxsql.NotifyAuto, outboxsql.ModeQueue)
	if err != nil {
		return err
	}
	v.conn, err = e.connect(ctx)
	if err != nil {
		return err
	}
	items := in(v.schema, "items")
	for _, statement := range []string{
		`SET synchronous_commit = off`,
		`CREATE TABLE ` + items + ` (id bigint PRIMARY KEY, customer text NOT NULL, total numeric(10, 2) NOT NULL, status text NOT NULL, note text NOT NULL,
			created timestamptz NOT NULL, updated timestamptz NOT NULL, secret text NOT NULL) WITH (fillfactor = 50)`,
		fmt.Sprintf(`INSERT INTO %s SELECT i, 'customer ' || i, 10 * i, 'new', repeat('n', 100), now(), clock_timestamp(), 'secret' FROM generate_series(1, %d) AS i`, items, rows),
		`VACUUM ANALYZE ` + items,
	} {
		if _, err := v.conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if v.install == nil {
		return nil
	}
	return v.install(ctx, v.conn, v.schema)
}

// round updates all rows, and then one after the other until length is over.
func (v *captured) round(ctx context.Context, rows int, length time.Duration) (r capturedRound, err error) {
	began := time.Now()
	if _, err := v.conn.Exec(ctx, `UPDATE `+in(v.schema, "items")+` SET total = total + 1, updated = clock_timestamp()`); err != nil {
		return r, err
	}
	r.bulk = time.Since(began)

	single := `UPDATE ` + in(v.schema, "items") + ` SET total = total + 1 WHERE id = $1`
	var n int64
	began = time.Now()
	for time.Since(began) < length {
		id := 1 + rand.Int64N(int64(rows)) //nolint:gosec // a load
		if _, err := v.conn.Exec(ctx, single, id); err != nil {
			return r, err
		}
		n++
	}
	r.single = time.Since(began) / time.Duration(n)

	if v.install != nil {
		var events int64
		if err := v.conn.QueryRow(ctx, `SELECT count(*) FROM `+table(v.schema)).Scan(&events); err != nil {
			return r, err
		}
		v.lost += int64(rows) + n - events
	}

	for _, statement := range []string{`TRUNCATE ` + table(v.schema), `VACUUM ` + in(v.schema, "items")} {
		if _, err := v.conn.Exec(ctx, statement); err != nil {
			return r, err
		}
	}
	return r, nil
}

func addCapture(ctx context.Context, conn *pgx.Conn, schema string) error {
	plan, err := capture.Prepare(ctx, conn, capture.Request{Outbox: schema, Table: in(schema, "items"), Exclude: []string{"secret"}})
	if err != nil {
		return err
	}
	return capture.Run(ctx, conn, plan.SQL, time.Minute)
}

// scripted returns the function that installs the triggers of a script.
func scripted(script func(schema string) string) func(context.Context, *pgx.Conn, string) error {
	return func(ctx context.Context, conn *pgx.Conn, schema string) error {
		_, err := conn.Exec(ctx, script(schema), pgx.QueryExecModeSimpleProtocol)
		return err
	}
}

// named returns json_build_object of a row with all captured columns.
func named(row string) string {
	pairs := make([]string, 0, len(capturedColumns()))
	for _, column := range capturedColumns() {
		pairs = append(pairs, fmt.Sprintf("'%s', %s.%[1]s", column, row))
	}
	return "json_build_object(" + strings.Join(pairs, ", ") + ")"
}

// namedCapture is a capture whose function names each column. A column that is dropped makes each write fail.
func namedCapture(schema string) string {
	var columns [2][]string
	for _, column := range capturedColumns() {
		columns[0] = append(columns[0], "o."+column)
		columns[1] = append(columns[1], "n."+column)
	}
	return fmt.Sprintf(`CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    INSERT INTO %[2]s (event_type, aggregate_type, aggregate_id, payload)
    SELECT CASE WHEN o.id IS NULL THEN 'items.inserted' WHEN n.id IS NULL THEN 'items.deleted' ELSE 'items.updated' END, 'items', coalesce(n.id, o.id)::text,
        json_build_object('op', 'update', 'schema', TG_TABLE_SCHEMA, 'table', TG_TABLE_NAME, 'key', json_build_object('id', coalesce(n.id, o.id)), 'old', %[3]s, 'new', %[4]s)
    FROM old_rows AS o FULL JOIN new_rows AS n ON n.id = o.id WHERE (%[5]s) IS DISTINCT FROM (%[6]s);
    RETURN NULL;
END $$;
CREATE TRIGGER named AFTER UPDATE ON %[7]s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION %[1]s()`,
		in(schema, "named"), table(schema), named("o"), named("n"), strings.Join(columns[0], ", "), strings.Join(columns[1], ", "), in(schema, "items"))
}

// rowCapture executes an INSERT for each row.
func rowCapture(schema string) string {
	return fmt.Sprintf(`CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO %[2]s (event_type, aggregate_type, aggregate_id, payload) VALUES ('items.updated', 'items', NEW.id::text,
        json_build_object('op', 'update', 'schema', TG_TABLE_SCHEMA, 'table', TG_TABLE_NAME, 'key', json_build_object('id', NEW.id), 'old', to_jsonb(OLD) - 'secret', 'new', to_jsonb(NEW) - 'secret'));
    RETURN NULL;
END $$;
CREATE TRIGGER per_row AFTER UPDATE ON %[3]s FOR EACH ROW EXECUTE FUNCTION %[1]s()`, in(schema, "per_row"), table(schema), in(schema, "items"))
}
