// Command go writes an order with each Go program of docs/writers.md into each database of the command line. One order
// commits. Another one fails at its commit, because its e-mail address is invalid.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"go.opentelemetry.io/otel/trace"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/notifyd/notifyd/integration/writers/go/ent"
)

func main() {
	ctx := context.Background() //nolint:forbidigo // a program's root
	for _, url := range os.Args[1:] {
		if err := run(ctx, url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// run writes into one database, with the pool of pgx and that of database/sql.
func run(ctx context.Context, url string) error {
	span := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36},
		SpanID:  trace.SpanID{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}, TraceFlags: trace.FlagsSampled,
	})

	ctx = trace.ContextWithSpanContext(ctx, span)
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()

	db := stdlib.OpenDBFromPool(pool)
	err = errors.Join(
		viaSQL(ctx, db),
		placeBoth(3, "sqlc", func(o Order) error { return withSQLC(ctx, pool, o) }),
		placeBoth(4, "ent", func(o Order) error {
			return withEnt(ctx, ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db))), o)
		}),
	)
	return errors.Join(err, db.Close())
}

func viaSQL(ctx context.Context, db *sql.DB) error {
	g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}

	return errors.Join(
		placeBoth(1, "gorm", func(o Order) error { return withGORM(ctx, g, o) }),
		placeBoth(2, "bun", func(o Order) error { return withBun(ctx, bun.NewDB(db, pgdialect.New()), o) }),
	)
}

// placeBoth has place commit one order, and fail with another one.
func placeBoth(number int64, name string, place func(Order) error) error {
	if err := place(Order{number, name + "@example.com", 12.5}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err := place(Order{number + 100, name, 12.5})
	if err == nil {
		return fmt.Errorf("%s commits an order that the database refuses", name)
	}

	if !strings.Contains(err.Error(), "no address") {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
