//go:generate go run entgo.io/ent/cmd/ent@v0.14.5 generate --feature sql/execquery --target ent ./schema

package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/uptrace/bun"
	"gorm.io/gorm"

	"github.com/notifyd/notifyd/integration/writers/go/ent"
	"github.com/notifyd/notifyd/integration/writers/go/sqlcorders"
	"github.com/notifyd/notifyd/observe/oteltrace"
	"github.com/notifyd/notifyd/outbox"
)

// Order is a row of the table orders, and the payload of its event.
type Order struct {
	ID    int64   `json:"id"`
	Email string  `json:"email"`
	Total float64 `json:"total"`
}

func event(order Order) outbox.Event {
	return outbox.Event{Type: "order.placed", AggregateType: "order", AggregateID: strconv.FormatInt(order.ID, 10), Payload: order}
}

func withGORM(ctx context.Context, db *gorm.DB, order Order) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&order).Error; err != nil {
			return err
		}
		query, args, err := outbox.Statement(outbox.DefaultSchema, oteltrace.Events(ctx, event(order))...)
		if err != nil {
			return err
		}
		return tx.Exec(query, args...).Error
	})
}

func withBun(ctx context.Context, db *bun.DB, order Order) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&order).Exec(ctx); err != nil {
			return err
		}
		return oteltrace.WriteSQL(ctx, tx.Tx, event(order)) // the *sql.Tx: bun reads ? as a placeholder, and $1 as text
	})
}

func withSQLC(ctx context.Context, pool *pgxpool.Pool, order Order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := sqlcorders.New(tx).CreateOrder(ctx, sqlcorders.CreateOrderParams{ID: order.ID, Email: order.Email, Total: order.Total})
		if err != nil {
			return err
		}
		return oteltrace.Write(ctx, tx, event(order))
	})
}

func withEnt(ctx context.Context, client *ent.Client, order Order) (err error) {
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	if err := tx.Order.Create().SetID(order.ID).SetEmail(order.Email).SetTotal(order.Total).Exec(ctx); err != nil {
		return err
	}
	if err := oteltrace.WriteSQL(ctx, tx, event(order)); err != nil {
		return err
	}
	return tx.Commit()
}
