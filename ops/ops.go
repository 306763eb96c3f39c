package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrInvalid is wrapped by errors about invalid arguments.
var ErrInvalid = errors.New("invalid argument")

// ErrNoEvent is wrapped by the error about an event that no table knows.
var ErrNoEvent = errors.New("there is no such event")

// DB is the database of a [Client]: *pgxpool.Pool, *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Config configures a [Client]. The zero value is for the schema "public" and a relay that keeps
// delivered events.
type Config struct {
	// Schema holds the tables; empty means "public".
	Schema string
	// DeleteEvents deletes an event when its last dead letter is discarded, as
	// relays do that keep no delivered events (retention.keep: 0). Others mark
	// it done, and delete it when it is old enough. An event of a stream that a
	// position has not passed yet is never deleted, and none is marked.
	DeleteEvents bool
	// ReportTo returns the destination that receives a report of each dead letter of a destination, empty for none: see
	// [delivery.OnDead]. [Client.BuryWaiting] calls it; nil for no reports.
	ReportTo func(destination string) string
	// Paused is called after a pause of a destination is stored, with true, and after its end, with false; nil for nothing. A
	// relay of the same process sets it, to honour pauses at once.
	Paused func(destination string, is bool)
}

// Client reads and changes the tables of an outbox while relays run. It is as safe for concurrent use as its database,
// and has nothing to close.
type Client struct {
	db     DB
	cfg    Config
	tables *strings.Replacer
}

// New returns a client on db. It does not connect. The database must have the
// newest schema (see outboxsql.Check); the caller closes it. The error wraps [ErrInvalid].
func New(db DB, cfg Config) (*Client, error) {
	if cfg.Schema == "" {
		cfg.Schema = outboxsql.DefaultSchema
	}
	if err := pgschema.Validate(cfg.Schema); err != nil {
		return nil, fmt.Errorf("ops: %w: %w", ErrInvalid, err)
	}

	var names []string
	for _, table := range []string{
		"deliveries", "events", "audit", "mode", "positions", "replays", "routes", "pauses", "place", "last_id",
	} {
		names = append(names, "{"+table+"}", pgx.Identifier{cfg.Schema, "outbox_" + table}.Sanitize())
	}

	return &Client{db: db, cfg: cfg, tables: strings.NewReplacer(names...)}, nil
}

// sql inserts the names of the tables into a statement.
func (s *Client) sql(text string) string { return s.tables.Replace(text) }

// Adopt makes the place of the tables the home of the outbox: relays deliver from a copy after this. See [outboxsql.ErrCopy].
// An outbox at home stays as it is. Refused relays must be started again; a daemon with many outboxes retries. The role of the
// database must own the tables.
//
// With discard, Adopt first discards all waiting events, while no relay delivers: events written until then count as
// delivered, retries are deleted, positions move to the end, and replays stop. Dead letters stay. One transaction discards up
// to 1,000 rows: after an error, or the end of ctx, the outbox is still a copy, and the call may be repeated. The error wraps
// [ErrHome] if the outbox is at home.
func (s *Client) Adopt(ctx context.Context, discard bool, a Action) (Adoption, error) {
	return adopter{s}.adopt(ctx, discard, a)
}

// Action names the person who acts, and the reason.
type Action struct {
	// Actor is the person who acts, for the audit; empty means the database's user.
	Actor string
	// Reason goes into the audit; it may be empty.
	Reason string
	// DryRun returns the planned changes, and changes nothing.
	DryRun bool
}

func (a Action) validate() error {
	if strings.ContainsRune(a.Actor+a.Reason, 0) {
		return fmt.Errorf("%w: the actor or the reason contains a zero byte", ErrInvalid)
	}
	return nil
}

// record writes an operator's action to the audit. eventID is nil for an action that concerns no single event; details
// become JSON.
func (s *Client) record(ctx context.Context, tx pgx.Tx, a Action, action string, eventID *int64, destination string, details any) error {
	text, err := json.Marshal(details)
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, s.sql(`INSERT INTO {audit} (actor, action, event_id, destination, details)
		VALUES (coalesce(nullif($1::text, ''), session_user), $2, $3, $4, $5::text::jsonb)`),
		a.Actor, action, eventID, destination, string(text))
	return err
}
