package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/store"
)

// publishFlags are the flags of "notifyd publish".
type publishFlags struct {
	db        databaseFlags
	aggregate string
	headers   []string
	key       string
	delay     time.Duration
}

func newPublishCmd(a *app) *cobra.Command {
	var f publishFlags
	cmd := &cobra.Command{
		Use:   "publish TYPE [PAYLOAD]",
		Short: "Insert an event, to try things out",
		Long: `publish inserts one event into outbox_events and prints its id. PAYLOAD is JSON,
@FILE reads it from a file and - from standard input; without it the payload is {}.`,
		Example: `  notifyd publish order.created '{"order": 1042, "email": "ann@example.com"}' --aggregate order/1042
  notifyd publish order.created @order.json --header traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			payload := "{}"
			if len(args) == 2 {
				payload = args[1]
			}
			event, err := f.event(args[0], payload, cmd.InOrStdin())
			if err != nil {
				return err
			}
			id, err := publish(cmd.Context(), a, &f.db, event)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		},
	}
	f.db.register(cmd)
	cmd.Flags().StringVar(&f.aggregate, "aggregate", "", "what the event is about, as `TYPE/ID`")
	cmd.Flags().StringArrayVar(&f.headers, "header", nil, "header as `NAME=VALUE`; may be repeated")
	cmd.Flags().StringVar(&f.key, "idempotency-key", "", "refuse the event if there is one of its type with this `key`")
	cmd.Flags().DurationVar(&f.delay, "delay", 0, "deliver after this time")
	return cmd
}

func (f *publishFlags) event(eventType, payload string, stdin io.Reader) (outbox.Event, error) {
	e := outbox.Event{Type: eventType, IdempotencyKey: f.key}
	text, err := readPayload(payload, stdin)
	if err != nil {
		return e, err
	}
	if eventType == "" {
		return e, usageErrorf("TYPE is empty: name the event, such as order.created")
	}
	if !json.Valid(text) {
		return e, usageErrorf("PAYLOAD is not JSON: put it in single quotes, or write it to a file and give @FILE")
	}
	e.Payload = json.RawMessage(text)
	if f.aggregate != "" {
		var ok bool
		if e.AggregateType, e.AggregateID, ok = strings.Cut(f.aggregate, "/"); !ok {
			return e, usageErrorf("--aggregate %q is not TYPE/ID", f.aggregate)
		}
	}
	for _, header := range f.headers {
		name, value, ok := strings.Cut(header, "=")
		if !ok {
			return e, usageErrorf("--header %q is not NAME=VALUE", header)
		}
		if e.Headers == nil {
			e.Headers = make(map[string]string)
		}
		e.Headers[name] = value
	}
	if f.delay < 0 {
		return e, usageErrorf("--delay %v is negative", f.delay)
	}
	if f.delay > 0 {
		e.AvailableAt = time.Now().Add(f.delay)
	}
	if _, _, err := outbox.Statement(outbox.DefaultSchema, e); err != nil {
		return e, usageErrorf("%s", strings.TrimPrefix(err.Error(), "event 0: ")) // there is but one
	}
	return e, nil
}

func readPayload(arg string, stdin io.Reader) ([]byte, error) {
	switch path, isFile := strings.CutPrefix(arg, "@"); {
	case arg == "-":
		return io.ReadAll(stdin)
	case isFile:
		return os.ReadFile(path)
	default:
		return []byte(arg), nil
	}
}

// publish inserts the event in a transaction of its own and returns its id.
func publish(ctx context.Context, a *app, db *databaseFlags, e outbox.Event) (id int64, err error) {
	conn, err := db.connect(ctx, a)
	if err != nil {
		return 0, err
	}
	defer store.Close(ctx, conn)
	query, args, err := outbox.Statement(db.schema, e)
	if err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, query+" RETURNING id", args...).Scan(&id)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch refused.Code {
		case "42P01", "3F000": // no such table or schema
			return 0, fmt.Errorf("schema %s has no outbox_events: run `notifyd migrate up` first", db.schema)
		case "23505":
			return 0, fmt.Errorf("there is an event of type %q with the idempotency key %q already", e.Type, e.IdempotencyKey)
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errors.New("the event was not inserted")
	}
	return id, err
}
