package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/outbox"
)

// An order and its event are committed together, or not at all.
func ExampleWrite() {
	ctx := context.Background()
	createOrder := func(tx pgx.Tx, id string) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, outbox.Event{
			Type:          "order.created",
			Payload:       map[string]string{"id": id},
			AggregateType: "order",
			AggregateID:   id,
		})
	}
	// In a program: pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return createOrder(tx, "1042") })
	if err := createOrder(showPgx{}, "1042"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// INSERT INTO orders (id) VALUES ($1)
	// INSERT INTO "public".outbox_events ... order.created {"id":"1042"}
}

// The same with database/sql, and an event that leaves in an hour.
func ExampleWriteSQL() {
	ctx := context.Background()
	remind := func(tx outbox.SQLTx, customer string) error { // a *sql.Tx
		return outbox.WriteSQL(ctx, tx, outbox.Event{
			Type:           "cart.abandoned",
			Payload:        json.RawMessage(`{"customer": "` + customer + `"}`),
			AvailableAt:    time.Now().Add(time.Hour),
			IdempotencyKey: customer, // at most one reminder
		})
	}
	if err := remind(showSQL{}, "zoe"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// INSERT INTO "public".outbox_events ... cart.abandoned {"customer": "zoe"}
}

// Any ORM that runs SQL with placeholders works, within its own transaction.
func ExampleStatement() {
	query, args, err := outbox.Statement("public", outbox.Event{
		Type:    "order.created",
		Payload: json.RawMessage(`{"id": 1042}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// db.Transaction(func(tx *gorm.DB) error { return tx.Exec(query, args...).Error })
	fmt.Println(query[:41], args[0], args[len(args)-1])
	// Output:
	// INSERT INTO "public".outbox_events (event order.created {"id": 1042}
}

// An event whose key exists already can be skipped without an error. The query
// then returns the number of events written.
func ExampleStatement_ignoreDuplicate() {
	query, args, err := outbox.Statement("public", outbox.Event{
		Type:            "invoice.due",
		Payload:         json.RawMessage(`{"invoice": 7}`),
		IdempotencyKey:  "invoice-7",
		IgnoreDuplicate: true, // otherwise a second one fails, and aborts the transaction
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// err = tx.QueryRow(ctx, query, args...).Scan(&written)
	fmt.Println(strings.Contains(query, "ON CONFLICT DO NOTHING"), args[0], args[3])
	// Output:
	// true invoice.due invoice-7
}

// orderCreated is an event with a payload that is not JSON.
func orderCreated(id int64, encoded []byte) outbox.Event {
	return outbox.Event{
		Type: "order.created", AggregateType: "order", AggregateID: strconv.FormatInt(id, 10),
		Payload: encoded, ContentType: "application/x-protobuf", // of proto.Marshal, for example
	}
}

// Bytes with a content type are stored as they are.
func ExampleEvent_contentType() {
	query, args, err := outbox.Statement("public", orderCreated(1042, []byte{8, 146, 8}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Contains(query, "payload_bytes"), args[6], args[8])
	// Output:
	// true application/x-protobuf [8 146 8]
}

// An event that cannot be stored is refused before anything is sent, and the
// error says what to change.
func ExampleStatement_invalid() {
	_, _, err := outbox.Statement("public",
		outbox.Event{Type: "order.created", Payload: 1},
		outbox.Event{Type: "order *", Payload: []byte(`{}`)},
	)
	fmt.Println(err)
	// Output:
	// event 1: invalid event: payload is a []byte: convert it to json.RawMessage if it is JSON, or set the content type
	// type "order *" contains white space or '*'
}

// showPgx is a transaction that prints its statements.
type showPgx struct{ pgx.Tx }

func (showPgx) Exec(_ context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	show(query, args)
	return pgconn.CommandTag{}, nil
}

// showSQL is showPgx for database/sql.
type showSQL struct{ outbox.SQLTx }

func (showSQL) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	show(query, args)
	return nil, nil
}

func show(query string, args []any) {
	if len(args) == 1 {
		fmt.Println(query)
		return
	}
	fmt.Println(query[:34], "...", args[0], args[len(args)-1])
}
