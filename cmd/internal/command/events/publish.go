package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/outbox"
)

// publishFlags are the flags of "notifyd publish".
type publishFlags struct {
	db        command.DatabaseFlags
	aggregate string
	headers   []string
	key       string
	ignore    bool
	delay     command.Duration
	kind      string // content type
}

// NewPublish returns the command publish.
func NewPublish(a *command.App) *cobra.Command {
	var f publishFlags
	var form *cli.OneOf

	cmd := &cobra.Command{
		Use:   "publish TYPE [PAYLOAD]",
		Short: "Insert an event, to try things out",
		Long: `publish inserts one event into outbox_events and prints its id. PAYLOAD is JSON,
@FILE reads it from a file and - from standard input; without it the payload is {}.
With a --content-type other than JSON it is any bytes, which are stored as they are.

With --ignore-duplicate an event whose idempotency key exists already is not an error:
nothing is written, no id is printed, and standard error names the event that has the key.`,
		Example: `  notifyd publish order.created '{"order": 1042, "email": "ann@example.com"}' --aggregate order/1042
  notifyd publish order.created @order.json --header traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
  notifyd publish order.created @order.pb --content-type application/x-protobuf`,
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

			progress := command.StartProgress(cmd, command.Connecting)
			defer progress.Stop()

			id, err := publish(cmd.Context(), a, &f.db, event)
			held, isHeld := errors.AsType[*keyHeldError](err)
			isDuplicate := isHeld && f.ignore
			if isDuplicate {
				id = held.id
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "notifyd: nothing was written: %v\n", held)
			}

			switch {
			case err != nil:
				return err
			case form.Value == "json":
				return command.WriteJSON(cmd.OutOrStdout(), Published{EventID: id, Duplicate: isDuplicate})
			case !isDuplicate:
				_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		},
	}

	f.db.Register(cmd)
	form = command.AddFormat(cmd)
	command.AddAggregate(cmd, &f.aggregate)
	cmd.Flags().StringArrayVar(&f.headers, "header", nil, "header as `NAME=VALUE`; may be repeated")
	cmd.Flags().StringVar(&f.kind, "content-type", "", "media `type` of the payload, such as application/x-protobuf (application/json by default)")
	cmd.Flags().StringVar(&f.key, "idempotency-key", "", "refuse the event if there is one of its type with this `key`")
	cmd.Flags().BoolVar(&f.ignore, "ignore-duplicate", false, "write nothing, and do not fail, if there is an event with the idempotency key")
	cmd.Flags().Var(&f.delay, "delay", "deliver after this `duration`: 30s, 10m, 2d")

	return cmd
}

func (f *publishFlags) event(eventType, payload string, stdin io.Reader) (outbox.Event, error) {
	e := outbox.Event{Type: eventType, ContentType: f.kind, IdempotencyKey: f.key, IgnoreDuplicate: f.ignore}

	text, err := command.ReadPayload(payload, stdin)
	if err != nil {
		return e, err
	}

	if eventType == "" {
		return e, command.UsageErrorf("TYPE is empty: name the event, such as order.created")
	}

	switch isJSON := (&delivery.Event{ContentType: f.kind}).IsJSON(); {
	case !isJSON:
		e.Payload = text
	case !json.Valid(text):
		return e, command.UsageErrorf("PAYLOAD is not JSON: put it in single quotes, or write it to a file and give @FILE; " +
			"for other payloads set --content-type")
	default:
		e.Payload = json.RawMessage(text)
	}

	if f.ignore && f.key == "" {
		return e, command.UsageErrorf("--ignore-duplicate needs --idempotency-key: nothing is a duplicate without one")
	}

	if f.aggregate != "" {
		aggregateType, aggregateID, isPair := strings.Cut(f.aggregate, "/")
		if !isPair {
			return e, command.UsageErrorf("--aggregate %q is not TYPE/ID", f.aggregate)
		}
		e.AggregateType = aggregateType
		e.AggregateID = aggregateID
	}

	for _, header := range f.headers {
		name, value, ok := strings.Cut(header, "=")
		if !ok {
			return e, command.UsageErrorf("--header %q is not NAME=VALUE", header)
		}
		if e.Headers == nil {
			e.Headers = make(map[string]string)
		}
		e.Headers[name] = value
	}

	if f.delay > 0 {
		e.AvailableAt = time.Now().Add(time.Duration(f.delay))
	}

	if _, _, err := outbox.Statement(outbox.DefaultSchema, e); err != nil {
		return e, command.UsageErrorf("%s", strings.TrimPrefix(err.Error(), "event 0: ")) // there is but one
	}
	return e, nil
}

// Published is the result of publish as JSON.
type Published struct {
	// EventID is the id of the new event, or of the one that has the idempotency key. It is 0 if the role may not read that one.
	EventID int64 `json:"event_id"`
	// Duplicate reports that nothing was written.
	Duplicate bool `json:"duplicate"`
}

// keyHeldError is returned where an event of the type has the idempotency key.
type keyHeldError struct {
	eventType, key string
	id             int64 // of the event that has it; 0: not looked up
}

func (e *keyHeldError) Error() string {
	who := "there is an event"
	if e.id != 0 {
		who = fmt.Sprintf("event %d is", e.id)
	}
	return fmt.Sprintf("%s of type %q with the idempotency key %q already", who, e.eventType, e.key)
}

// publish inserts the event in its own transaction and returns its id.
func publish(ctx context.Context, a *command.App, db *command.DatabaseFlags, e outbox.Event) (id int64, err error) {
	conn, err := db.Connect(ctx, a)
	if err != nil {
		return 0, err
	}
	defer store.Close(ctx, conn)

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// A writer's policies apply.
		_, err := tx.Exec(ctx, `SET LOCAL row_security = on`)
		if err != nil {
			return err
		}

		id, err = insert(ctx, tx, db.Schema, e)
		return err
	})

	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch refused.Code {
		case "42P01", "3F000": // no such table or schema
			return 0, pgschema.MissingTables(ctx, conn, db.Schema)
		case "23505":
			return 0, &keyHeldError{eventType: e.Type, key: e.IdempotencyKey}
		}
	}

	return id, err
}

// insert returns the id of the event, or a keyHeldError where a duplicate was ignored.
func insert(ctx context.Context, tx pgx.Tx, schema string, e outbox.Event) (id int64, err error) {
	ignore := e.IgnoreDuplicate
	e.IgnoreDuplicate = false // the statement for that returns no id

	query, args, err := outbox.Statement(schema, e)
	if err != nil {
		return 0, err
	}

	if ignore {
		_, err = tx.Exec(ctx, `SET LOCAL notifyd.duplicate = 'ignore'`)
		if err != nil {
			return 0, err
		}
		query += " ON CONFLICT DO NOTHING"
	}

	err = tx.QueryRow(ctx, query+" RETURNING id", args...).Scan(&id)
	if !errors.Is(err, pgx.ErrNoRows) {
		return id, err
	}

	if ignore {
		err = tx.QueryRow(ctx, `SELECT id FROM `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+
			` WHERE event_type = $1 AND idempotency_key = $2`, e.Type, e.IdempotencyKey).Scan(&id)
		if err == nil {
			return 0, &keyHeldError{e.Type, e.IdempotencyKey, id}
		}

		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == command.InsufficientPrivilege {
			return 0, &keyHeldError{e.Type, e.IdempotencyKey, 0} // a writer may not read keys
		}

		if !errors.Is(err, pgx.ErrNoRows) {
			return 0, err
		}
	}

	return 0, errors.New("the event was not inserted: look for a trigger or rule of your own on outbox_events")
}
