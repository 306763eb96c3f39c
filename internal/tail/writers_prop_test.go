package tail

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// propWriter writes in every possible way. Its inserts on its main connection belong to aggregates
// whose events are committed in the order of their ids.
type propWriter struct {
	n           int
	rng         *rand.Rand
	main, aside *pgx.Conn
	open        []string // the rest of a transaction that stays open during others
	prepared    []string // transactions, over a restart of the server
	count       int
	bulk        int
	partitioned bool
	turns       <-chan struct{} // each lets a writer do one thing
}

func (w *propWriter) run(ctx context.Context) error {
	for step := range propSteps {
		if err := w.turn(ctx); err != nil {
			return err
		}
		if err := w.choose(step)(ctx); err != nil {
			return fmt.Errorf("writer %d, step %d: %w", w.n, step, err)
		}
	}
	return nil
}

func (w *propWriter) choose(step int) func(context.Context) error {
	if w.n == 0 && step == propSteps/2 {
		return w.large
	}
	if w.n == 1 && step == propSteps/3 && w.partitioned {
		return w.nextDay
	}
	all := []func(context.Context) error{
		w.plain, w.plain, w.shared, w.shared, w.rolledBack, w.savepoints, w.ahead, w.drawnOnly, w.copied, w.conflicts,
		w.prepare, w.settle, w.serializable, w.long, w.long,
	}
	return all[w.rng.IntN(len(all))]
}

// turn waits until the writer may continue.
func (w *propWriter) turn(ctx context.Context) error {
	select {
	case <-w.turns:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do runs statements on a connection.
func do(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// insertion inserts n events of an aggregate.
func insertion(aggregate string, n int) string {
	return fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', '%s', '%s', to_json(i) FROM generate_series(1, %d) i`, strings.SplitN(aggregate, "/", 2)[0], aggregate, n)
}

// own is the aggregate that only this writer writes to, one transaction after the other.
func (w *propWriter) own() string { return fmt.Sprintf("ordered/%d", w.n) }

// loose is a separate aggregate for each transaction that others overtake.
func (w *propWriter) loose() string {
	w.count++
	return fmt.Sprintf("loose/%d/%d", w.n, w.count)
}

func (w *propWriter) some() int { return 1 + w.rng.IntN(20) }

func (w *propWriter) plain(ctx context.Context) error {
	return do(ctx, w.main, insertion(w.own(), w.some()))
}

// shared inserts into an aggregate of all writers, in the order of their commits.
func (w *propWriter) shared(ctx context.Context) error {
	k := w.rng.IntN(3)
	end := []string{"COMMIT", "COMMIT", "ROLLBACK"}[w.rng.IntN(3)]
	return do(ctx, w.main, "BEGIN", fmt.Sprintf("SELECT pg_advisory_xact_lock(7, %d)", k), insertion(fmt.Sprintf("ordered/shared/%d", k), w.some()), end)
}

func (w *propWriter) rolledBack(ctx context.Context) error {
	return do(ctx, w.main, "BEGIN", insertion(w.own(), w.some()), "ROLLBACK")
}

func (w *propWriter) savepoints(ctx context.Context) error {
	return do(ctx, w.main, "BEGIN", "SAVEPOINT a", insertion(w.own(), w.some()), "ROLLBACK TO a", "SELECT 1",
		"SAVEPOINT b", insertion(w.own(), w.some()), "RELEASE b", "COMMIT")
}

// ahead draws an id some time before it is inserted.
func (w *propWriter) ahead(ctx context.Context) error {
	if err := do(ctx, w.main, "BEGIN"); err != nil {
		return err
	}
	var id int64
	if err := w.main.QueryRow(ctx, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`).Scan(&id); err != nil {
		return err
	}
	for range 2 {
		if err := w.turn(ctx); err != nil {
			return err
		}
	}
	return do(ctx, w.main, fmt.Sprintf(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload) VALUES (%d, 'a', 'ordered', '%s', '1')`, id, w.own()), "COMMIT")
}

func (w *propWriter) drawnOnly(ctx context.Context) error {
	end := []string{"COMMIT", "ROLLBACK"}[w.rng.IntN(2)]
	return do(ctx, w.main, "BEGIN", `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id')) FROM generate_series(1, 5)`, end)
}

func (w *propWriter) copied(ctx context.Context) error {
	rows := strings.Repeat("a\tordered\t"+w.own()+"\t{}\n", w.some())
	_, err := w.main.PgConn().CopyFrom(ctx, strings.NewReader(rows), "COPY outbox_events (event_type, aggregate_type, aggregate_id, payload) FROM STDIN")
	return err
}

// conflicts draws ids for events that already exist.
func (w *propWriter) conflicts(ctx context.Context) error {
	return do(ctx, w.main, "BEGIN", "SET LOCAL notifyd.duplicate = 'ignore'", fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, idempotency_key)
		SELECT 'a', 'ordered', '%s', '1', '%d/' || (i + %d) FROM generate_series(1, 8) i ON CONFLICT DO NOTHING`, w.own(), w.n, w.rng.IntN(30)), "COMMIT")
}

func (w *propWriter) prepare(ctx context.Context) error {
	w.count++
	name := fmt.Sprintf("%d/%d", w.n, w.count)
	if len(w.prepared) >= 5 {
		return w.settle(ctx)
	}
	if err := do(ctx, w.main, "BEGIN", insertion(w.loose(), w.some()), "SAVEPOINT a", insertion(w.loose(), w.some()), "ROLLBACK TO a",
		"PREPARE TRANSACTION '"+name+"'"); err != nil {
		return err
	}
	w.prepared = append(w.prepared, name)
	return nil
}

// settle ends the transaction that was prepared first.
func (w *propWriter) settle(ctx context.Context) error {
	if len(w.prepared) == 0 {
		return nil
	}
	name := w.prepared[0]
	w.prepared = w.prepared[1:]
	return do(ctx, w.main, []string{"COMMIT PREPARED", "ROLLBACK PREPARED"}[w.rng.IntN(2)]+" '"+name+"'")
}

func (w *propWriter) serializable(ctx context.Context) error {
	err := do(ctx, w.main, "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT count(*) FROM (SELECT FROM outbox_events ORDER BY id DESC LIMIT 5) e",
		insertion(w.own(), w.some()), "COMMIT")
	if testdb.SQLState(err) == "40001" { // another one of them was first
		return do(ctx, w.main, "ROLLBACK")
	}
	return err
}

// long opens a transaction that stays open over the next steps, or continues it.
func (w *propWriter) long(ctx context.Context) error {
	if len(w.open) == 0 {
		end := []string{"COMMIT", "COMMIT", "ROLLBACK"}[w.rng.IntN(3)]
		some, later := insertion(w.loose(), w.some()), insertion(w.loose(), w.some())
		w.open = [][]string{
			{"BEGIN", some, "SELECT 1", later, end},
			{"BEGIN", "SAVEPOINT a", some, "ROLLBACK TO a", later, end},
			// Several ids are drawn, and the last of them is inserted later.
			{
				"BEGIN", "CREATE TEMP TABLE ahead ON COMMIT DROP AS SELECT nextval(pg_get_serial_sequence('outbox_events', 'id')) AS id FROM generate_series(1, 3)",
				"SELECT 1", "INSERT INTO outbox_events (id, event_type, payload) SELECT max(id), 'a', '1' FROM ahead", end,
			},
		}[w.rng.IntN(3)]
	}
	n := min(len(w.open), 1+w.rng.IntN(2))
	now := w.open[:n]
	w.open = w.open[n:]
	return do(ctx, w.aside, now...)
}

// large inserts very many at once, after as many that were rolled back.
func (w *propWriter) large(ctx context.Context) error {
	return do(ctx, w.main, "BEGIN", insertion(w.own(), w.bulk/2), "ROLLBACK", insertion(w.own(), w.bulk))
}

// nextDay moves the sequence to the next partition.
func (w *propWriter) nextDay(ctx context.Context) error {
	return do(ctx, w.main, "SELECT outbox_partitions_extend(now() + interval '1 day', 3)")
}

// finish ends the transactions that the writer has left open.
func (w *propWriter) finish(ctx context.Context) error {
	for len(w.prepared) > 0 {
		if err := w.settle(ctx); err != nil {
			return err
		}
	}
	return do(ctx, w.aside, w.open...)
}
