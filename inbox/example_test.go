package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/notifyd/notifyd/inbox"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// reserve takes one item from the shelf for an order, once.
func reserve(ctx context.Context, pool *pgxpool.Pool, eventID, item string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := inbox.Once(ctx, tx, inbox.Consumer{Name: "stock"}, eventID, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = $1`, item)
			return err
		})
		return err // acknowledge the event if it is nil
	})
}

// A broker delivers an event three times, and the shelf has one piece less.
func ExampleOnce() {
	ctx := context.Background()
	pool := shelf(ctx)
	defer pool.Close()
	if err := inbox.Create(ctx, pool, inbox.DefaultSchema); err != nil {
		panic(err)
	}
	for range 3 {
		if err := reserve(ctx, pool, "1042", "lamp"); err != nil {
			panic(err)
		}
	}
	var pieces int
	if err := pool.QueryRow(ctx, `SELECT pieces FROM stock`).Scan(&pieces); err != nil {
		panic(err)
	}
	fmt.Println(pieces, "of 10")
	// Output:
	// 9 of 10
}

// eventBehind returns the id of the event of a delivery: "42" for "42" and for its replays
// "42r1" and "42r2".
func eventBehind(deliveryID string) string {
	event, _, _ := strings.Cut(deliveryID, "r")
	return event
}

// Event 42 is delivered twice, and replayed twice. A consumer that keys by the id of the
// delivery handles each replay; a consumer that keys by the event handles the event once.
func ExampleOnce_replay() {
	ctx := context.Background()
	pool := shelf(ctx)
	defer pool.Close()
	if err := inbox.Create(ctx, pool, inbox.DefaultSchema); err != nil {
		panic(err)
	}
	handle := func(consumer, id string) (ran bool) {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			ran, err = inbox.Once(ctx, tx, inbox.Consumer{Name: consumer}, id, func(context.Context) error { return nil })
			return err
		})
		if err != nil {
			panic(err)
		}
		return ran
	}
	for _, id := range []string{"42", "42", "42r1", "42r1", "42r2"} {
		fmt.Printf("%-4s handled by the mailer: %-5t  by the payments: %t\n", id, handle("mailer", id), handle("payments", eventBehind(id)))
	}
	// Output:
	// 42   handled by the mailer: true   by the payments: true
	// 42   handled by the mailer: false  by the payments: false
	// 42r1 handled by the mailer: true   by the payments: false
	// 42r1 handled by the mailer: false  by the payments: false
	// 42r2 handled by the mailer: true   by the payments: false
}

// The same as ExampleOnce, with database/sql.
func ExampleOnceSQL() {
	ctx := context.Background()
	pool := shelf(ctx)
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool) // or sql.Open with any driver for PostgreSQL
	defer db.Close()                  //nolint:errcheck // the pool is closed after it
	if err := inbox.CreateSQL(ctx, db, inbox.DefaultSchema); err != nil {
		panic(err)
	}
	handle := func(eventID string) (ran bool, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer tx.Rollback() //nolint:errcheck // nothing to roll back after a commit
		ran, err = inbox.OnceSQL(ctx, tx, inbox.Consumer{Name: "stock"}, eventID, func(ctx context.Context) error {
			return take(ctx, tx)
		})
		if err != nil {
			return ran, err
		}
		return ran, tx.Commit()
	}
	for range 2 {
		ran, err := handle("1042")
		fmt.Println(ran, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// Removes notes that are older than any redelivery can be, a thousand rows at a time.
func ExamplePurge() {
	ctx := context.Background()
	pool := shelf(ctx)
	defer pool.Close()
	if err := inbox.Create(ctx, pool, inbox.DefaultSchema); err != nil {
		panic(err)
	}
	removed, done, err := inbox.Purge(ctx, pool, inbox.Retention{Keep: 14 * 24 * time.Hour})
	fmt.Println(removed, done, err)
	// Output:
	// 0 true <nil>
}

func take(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'`)
	return err
}

// shelf returns a database with ten lamps.
func shelf(ctx context.Context) *pgxpool.Pool {
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err != nil {
		panic(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE stock AS SELECT 'lamp' AS item, 10 AS pieces`); err != nil {
		panic(err)
	}
	return pool
}
