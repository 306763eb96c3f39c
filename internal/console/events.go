package console

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/deadletter"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// eventsShown bounds a page, in events.
	eventsShown = 50
	// eventsLooked bounds the events that one search reads. No index has types or
	// aggregates: a search goes from the newest event to older ones, and the page
	// links to the continuation.
	eventsLooked = 20_000
	// maxText bounds a search text, in bytes.
	maxText = 1024
)

// search is the filter of a search for events. Empty fields match any.
type search struct {
	Type          string // a name, or a prefix such as order.*
	AggregateType string
	AggregateID   string
	State         string
	Upto          int64 // the highest id of the search
}

// eventRow is the row of an event.
type eventRow struct {
	ID                         int64
	Type, State                string
	AggregateType, AggregateID string
	CreatedAt                  time.Time
	ProcessedAt                *time.Time
}

type eventsBody struct {
	search
	States []string
	Rows   []eventRow
	Next   string
	// Looked reports the progress of a search that has not filled its page.
	Looked string
	First  bool
}

// states are those of the events of a queue, or of a stream.
func states(mode outboxsql.Mode) []string {
	if mode == outboxsql.ModeStream {
		return []string{"waiting", "retry", "parked", "unrouted", "dead", "done"}
	}
	return []string{"fresh", "deferred", "done"}
}

// events searches, or leads to the one event whose id is given.
func (c *Console) events(w http.ResponseWriter, r *http.Request, s session) error {
	q := r.URL.Query()
	if id := strings.TrimSpace(q.Get("id")); id != "" {
		n, err := parseID(id)
		if err != nil {
			return err
		}
		http.Redirect(w, r, Path+"events/"+strconv.FormatInt(n, 10), http.StatusSeeOther)
		return nil
	}
	find, err := searchOf(q)
	if err != nil {
		return err
	}
	b := eventsBody{search: find, First: !q.Has("upto")}
	found, err := c.search(r.Context(), find)
	if err != nil {
		return err
	}
	b.Rows, b.States = found.rows, states(found.mode)
	lowest := found.lowest
	if !found.ended {
		next := find
		next.Upto = lowest - 1
		b.Next = Path + "events?" + next.query().Encode()
		if !found.full {
			b.Looked = fmt.Sprintf("Searched %s events, down to %d.", showCount(eventsLooked), lowest)
		}
	}
	return c.render(w, http.StatusOK, "events", c.newPage("Events", "events", s, b))
}

func searchOf(q url.Values) (f search, err error) {
	f = search{
		Type: strings.TrimSpace(q.Get("type")), AggregateType: strings.TrimSpace(q.Get("aggregate_type")),
		AggregateID: strings.TrimSpace(q.Get("aggregate_id")), State: q.Get("state"), Upto: math.MaxInt64,
	}
	for _, text := range []string{f.Type, f.AggregateType, f.AggregateID} {
		if err := checkText(text); err != nil {
			return f, err
		}
	}
	if f.State != "" && !slices.Contains(append(states(outboxsql.ModeQueue), states(outboxsql.ModeStream)...), f.State) {
		return f, badRequest("There is no such state.")
	}
	if q.Has("upto") {
		f.Upto, err = parseID(q.Get("upto"))
	}
	return f, err
}

func (f search) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"type": f.Type, "aggregate_type": f.AggregateType, "aggregate_id": f.AggregateID, "state": f.State} {
		if value != "" {
			q.Set(name, value)
		}
	}
	q.Set("upto", strconv.FormatInt(f.Upto, 10))
	return q
}

// sql returns the statement and its arguments. The inner query reads a bounded
// part of one index, the primary key or that of fresh events; the outer one
// filters it.
func (f search) sql(schema, columns string) (text string, args []any) {
	args = []any{f.Upto, eventsLooked}
	inner := "id <= $1"
	if f.State == "fresh" {
		inner += " AND state = 'fresh'" // as the index has it
	}
	where := []string{"true"}
	add := func(condition string, value string) {
		args = append(args, value)
		where = append(where, fmt.Sprintf(condition, len(args)))
	}
	if prefix, ok := strings.CutSuffix(f.Type, "*"); ok {
		add("starts_with(event_type, $%d)", prefix)
	} else if f.Type != "" {
		add("event_type = $%d", f.Type)
	}
	if f.AggregateType != "" {
		add("aggregate_type = $%d", f.AggregateType)
	}
	if f.AggregateID != "" {
		add("aggregate_id = $%d", f.AggregateID)
	}
	if f.State != "" {
		add("state = $%d", f.State)
	}
	return `SELECT ` + columns + ` FROM (SELECT id, event_type, state, aggregate_type, aggregate_id, created_at, processed_at
			FROM ` + table(schema, "outbox_events") + ` WHERE ` + inner + ` ORDER BY id DESC LIMIT $2) AS e
		WHERE ` + strings.Join(where, " AND "), args
}

// findings are the result of a search.
type findings struct {
	rows   []eventRow
	lowest int64 // the last id that was read
	ended  bool  // there is nothing below it
	full   bool  // its page is
	mode   outboxsql.Mode
}

// search runs a search in a transaction of its own.
func (c *Console) search(ctx context.Context, f search) (result findings, err error) {
	t := c.tables.Load()
	who := c.waits(ctx)
	err = t.read(ctx, func(tx pgx.Tx) error {
		var mode outboxsql.Mode
		if err := tx.QueryRow(ctx, `SELECT mode FROM `+table(t.Schema, "outbox_mode")+` WHERE one`).Scan(&mode); err != nil {
			return err
		}
		if mode == outboxsql.ModeStream {
			result, err = f.runStream(ctx, tx, t.Schema, who)
		} else {
			result, err = f.run(ctx, tx, t.Schema)
		}
		result.mode = mode
		return err
	})
	return result, err
}

// run returns a page of events, newest first, the lowest id that was read, and
// whether there are none below it.
func (f search) run(ctx context.Context, tx pgx.Tx, schema string) (result findings, err error) {
	text, args := f.sql(schema, "id, event_type, state, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), created_at, processed_at")
	found, err := tx.Query(ctx, fmt.Sprintf("%s ORDER BY id DESC LIMIT %d", text, eventsShown), args...)
	if err != nil {
		return findings{}, err
	}
	result.rows, err = pgx.CollectRows(found, pgx.RowToStructByPos[eventRow])
	if err != nil {
		return findings{}, err
	}
	if n := len(result.rows); n == eventsShown {
		result.full = true
		result.lowest = result.rows[n-1].ID
		result.ended = result.lowest == math.MinInt64
		return result, nil
	}
	err = search{State: onlyFresh(f.State), Upto: f.Upto}.bounds(ctx, tx, schema, &result)
	return result, err
}

// bounds returns the progress of a search that has not filled its page.
func (f search) bounds(ctx context.Context, tx pgx.Tx, schema string, result *findings) error {
	text, args := f.sql(schema, "coalesce(min(id), 0), count(*)")
	var n int
	err := tx.QueryRow(ctx, text, args...).Scan(&result.lowest, &n)
	result.ended = n < eventsLooked || result.lowest == math.MinInt64
	return err
}

// onlyFresh reports whether the inner query filters by state.
func onlyFresh(state string) string {
	if state == "fresh" {
		return state
	}
	return ""
}

type eventBody struct {
	ID int64
	deadletter.Case
	Hidden bool
}

// event shows all details of an event.
func (c *Console) event(w http.ResponseWriter, r *http.Request, s session) error {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		return err
	}
	found, err := c.tables.Load().letters.Show(r.Context(), id)
	if err != nil {
		return err
	}
	c.judge(r.Context(), &found)
	b := eventBody{ID: id, Case: found, Hidden: c.cfg.HidePayloads}
	if b.Hidden {
		if b.Event != nil {
			b.Event.Payload = nil
		}
		for i := range b.Audit {
			b.Audit[i].OldPayload = nil
		}
	}
	p := c.newPage("Event "+strconv.FormatInt(id, 10), "events", s, b)
	p.Done = doneText(r.URL.Query())
	return c.render(w, http.StatusOK, "event", p)
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, badRequest("The id of an event is a number.")
	}
	return id, nil
}

// checkText refuses what PostgreSQL cannot hold.
func checkText(text string) error {
	switch {
	case len(text) > maxText:
		return badRequest(fmt.Sprintf("That is longer than %d bytes.", maxText))
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return badRequest("That is not valid text.")
	default:
		return nil
	}
}
