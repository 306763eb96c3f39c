package outboxsql

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

// PreviewOptions are the changes that [PreviewOf] describes; the zero value is a migration to the newest version.
type PreviewOptions struct {
	// Notify and Mode mean the same as in [MigrateOptions]; an empty Mode keeps the mode.
	Notify NotifyMode
	Mode   Mode
	// Partition is whether [Partition] follows.
	Partition bool
	// Serialize is the setting of [SerializeWriters]; nil keeps it.
	Serialize *bool
}

// Preview describes a migration before it is run.
type Preview struct {
	Schema string `json:"schema"`
	// Steps are in the order in which they would run. There is always one: each migration renews functions and triggers.
	Steps []PreviewStep `json:"steps"`
	// Waiting counts the waiting events; all zero without tables.
	Waiting Waiting `json:"waiting"`
	// InUse names the sessions, and the number of prepared transactions, whose locks on the tables a step would wait
	// for. It is empty without such.
	InUse string `json:"in_use"`
}

// PreviewStep is one step of a migration.
type PreviewStep struct {
	// Does describes the step, and Locks the tables that it locks, and for how long.
	Does  string `json:"does"`
	Locks string `json:"locks"`
	// Final reports that the step cannot be undone.
	Final bool `json:"final"`
	// Refused is why the step would be refused now, with the cure; empty if nothing is known.
	Refused string `json:"refused"`
}

// The locks of steps, as people read them.
const (
	locksNothing = "nothing that is in use"
	locksTrigger = "outbox_events against writers, for milliseconds; each try holds them up for 200ms at most"
	locksAll     = "outbox_events against everybody, for milliseconds; each try holds them up for 200ms at most"
	locksRelays  = "keeps relays away until the table has its new mode; " + locksAll
)

// PreviewOf describes a migration. It changes nothing. With tables of an old version it describes the new
// versions; later steps are described as far as they can be known.
func PreviewOf(ctx context.Context, conn *pgx.Conn, schema string, o PreviewOptions) (p Preview, err error) {
	if err := pgschema.Validate(schema); err != nil {
		return p, err
	}

	p.Schema = schema
	state, err := ReadState(ctx, conn, schema)
	if err != nil {
		return p, err
	}
	if state.Current > state.Latest {
		return p, tooNew(schema, state)
	}

	p.Steps = versionSteps(state, o)
	if state.Current == 0 {
		return p, nil
	}

	c := &change{conn: conn, schema: schema}
	if state.Current == state.Latest {
		w := &p.Waiting
		w.Events, w.Deliveries, w.DeadLetters, err = pgschema.CountWaiting(ctx, conn, schema, state.Mode == ModeStream)
		if err != nil {
			return p, err
		}
	}

	if o.Partition {
		if err := p.addPartition(ctx, c); err != nil {
			return p, err
		}
	}

	if o.Mode != "" && (o.Mode != state.Mode || state.Becoming != "") {
		p.addMode(ctx, c, o.Mode, state)
	}

	if o.Serialize != nil && *o.Serialize != state.Serialized {
		does := "serialize writers: each transaction that inserts waits for the earlier ones to end"
		if !*o.Serialize {
			does = "no longer serialize writers"
		}
		p.Steps = append(p.Steps, PreviewStep{Does: does, Locks: locksTrigger})
	}

	p.InUse, err = c.inUse(ctx)
	return p, err
}

// versionSteps returns the steps of [Migrate].
func versionSteps(state State, o PreviewOptions) (steps []PreviewStep) {
	if state.Current == 0 {
		step := PreviewStep{
			Does:  fmt.Sprintf("create the tables at version %d, as a %s", state.Latest, cmp.Or(o.Mode, ModeQueue)),
			Locks: locksNothing,
		}

		steps = append(steps, step)
		if o.Partition {
			steps = append(steps, PreviewStep{Does: "partition the new table by day", Locks: locksNothing})
		}

		return steps
	}

	for _, v := range state.Versions[state.Current:] {
		steps = append(steps, PreviewStep{Does: fmt.Sprintf("apply version %d: %s", v.Number, v.Name), Locks: locksAll})
	}

	steps = append(steps, PreviewStep{Does: "renew functions and triggers", Locks: locksTrigger})
	if o.Notify != NotifyKeep && o.Notify != state.Notify {
		steps = append(steps, PreviewStep{Does: fmt.Sprintf("change notify from %s to %s", state.Notify, o.Notify), Locks: locksTrigger})
	}

	return steps
}

// join appends a text to another one, which may be empty.
func join(all, text string) string {
	if all == "" {
		return text
	}
	return all + "; " + text
}

// addPartition adds the step of [Partition].
func (p *Preview) addPartition(ctx context.Context, c *change) error {
	done, err := pgschema.Partitioned(ctx, c.conn, c.schema)
	if err != nil || done {
		return err
	}

	var events int64
	err = c.conn.QueryRow(ctx, `SELECT count(*) FROM (SELECT FROM `+c.table("outbox_events")+` LIMIT $1) AS e`,
		pgschema.MostCounted+1).Scan(&events)
	if err != nil {
		return fmt.Errorf("count events: %w", err)
	}

	step := PreviewStep{Does: "partition outbox_events by day: it is empty", Locks: locksAll}
	if events > 0 {
		step.Does = fmt.Sprintf("partition outbox_events by day: its %s events become the first partition; "+
			"there is no way back but to copy them", counted(events))
		step.Final = true
	}

	err = (&partitioning{change: *c}).obstacles(ctx)
	switch {
	case errors.Is(err, ErrObstacle):
		step.Refused = err.Error()
	case err != nil:
		return err
	}

	p.Steps = append(p.Steps, step)
	return nil
}

// addMode adds the step of [SetMode].
func (p *Preview) addMode(ctx context.Context, c *change, to Mode, state State) {
	step := PreviewStep{Does: fmt.Sprintf("make outbox_events a %s", to), Locks: locksRelays}
	if state.Becoming != "" {
		step.Does = fmt.Sprintf("finish making outbox_events a %s", to)
	}
	if state.Becoming != "" && state.Becoming != to {
		step.Refused = fmt.Sprintf("its change to a %s was interrupted: finish that first", state.Becoming)
	}

	if to == ModeStream {
		if err := pgschema.CheckStream(ctx, c.conn, c.schema); err != nil {
			step.Refused = join(step.Refused, err.Error())
		}
	}

	if err := c.relaysAtWork(ctx); err != nil {
		step.Refused = join(step.Refused, err.Error())
	}

	p.Steps = append(p.Steps, step)
}

// counted returns a count that ends at [pgschema.MostCounted].
func counted(n int64) string {
	if n > pgschema.MostCounted {
		return fmt.Sprintf("more than %d", pgschema.MostCounted)
	}
	return fmt.Sprint(n)
}

// Waiting counts the waiting events of an outbox. A count of one more than 10,000 means more.
type Waiting struct {
	// Events are events that no destination has tried yet, in a stream those above the lowest position; Deliveries are
	// stored ones that are not dead, and DeadLetters those that are.
	Events      int64 `json:"events"`
	Deliveries  int64 `json:"deliveries"`
	DeadLetters int64 `json:"dead_letters"`
}

// String returns the counts as text for people.
func (w Waiting) String() string {
	return fmt.Sprintf("waiting: %s events and %s stored deliveries; dead letters: %s",
		counted(w.Events), counted(w.Deliveries), counted(w.DeadLetters))
}
