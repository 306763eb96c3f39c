package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/inbox"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// patience bounds each wait of a test on a busy machine.
const patience = 2 * time.Minute

var stock = inbox.Consumer{Name: "stock"}

var errBroken = errors.New("broken")

// effect is a function for Once that leaves a row.
func effect(tx pgx.Tx, c inbox.Consumer, id string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, c.Name, id)
		return err
	}
}

func nothing(context.Context) error { return nil }

func TestOnce(t *testing.T) {
	t.Parallel()
	pool, db := database(t)
	deliver := func(c inbox.Consumer, id string) (ran bool) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			ran, err = inbox.Once(t.Context(), tx, c, id, effect(tx, c, id))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ran
	}
	long := strings.Repeat("é", 512) // 1024 bytes
	other := inbox.Consumer{Name: strings.Repeat("o", 255)}
	for _, id := range []string{"1", "01", " 1", "1 ", "É", "é", long, `'";--`} {
		for _, c := range []inbox.Consumer{stock, other} {
			if !deliver(c, id) || deliver(c, id) || deliver(c, id) {
				t.Errorf("%.10s %.10q was not handled once", c.Name, id)
			}
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM effects`); n != 16 {
		t.Errorf("%d effects", n)
	}
	// The other interface sees the same table.
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for id, want := range map[string]bool{"1": false, "2": true} {
		if ran, err := inbox.OnceSQL(t.Context(), tx, stock, id, nothing); ran != want || err != nil {
			t.Errorf("%s by database/sql: %v, %v", id, ran, err)
		}
	}
	// The same event twice in one transaction.
	if ran, err := inbox.OnceSQL(t.Context(), tx, stock, "2", nothing); ran || err != nil {
		t.Errorf("twice in one transaction: %v, %v", ran, err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	for name, c := range map[string]struct {
		consumer inbox.Consumer
		id       string
		fn       func(context.Context) error
		want     string
	}{
		"no consumer":   {inbox.Consumer{}, "1", nothing, "consumer name is empty"},
		"no id":         {stock, "", nothing, "event id is empty"},
		"long id":       {stock, strings.Repeat("x", 1025), nothing, "has 1025 bytes, at most 1024"},
		"long consumer": {inbox.Consumer{Name: strings.Repeat("x", 256)}, "1", nothing, "has 256 bytes, at most 255"},
		"zero byte":     {stock, "a\x00", nothing, "not text"},
		"not UTF-8":     {stock, "\xff", nothing, "not text"},
		"long schema":   {inbox.Consumer{Name: "a", Schema: strings.Repeat("x", 64)}, "1", nothing, "has 64 bytes, at most 63"},
		"no function":   {stock, "1", nil, "function is nil"},
	} {
		ran, err := inbox.Once(t.Context(), tx, c.consumer, c.id, c.fn)
		if ran || !errors.Is(err, inbox.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, %v", name, ran, err)
		}
	}
	// The transaction is still usable.
	if ran, err := inbox.Once(t.Context(), tx, stock, "1", nothing); !ran || err != nil {
		t.Errorf("afterwards: %v, %v", ran, err)
	}
}

// TestErrorsOfTheDatabase: errors have a code for the program and a cure for people.
func TestErrorsOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	try := func(o pgx.TxOptions, c inbox.Consumer, before string, wantCode, wantText string) {
		t.Helper()
		tx := testdb.Begin(t, pool, o)
		if _, err := tx.Exec(t.Context(), before); (err != nil) != (before == "SELECT 1/0") {
			t.Fatal(err)
		}
		ran, err := inbox.Once(t.Context(), tx, c, "1", func(context.Context) error {
			t.Error("the function was called")
			return nil
		})
		if ran || testdb.SQLState(err) != wantCode || !strings.Contains(fmt.Sprint(err), wantText) {
			t.Errorf("%v, %v: want %s, %s", ran, err, wantCode, wantText)
		}
	}
	try(pgx.TxOptions{AccessMode: pgx.ReadOnly}, stock, "SELECT 1", "25006", "use a writable one")
	try(pgx.TxOptions{}, stock, "SELECT 1/0", "25P02", "roll it back")
	try(pgx.TxOptions{}, inbox.Consumer{Name: "a", Schema: `odd "one`}, "SELECT 1", "42P01", "inbox.Create")
	try(pgx.TxOptions{}, stock, "CREATE ROLE nobody_"+strings.ToLower(t.Name())+"; SET LOCAL ROLE nobody_"+strings.ToLower(t.Name()), "42501", "grant INSERT")
}

func TestOtherSchema(t *testing.T) {
	t.Parallel()
	pool, db := database(t)
	const schema = `odd "one; :schema`
	if err := inbox.Create(t.Context(), pool, schema); testdb.SQLState(err) != "3F000" {
		t.Errorf("a schema that is not there: %v", err)
	}
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA `+pgx.Identifier{schema}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	// Programs that start together.
	errs := make(chan error)
	for i := range 8 {
		go func() {
			if i%2 == 0 {
				errs <- inbox.Create(t.Context(), pool, schema)
			} else {
				errs <- inbox.CreateSQL(t.Context(), db, schema)
			}
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	if ran, err := inbox.Once(t.Context(), tx, inbox.Consumer{Name: "stock", Schema: schema}, "1", nothing); !ran || err != nil {
		t.Errorf("%v, %v", ran, err)
	}
}

// TestFailure: the note is removed, and the rest of the transaction stays.
func TestFailure(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	for name, fn := range map[string]func(context.Context) error{
		"error":   func(context.Context) error { return errBroken },
		"panic":   func(context.Context) error { panic("broken") },
		"goexit":  func(context.Context) error { runtime.Goexit(); return nil },
		"timeout": func(context.Context) error { return context.DeadlineExceeded },
	} {
		tx := testdb.Begin(t, pool, pgx.TxOptions{})
		if _, err := tx.Exec(t.Context(), `INSERT INTO effects VALUES ('before', $1)`, name); err != nil {
			t.Fatal(err)
		}
		// The context is done when fn returns: the note is removed all the same.
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { _ = recover() }()
			ran, err := inbox.Once(ctx, tx, stock, name, func(ctx context.Context) error {
				cancel()
				return fn(ctx)
			})
			if !ran || !errors.Is(err, fn(ctx)) {
				t.Errorf("%s: %v, %v", name, ran, err)
			}
		})
		wg.Wait()
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("%s: the caller cannot commit: %v", name, err)
		}
		if n := count(t, pool, `SELECT count(*) FROM inbox_events WHERE event_id = $1`, name); n != 0 {
			t.Errorf("%s: the event is noted", name)
		}
		if n := count(t, pool, `SELECT count(*) FROM effects WHERE event_id = $1`, name); n != 1 {
			t.Errorf("%s: the caller's own work is gone", name)
		}
	}
}

// TestStatementFails: the error is that of fn alone, and nothing is committed.
func TestStatementFails(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	ran, err := inbox.Once(t.Context(), tx, stock, "1", func(ctx context.Context) error {
		_, err := tx.Exec(ctx, `SELECT 1/0`)
		return err
	})
	if !ran || testdb.SQLState(err) != "22012" || strings.Contains(err.Error(), "could not be removed") {
		t.Errorf("%v, %v", ran, err)
	}
	if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("commit: %v", err)
	}
	if n := count(t, pool, `SELECT count(*) FROM inbox_events`); n != 0 {
		t.Error("the event is noted")
	}
}

// TestNoteThatStays: the caller gets an error if the note cannot be removed.
func TestNoteThatStays(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	var rows pgx.Rows
	_, err := inbox.Once(t.Context(), tx, stock, "1", func(ctx context.Context) (err error) {
		if rows, err = tx.Query(ctx, `SELECT generate_series(1, 100000)`); err != nil { //nolint:sqlclosecheck // that is what is tested
			t.Error(err)
		}
		return errBroken // with unread rows
	})
	rows.Close()
	if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "could not be removed, roll back") {
		t.Errorf("got %v", err)
	}
}

// TestNested: a nested transaction lets a caller continue after a failure.
func TestNested(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	for _, id := range []string{"1", "2", "1"} {
		err := pgx.BeginFunc(t.Context(), tx, func(nested pgx.Tx) error {
			_, err := inbox.Once(t.Context(), nested, stock, id, func(ctx context.Context) error {
				if err := effect(nested, stock, id)(ctx); err != nil || id == "2" {
					return errors.Join(err, errBroken)
				}
				return nil
			})
			return err
		})
		if (err != nil) != (id == "2") {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool, `SELECT count(*) FROM effects WHERE event_id = '1'`); n != 1 || n != count(t, pool, `SELECT count(*) FROM effects`) {
		t.Errorf("%d effects of event 1", n)
	}
}

// TestSecondWaits: the second delivery waits for the first to end, and follows its outcome.
func TestSecondWaits(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, c := range map[string]struct {
		level    pgx.TxIsoLevel
		commit   bool
		wantRan  bool
		wantCode string
	}{
		"committed":               {pgx.ReadCommitted, true, false, ""},
		"rolled back":             {pgx.ReadCommitted, false, true, ""},
		"repeatable, committed":   {pgx.RepeatableRead, true, false, "40001"},
		"repeatable, rolled back": {pgx.RepeatableRead, false, true, ""},
		"serial, committed":       {pgx.Serializable, true, false, "40001"},
		"serial, rolled back":     {pgx.Serializable, false, true, ""},
	} {
		first, second := testdb.Begin(t, pool, pgx.TxOptions{IsoLevel: c.level}), testdb.Begin(t, pool, pgx.TxOptions{IsoLevel: c.level})
		if ran, err := inbox.Once(ctx, first, stock, name, nothing); !ran || err != nil {
			t.Fatalf("%s: the first: %v, %v", name, ran, err)
		}
		type outcome struct {
			ran bool
			err error
		}
		got := make(chan outcome)
		go func() {
			ran, err := inbox.Once(ctx, second, stock, name, nothing)
			got <- outcome{ran, err}
		}()
		// The second waits for the transaction of the first.
		for pid := second.Conn().PgConn().PID(); count(t, pool, `SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1`, pid) == 0; {
			if ctx.Err() != nil {
				t.Fatalf("%s: the second does not wait", name)
			}
		}
		end := first.Rollback
		if c.commit {
			end = first.Commit
		}
		if err := end(ctx); err != nil {
			t.Fatal(err)
		}
		if o := <-got; o.ran != c.wantRan || testdb.SQLState(o.err) != c.wantCode || (o.err != nil) != (c.wantCode != "") {
			t.Errorf("%s: the second: %v, %v", name, o.ran, o.err)
		}
		if err := second.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWaitEnds: neither ctx nor lock_timeout waits for the other transaction.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	pool, db := database(t)
	if ran, err := inbox.Once(t.Context(), testdb.Begin(t, pool, pgx.TxOptions{}), stock, "1", nothing); !ran || err != nil {
		t.Fatal(ran, err)
	}
	second := testdb.Begin(t, pool, pgx.TxOptions{})
	if _, err := second.Exec(t.Context(), `SET LOCAL lock_timeout = '10ms'`); err != nil {
		t.Fatal(err)
	}
	if ran, err := inbox.Once(t.Context(), second, stock, "1", nothing); ran || testdb.SQLState(err) != "55P03" {
		t.Errorf("lock_timeout: %v, %v", ran, err)
	}
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if ran, err := inbox.OnceSQL(ctx, tx, stock, "1", nothing); ran || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ctx: %v, %v", ran, err)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	pool, db := database(t)
	fill := func() {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `TRUNCATE inbox_events`); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `INSERT INTO inbox_events SELECT 'stock', n::text, now() - n * interval '1 hour' FROM generate_series(0, 99) n`); err != nil {
			t.Fatal(err)
		}
	}
	left := func(want int) {
		t.Helper()
		if n := count(t, pool, `SELECT count(*) FROM inbox_events`); n != want {
			t.Errorf("%d rows are left, want %d", n, want)
		}
	}
	fill()
	if n, done, err := inbox.Purge(t.Context(), pool, inbox.Retention{}); n != 0 || !done || err != nil {
		t.Errorf("with the defaults: %d, %v, %v", n, done, err)
	}
	const keep = 90*time.Hour - 30*time.Minute // 90 to 99 are older
	if n, done, err := inbox.Purge(t.Context(), pool, inbox.Retention{Keep: keep, Batch: 3}); n != 10 || !done || err != nil {
		t.Errorf("in batches: %d, %v, %v", n, done, err)
	}
	left(90)
	// A budget is checked after each batch; the oldest rows go first.
	fill()
	if n, done, err := inbox.PurgeSQL(t.Context(), db, inbox.Retention{Keep: keep, Batch: 3, Budget: 1}); n != 3 || done || err != nil {
		t.Errorf("with a budget: %d, %v, %v", n, done, err)
	}
	if n := count(t, pool, `SELECT max(event_id::int) FROM inbox_events`); n != 96 {
		t.Errorf("the oldest that is left is %d", n)
	}
	// Rows that another purge is removing are skipped.
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	if _, err := tx.Exec(t.Context(), `DELETE FROM inbox_events WHERE event_id = '96'`); err != nil {
		t.Fatal(err)
	}
	if n, done, err := inbox.Purge(t.Context(), pool, inbox.Retention{Keep: keep}); n != 6 || !done || err != nil {
		t.Errorf("next to another purge: %d, %v, %v", n, done, err)
	}
	for _, r := range []inbox.Retention{{Keep: -1}, {Keep: 1}, {Batch: -1}, {Batch: 100_001}, {Budget: -1}, {Schema: "\x00"}} {
		if _, _, err := inbox.Purge(t.Context(), pool, r); !errors.Is(err, inbox.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, _, err := inbox.Purge(t.Context(), pool, inbox.Retention{Schema: "nowhere"}); testdb.SQLState(err) != "42P01" {
		t.Errorf("no table: %v", err)
	}
}
