package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// maxPauseText bounds each text of a pause, in bytes.
const maxPauseText = 1000

// Execer runs a statement: a connection, a pool or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// CheckPause returns an error for texts of a pause that cannot be stored.
func CheckPause(destination string, p observe.Pause) error {
	for _, text := range []string{destination, p.By, p.Reason} {
		if len(text) > maxPauseText || strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return fmt.Errorf("%.20q is longer than %d bytes, or not UTF-8 text without zero bytes", text, maxPauseText)
		}
	}
	return nil
}

// SetPause pauses a destination for all relays. If it is already paused, a new reason replaces the stored reason and author;
// without a reason both stay. The database sets the time, and ignores p.Since. The tables must exist.
func SetPause(ctx context.Context, db Execer, schema, destination string, p observe.Pause) error {
	tag, err := db.Exec(ctx, `INSERT INTO `+pauses(schema)+` AS p (destination, paused_by, reason) VALUES ($1, $2, $3)
		ON CONFLICT (destination) DO UPDATE SET
			paused_by = CASE excluded.reason WHEN '' THEN p.paused_by ELSE excluded.paused_by END,
			database_user = CASE excluded.reason WHEN '' THEN p.database_user ELSE excluded.database_user END,
			reason = CASE excluded.reason WHEN '' THEN p.reason ELSE excluded.reason END`,
		destination, p.By, p.Reason)
	return cmp.Or(err, session.CheckChanged("pause", tag.RowsAffected(), 1))
}

// ClearPause resumes a destination for all relays, and reports whether it was paused.
func ClearPause(ctx context.Context, db Execer, schema, destination string) (was bool, err error) {
	tag, err := db.Exec(ctx, `DELETE FROM `+pauses(schema)+` WHERE destination = $1`, destination)
	return tag.RowsAffected() > 0, err
}

func pauses(schema string) string { return pgx.Identifier{schema, "outbox_pauses"}.Sanitize() }

// Paused returns the destinations that are paused for all relays, and the database's time. confirmed reports whether
// this relay has confirmed exactly these: see Confirm.
func (k *Session) Paused(ctx context.Context) (names map[string]bool, confirmed bool, now ClockReading, err error) {
	err = k.Do(ctx, "look for paused destinations", func(ctx context.Context, c *session.Conn) error {
		var all []string
		now.From = time.Now()
		err := c.QueryRow(ctx, `SELECT clock_timestamp(), p.names,
			p.names IS NOT DISTINCT FROM (SELECT paused FROM outbox_relays WHERE owner = $1)
			FROM (SELECT ARRAY(SELECT destination FROM outbox_pauses
				ORDER BY destination) AS names) AS p`, k.options.Owner).Scan(&now.Database, &all, &confirmed)
		now.To = time.Now()

		names = make(map[string]bool, len(all))
		for _, name := range all {
			names[name] = true
		}

		return err
	})
	return names, confirmed, now, err
}

// Confirm records the pauses that this relay honors, for [PauseRequest.Unconfirmed], and the reports of its destinations.
func (k *Session) Confirm(ctx context.Context, names map[string]bool, reports []DestinationReport) error {
	return k.Do(ctx, "confirm paused destinations", func(ctx context.Context, c *session.Conn) error {
		_, err := c.Exec(ctx, `UPDATE outbox_relays SET paused = ARRAY(SELECT n FROM unnest($2::text[]) AS n ORDER BY n), destinations = $3 WHERE owner = $1`,
			k.options.Owner, slices.Collect(maps.Keys(names)), reports)
		return err
	})
}

// PauseRequest asks all relays of the tables to pause or resume a destination.
type PauseRequest struct {
	Schema      string
	Mode        outboxsql.Mode
	Destination string
	Paused      bool
}

// Unconfirmed returns the live relays that have not confirmed the request, and the number of relays that have.
func (p PauseRequest) Unconfirmed(ctx context.Context, conn outboxsql.DB) (late []RelaySession, confirmed int, err error) {
	all, err := ReadLive(ctx, conn, p.Schema, p.Mode)
	if err != nil {
		return nil, 0, err
	}

	for _, r := range all {
		switch program := r.Program; {
		case program == nil && p.Mode == outboxsql.ModeQueue: // a relay of another schema
		case program != nil && program.Paused != nil && slices.Contains(program.Paused, p.Destination) == p.Paused:
			confirmed++
		default:
			late = append(late, r)
		}
	}

	return late, confirmed, nil
}

// readPauses adds the pauses. A role that may not read them sees none.
func (r *backlogReader) readPauses(ctx context.Context, tx pgx.Tx) error {
	var readable bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class
		WHERE oid = to_regclass('outbox_pauses') AND has_table_privilege(oid, 'SELECT'))`).Scan(&readable)
	if err != nil || !readable {
		return err
	}

	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var p observe.Pause
		err := row.Scan(&name, &p.By, &p.Reason, &p.Since)
		r.destination(name).Pause = &p
		return err
	}, `SELECT destination, paused_by, reason, paused_at FROM outbox_pauses ORDER BY destination LIMIT $1`, backlogNames)
}
