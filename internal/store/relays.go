package store

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// Program is what a relay says of its process, for people.
type Program struct {
	// Process is its id on Host.
	Process int    `json:"process"`
	Host    string `json:"host"`
	// Version is that of the program, and Config its configuration file with its whole path; either
	// may be empty.
	Version string `json:"version,omitempty"`
	Config  string `json:"config,omitempty"`
	// StartedAt is when the process was started, and LoadedAt when the configuration in force was read.
	StartedAt time.Time `json:"started_at"`
	LoadedAt  time.Time `json:"loaded_at"`
	// Refused is why the last reload was refused; empty if it was not.
	Refused string `json:"reload_refused,omitempty"`
	// Paused are the paused destinations to which it begins no delivery; nil until it has confirmed any.
	Paused []string `json:"paused,omitempty"`
}

// ThisHost returns the name of this machine, or of this container.
func ThisHost() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// ReadLive returns the live relays, the oldest session first, with what each says of itself. For a
// queue those of all schemas of the database are among them; only those of this schema say something.
func ReadLive(ctx context.Context, conn outboxsql.DB, schema string, mode outboxsql.Mode) ([]RelaySession, error) {
	all, err := ReadRelays(ctx, conn)
	if err == nil {
		err = ReadPrograms(ctx, conn, schema, all)
	}
	if err != nil || mode != outboxsql.ModeStream {
		return all, err
	}
	members, err := ReadMembers(ctx, conn, schema)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r RelaySession) bool { return r.Program == nil })
	for _, m := range members {
		if !slices.ContainsFunc(all, func(r RelaySession) bool { return r.Owner == m.Owner }) {
			all = append(all, m)
		}
	}
	return all, ReadPrograms(ctx, conn, schema, all)
}

// Introduce writes down what the relay says of itself, nothing without a process, and deletes the rows of relays that are
// gone. The relay must show that it lives: by the lock of the owner, or as a member of a stream.
func Introduce(ctx context.Context, db Execer, owner int64, p Program) error {
	if p.Process == 0 {
		return nil
	}
	_, err := db.Exec(ctx, `WITH gone AS (DELETE FROM outbox_relays WHERE owner <> $1 AND NOT EXISTS (
			SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
				AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
				AND classid::bigint << 32 | objid::bigint = owner)
			AND NOT EXISTS (SELECT FROM outbox_members AS m WHERE m.owner = outbox_relays.owner))
		INSERT INTO outbox_relays (owner, process, host, version, config, started_at, loaded_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (owner) DO UPDATE SET paused = NULL`, owner, p.Process, p.Host, p.Version, p.Config, p.StartedAt, p.LoadedAt)
	if err != nil && IsDown(err) { // for people only: a relay does its work without the right to write that down
		return fmt.Errorf("write down what the relay says of itself: %w", err)
	}
	return nil
}

// NoteRefusal writes down why the relay with this number has refused a reload; "" is that it has not.
func NoteRefusal(ctx context.Context, db Execer, schema string, owner int64, why string) error {
	_, err := db.Exec(ctx, `UPDATE `+pgx.Identifier{schema, "outbox_relays"}.Sanitize()+` SET refused = nullif($2, '') WHERE owner = $1`, owner, why)
	if err != nil {
		return fmt.Errorf("note that a reload was refused: %w", err)
	}
	return nil
}

// NoteReload writes down that the relay with this number goes on with a new configuration, which has changed
// nothing for it.
func NoteReload(ctx context.Context, db Execer, schema string, owner int64) error {
	_, err := db.Exec(ctx, `UPDATE `+pgx.Identifier{schema, "outbox_relays"}.Sanitize()+` SET refused = NULL, loaded_at = now() WHERE owner = $1`, owner)
	if err != nil {
		return fmt.Errorf("note a reload: %w", err)
	}
	return nil
}

// ReadPrograms adds to sessions what their relays say of themselves, where this schema has it.
func ReadPrograms(ctx context.Context, conn outboxsql.DB, schema string, all []RelaySession) error {
	table := pgx.Identifier{schema, "outbox_relays"}.Sanitize()
	var readable bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = to_regclass($1) AND has_table_privilege(oid, 'SELECT'))`, table).Scan(&readable)
	if err != nil || !readable {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT owner, process, host, version, config, started_at, loaded_at, coalesce(refused, ''), paused FROM `+table)
	if err != nil {
		return err
	}
	programs := make(map[int64]*Program)
	var owner int64
	var p Program
	_, err = pgx.ForEachRow(rows, []any{&owner, &p.Process, &p.Host, &p.Version, &p.Config, &p.StartedAt, &p.LoadedAt, &p.Refused, &p.Paused}, func() error {
		programs[owner] = new(p)
		return nil
	})
	for i := range all {
		all[i].Program = programs[all[i].Owner]
	}
	return err
}
