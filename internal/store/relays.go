package store

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Program describes a relay's process, for people.
type Program struct {
	// Process is the process id on Host.
	Process int    `json:"process"`
	Host    string `json:"host"`
	// Version is the program's version, and Config the full path of its configuration file. Either may be empty.
	Version string `json:"version,omitempty"`
	Config  string `json:"config,omitempty"`
	// StartedAt is when the process started, and LoadedAt when it read the current configuration.
	StartedAt time.Time `json:"started_at"`
	LoadedAt  time.Time `json:"loaded_at"`
	// Refused is why the last reload was refused; empty if it was accepted.
	Refused string `json:"reload_refused,omitempty"`
	// Paused lists the paused destinations to which the relay begins no delivery; nil until it has confirmed pauses.
	Paused []string `json:"paused,omitempty"`
	// Destinations are the relay's reports of its destinations; nil until it has reported.
	Destinations []DestinationReport `json:"destinations,omitempty"`
}

// DestinationReport is what a relay stores about one of its destinations, so that commands and consoles of other processes
// know its state. It has no counters and no ages: the report of a destination whose state stays the same is the same.
type DestinationReport struct {
	Name string `json:"name"`
	// Type is the kind of the handler; see [observe.DestinationStats].
	Type string `json:"type"`
	// DeadLettersTo is the destination that receives a report of each dead letter; empty if none does.
	DeadLettersTo string `json:"dead_letters_to,omitempty"`
	// Breaker is the state of the breaker, by [observe.BreakerState.String].
	Breaker string `json:"breaker"`
	// Down, Stuck, RateLimited and Paused: see [observe.DestinationStats].
	Down        bool `json:"down,omitempty"`
	Stuck       int  `json:"stuck,omitempty"`
	RateLimited bool `json:"rate_limited,omitempty"`
	Paused      bool `json:"paused,omitempty"`
	// Failures counts the failures in a row, up to [MostFailures], and FailingSince is the time of the first one.
	Failures     uint64    `json:"failures,omitempty"`
	FailingSince time.Time `json:"failing_since,omitzero"`
	// DownSince and the fields below: see [observe.Trouble].
	DownSince      time.Time `json:"down_since,omitzero"`
	NextProbe      time.Time `json:"next_probe,omitzero"`
	ThrottledUntil time.Time `json:"throttled_until,omitzero"`
	ThrottledBy    int64     `json:"throttled_by_event,omitempty"`
}

// MostFailures bounds the count of failures in a report: each further failure would change it.
const MostFailures = 10

// ReportOf returns the report of a destination with these figures.
func ReportOf(d *observe.DestinationStats) DestinationReport {
	return DestinationReport{
		Name: d.Name, Type: d.Type, DeadLettersTo: d.DeadLettersTo, Breaker: d.State.String(), Down: d.Down, Stuck: d.Stuck,
		RateLimited: d.RateLimited, Paused: d.Paused,
		Failures: min(d.Trouble.Failures, MostFailures), FailingSince: d.Trouble.FailingSince.UTC(),
		DownSince: d.Trouble.DownSince.UTC(), NextProbe: d.Trouble.NextProbe.UTC(),
		ThrottledUntil: d.Trouble.ThrottledUntil.UTC(), ThrottledBy: d.Trouble.ThrottledBy,
	}
}

// Stats returns the figures in a report. Those that it does not have are zero.
func (r *DestinationReport) Stats() observe.DestinationStats {
	s := observe.DestinationStats{
		Name: r.Name, Type: r.Type, DeadLettersTo: r.DeadLettersTo, Down: r.Down, Stuck: r.Stuck, RateLimited: r.RateLimited, Paused: r.Paused,
		Trouble: observe.Trouble{
			Failures: r.Failures, FailingSince: r.FailingSince, DownSince: r.DownSince, NextProbe: r.NextProbe,
			ThrottledUntil: r.ThrottledUntil, ThrottledBy: r.ThrottledBy,
		},
	}
	for _, state := range observe.BreakerStates() {
		if state.String() == r.Breaker {
			s.State = state
		}
	}
	return s
}

// worse reports whether r describes a worse state than the other report.
func (r *DestinationReport) worse(than *DestinationReport) bool {
	return slices.Compare(r.severities(), than.severities()) > 0
}

// severities are the reasons why a destination may not be well, the most severe first: 1 for each that applies.
func (r *DestinationReport) severities() []int {
	severities := make([]int, 0, 5)
	for _, applies := range []bool{r.Down, r.Breaker != observe.BreakerClosed.String(), r.Failures > 0, r.RateLimited, r.Paused} {
		severity := 0
		if applies {
			severity = 1
		}
		severities = append(severities, severity)
	}
	return severities
}

// Reports returns one report per destination, by name: the worst of the live relays. complete is false if a relay may have
// unreported destinations, or none is live.
func Reports(relays []RelaySession) (all []DestinationReport, complete bool) {
	worst := make(map[string]DestinationReport)
	complete = len(relays) > 0
	for _, r := range relays {
		if r.Program == nil || r.Program.Destinations == nil {
			complete = false
			continue
		}
		for _, report := range r.Program.Destinations {
			if known, ok := worst[report.Name]; !ok || report.worse(&known) {
				worst[report.Name] = report
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		all = append(all, worst[name])
	}
	return all, complete
}

// ThisHost returns the name of this machine or container; "unknown" after an error.
func ThisHost() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// ReadLive returns the live relays, the oldest session first, with their Programs. For a queue the result includes
// the relays of all schemas of the database; only relays of this schema have a Program.
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

// Introduce stores the relay's Program, unless Process is 0, and deletes the rows of dead relays. The relay must
// prove that it is alive: by the owner's lock, or as a member of a stream.
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
		ON CONFLICT (owner) DO UPDATE SET paused = NULL, destinations = NULL`, owner, p.Process, p.Host, p.Version, p.Config, p.StartedAt, p.LoadedAt)
	if err != nil && IsDown(err) { // for people only: a relay works without the right to store it
		return fmt.Errorf("store the description of the relay: %w", err)
	}

	return nil
}

// NoteRefusal stores why the relay with this number refused a reload; "" if it did not.
func NoteRefusal(ctx context.Context, db Execer, schema string, owner int64, why string) error {
	table := pgx.Identifier{schema, "outbox_relays"}.Sanitize()
	_, err := db.Exec(ctx, `UPDATE `+table+` SET refused = nullif($2, '') WHERE owner = $1`, owner, why)
	if err != nil {
		return fmt.Errorf("note that a reload was refused: %w", err)
	}
	return nil
}

// NoteReload records that the relay with this number accepted a new configuration that changed nothing for it.
func NoteReload(ctx context.Context, db Execer, schema string, owner int64) error {
	_, err := db.Exec(ctx, `UPDATE `+pgx.Identifier{schema, "outbox_relays"}.Sanitize()+`
		SET refused = NULL, loaded_at = now() WHERE owner = $1`, owner)
	if err != nil {
		return fmt.Errorf("note a reload: %w", err)
	}
	return nil
}

// ReadPrograms sets the Programs of sessions that this schema has.
func ReadPrograms(ctx context.Context, conn outboxsql.DB, schema string, all []RelaySession) error {
	table := pgx.Identifier{schema, "outbox_relays"}.Sanitize()

	var readable bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class
		WHERE oid = to_regclass($1) AND has_table_privilege(oid, 'SELECT'))`, table).Scan(&readable)
	if err != nil || !readable {
		return err
	}

	rows, err := conn.Query(ctx, `SELECT owner, process, host, version, config, started_at, loaded_at,
		coalesce(refused, ''), paused, destinations FROM `+table)
	if err != nil {
		return err
	}

	programs := make(map[int64]*Program)
	var owner int64
	var p Program
	columns := []any{
		&owner, &p.Process, &p.Host, &p.Version, &p.Config, &p.StartedAt, &p.LoadedAt, &p.Refused, &p.Paused,
		&p.Destinations,
	}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		programs[owner] = new(p)
		return nil
	})

	for i := range all {
		all[i].Program = programs[all[i].Owner]
	}

	return err
}
