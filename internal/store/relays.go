package store

import (
	"cmp"
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
	// RestsUntil is when it looks for events again at the latest; nil while it is awake. A relay that rests has
	// no session.
	RestsUntil *time.Time `json:"rests_until,omitempty"`
}

// ThisHost returns the name of this machine, or of this container.
func ThisHost() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// ReadLive returns the live relays, the oldest session first and those that rest last, with what each says of itself. For a
// queue those of all schemas of the database are among them; only those of this schema say something.
func ReadLive(ctx context.Context, conn *pgx.Conn, schema string, mode outboxsql.Mode) ([]RelaySession, error) {
	all, err := ReadRelays(ctx, conn)
	if err != nil {
		return nil, err
	}
	programs, err := readPrograms(ctx, conn, schema)
	if err != nil {
		return nil, err
	}
	join(all, programs)
	if mode == outboxsql.ModeStream {
		members, err := ReadMembers(ctx, conn, schema)
		if err != nil {
			return nil, err
		}
		join(members, programs)
		all = slices.DeleteFunc(all, func(r RelaySession) bool { return r.Program == nil })
		if len(all) < len(members) {
			all = members
		}
	}
	return withResting(all, programs), nil
}

// join adds to sessions what their relays say of themselves.
func join(all []RelaySession, programs map[int64]*Program) {
	for i := range all {
		all[i].Program = programs[all[i].Owner]
	}
}

// withResting adds the relays that rest, in the order of their starts: they have no session.
func withResting(all []RelaySession, programs map[int64]*Program) []RelaySession {
	awake := len(all)
	for owner, p := range programs {
		if p.RestsUntil != nil && !slices.ContainsFunc(all[:awake], func(r RelaySession) bool { return r.Owner == owner }) {
			all = append(all, RelaySession{Owner: owner, Program: p})
		}
	}
	slices.SortFunc(all[awake:], func(a, b RelaySession) int {
		return cmp.Or(a.Program.StartedAt.Compare(b.Program.StartedAt), cmp.Compare(a.Owner, b.Owner))
	})
	return all
}

// introduce writes down what the relay says of itself, and deletes the rows of relays that are gone, and of one that
// rested in this process, before a reload.
// The session must hold the lock of the owner.
func introduce(ctx context.Context, conn *pgx.Conn, owner int64, p Program) error {
	_, err := conn.Exec(ctx, `WITH gone AS (DELETE FROM outbox_relays WHERE owner <> $1 AND (rests_until IS NULL OR rests_until < now() OR (process, host, started_at) = ($2, $3, $6)) AND NOT EXISTS (
			SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
				AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
				AND classid::bigint << 32 | objid::bigint = owner))
		INSERT INTO outbox_relays (owner, process, host, version, config, started_at, loaded_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (owner) DO UPDATE SET rests_until = NULL`, owner, p.Process, p.Host, p.Version, p.Config, p.StartedAt, p.LoadedAt)
	if err != nil {
		return fmt.Errorf("write down what the relay says of itself: %w", err)
	}
	return nil
}

// Rest writes down that the relay gives up its session, and comes back when a time is over.
func (k *Keeper) Rest(ctx context.Context, long time.Duration) error {
	return k.Do(ctx, "write down that the relay rests", func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `UPDATE outbox_relays SET rests_until = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE owner = $1`,
			k.options.Owner, long.Microseconds())
		return err
	})
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
func ReadPrograms(ctx context.Context, conn *pgx.Conn, schema string, all []RelaySession) error {
	programs, err := readPrograms(ctx, conn, schema)
	join(all, programs)
	return err
}

// readPrograms returns what relays say of themselves, by their numbers; nothing where this schema does not have it.
func readPrograms(ctx context.Context, conn *pgx.Conn, schema string) (map[int64]*Program, error) {
	table := pgx.Identifier{schema, "outbox_relays"}.Sanitize()
	var readable bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = to_regclass($1) AND has_table_privilege(oid, 'SELECT'))`, table).Scan(&readable)
	if err != nil || !readable {
		return nil, err
	}
	// Tables that are to be migrated have no rests_until yet.
	rows, err := conn.Query(ctx, `SELECT owner, process, host, version, config, started_at, loaded_at, coalesce(refused, ''),
			CASE WHEN rests > now() THEN rests END
		FROM `+table+` AS r CROSS JOIN LATERAL (SELECT (to_jsonb(r) ->> 'rests_until')::timestamptz AS rests) AS t`)
	if err != nil {
		return nil, err
	}
	programs := make(map[int64]*Program)
	var owner int64
	var p Program
	_, err = pgx.ForEachRow(rows, []any{&owner, &p.Process, &p.Host, &p.Version, &p.Config, &p.StartedAt, &p.LoadedAt, &p.Refused, &p.RestsUntil}, func() error {
		programs[owner] = new(p)
		return nil
	})
	return programs, err
}
